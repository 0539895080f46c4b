package progress_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
)

func targets(n, variant int) []v1alpha1.DrainTarget {
	all := make([]v1alpha1.DrainTarget, 0, n)
	for i := range n {
		all = append(all, v1alpha1.DrainTarget{
			PodType: v1alpha1.PodTypeDefault, PodPriority: int32(1000*i + variant), Order: ptr.To(int32(variant)),
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("application-%d", i)}},
		})
	}
	return all
}

// statuses of nodes that all have much to say.
func statuses(count, variants, nameLength int) []v1alpha1.NodeMaintenanceNodeStatus {
	all := make([]v1alpha1.NodeMaintenanceNodeStatus, 0, count)
	for i := range count {
		name := fmt.Sprintf("%05d", i)
		blocked := make([]v1alpha1.BlockedPod, 5)
		for n := range blocked {
			blocked[n] = v1alpha1.BlockedPod{Pod: fmt.Sprintf("namespace/pod-%d", n), Why: strings.Repeat("blocked ", 64), Since: &metav1.Time{}}
		}
		all = append(all, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef:      v1alpha1.NodeReference{Name: name + strings.Repeat("x", max(0, nameLength-len(name)))},
			DrainTargets: targets(12, i%variants), DrainMessage: strings.Repeat("<message>", 110),
			PodsPendingEvacuation: 110, PodsEvacuating: 110, PodsSkipped: 110, Blocked: blocked, Drained: i%2 == 0,
		})
	}
	return all
}

func sizeOf(t interface{ Fatal(args ...any) }, m *v1alpha1.NodeMaintenance) int {
	content, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return len(content)
}

func TestFit(t *testing.T) {
	for _, tc := range []struct {
		name                          string
		count, variants, nameLength   int
		wantStatuses, wantSets        int
		leastTruncated, mostTruncated int32
	}{
		{name: "R36: three Nodes show their own targets", count: 3, variants: 2, nameLength: 60, wantStatuses: 3},
		{name: "R36: 101 Nodes share them", count: 101, variants: 3, nameLength: 60, wantStatuses: 101, wantSets: 3},
		{
			name: "R36: 5,000 Nodes keep their targets, and some are cut", count: 5000, variants: 5, nameLength: 60, wantStatuses: 5000, wantSets: 5,
			leastTruncated: 4000, mostTruncated: 5000,
		},
		{
			name: "R36: 5,000 Nodes whose targets all differ", count: 5000, variants: 5000, nameLength: 60, wantStatuses: 5000, wantSets: -1, leastTruncated: 4000,
			mostTruncated: 5000,
		},
		{
			name: "R36: 5,000 Nodes with the longest names", count: 5000, variants: 3, nameLength: 253, wantStatuses: -1, wantSets: 3, leastTruncated: 5000,
			mostTruncated: 5000,
		},
		{
			name: "R36: of 6,000 Nodes 1,000 are left out", count: 6000, variants: 1, nameLength: 40, wantStatuses: 5000, wantSets: 1, leastTruncated: 5000,
			mostTruncated: 6000,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{}
			given := statuses(tc.count, tc.variants, tc.nameLength)
			progress.Fit(m, given)
			if size := sizeOf(t, m); size >= progress.MaxSize {
				t.Errorf("%d bytes", size)
			}
			if (tc.wantStatuses >= 0 && len(m.Status.NodeStatuses) != tc.wantStatuses) || (tc.wantSets >= 0 && len(m.Status.DrainTargetSets) != tc.wantSets) {
				t.Errorf("%d statuses, %d sets", len(m.Status.NodeStatuses), len(m.Status.DrainTargetSets))
			}
			if cut := m.Status.Summary.Truncated; cut < tc.leastTruncated || cut > tc.mostTruncated {
				t.Errorf("%d Nodes are cut", cut)
			}
			published := progress.Targets(&m.Status)
			for i, node := range m.Status.NodeStatuses {
				if tc.wantSets >= 0 && !reflect.DeepEqual(published[node.NodeRef.Name], targets(12, i%tc.variants)) {
					t.Fatalf("the targets of Node %d are lost", i)
				}
			}
		})
	}
	t.Run("R36: short messages all fit for 5,000 Nodes", func(t *testing.T) {
		given := statuses(5000, 2, 44)
		for i := range given {
			given[i].DrainMessage, given[i].Blocked = "Drained", nil
		}
		m := &v1alpha1.NodeMaintenance{}
		progress.Fit(m, given)
		if size := sizeOf(t, m); m.Status.Summary.Truncated != 0 || size >= progress.MaxSize {
			t.Errorf("%d Nodes are cut, %d bytes", m.Status.Summary.Truncated, size)
		}
	})
}

// Whatever is to be said of however many Nodes: it fits, and what is cut is counted.
func TestFitAlwaysFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.SampledFrom([]int{0, 1, 100, 101, 700}).Draw(t, "nodes")
		variants := rapid.SampledFrom([]int{1, 3, 700}).Draw(t, "variants")
		given := statuses(count, variants, rapid.SampledFrom([]int{5, 60, 253}).Draw(t, "name length"))
		want := map[string]v1alpha1.NodeMaintenanceNodeStatus{}
		for _, node := range given {
			want[node.NodeRef.Name] = node
		}
		m := &v1alpha1.NodeMaintenance{}
		m.Spec.Reason = strings.Repeat("r", rapid.SampledFrom([]int{0, 1000, 300_000}).Draw(t, "spec"))
		progress.Fit(m, given)
		if size := sizeOf(t, m); size >= progress.MaxSize {
			t.Fatalf("%d bytes", size)
		}
		published := progress.Targets(&m.Status)
		cut := int32(count - len(m.Status.NodeStatuses))
		for _, node := range m.Status.NodeStatuses {
			whole := want[node.NodeRef.Name]
			if node.PodsPendingEvacuation != whole.PodsPendingEvacuation || node.Drained != whole.Drained {
				t.Fatal("counts are lost")
			}
			if node.DrainMessage != whole.DrainMessage || len(node.Blocked) != len(whole.Blocked) ||
				!reflect.DeepEqual(published[node.NodeRef.Name], whole.DrainTargets) {
				cut++
			}
		}
		if cut != m.Status.Summary.Truncated {
			t.Fatalf("%d are cut, the summary says %d", cut, m.Status.Summary.Truncated)
		}
	})
}

func TestFastForwards(t *testing.T) {
	status := func(name, message string) v1alpha1.NodeMaintenanceNodeStatus {
		return v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}, DrainMessage: message}
	}
	by := func(names ...string) plan.NodeDecision { return plan.NodeDecision{FastForwardedBy: names} }
	type nodes = []v1alpha1.NodeMaintenanceNodeStatus
	for _, tc := range []struct {
		name        string
		before, now nodes
		decided     map[string]plan.NodeDecision
		want        []string
	}{
		{
			name: "R29: reports a fast-forward", now: nodes{status("one", "ff b")}, decided: map[string]plan.NodeDecision{"one": by("b")},
			want: []string{"Node one: fast-forwarded by older b"},
		},
		{
			name: "R29: does not report a fast-forward again", before: nodes{status("one", "ff b")}, now: nodes{status("one", "ff b")},
			decided: map[string]plan.NodeDecision{"one": by("b")},
		},
		{
			name: "R29: reports a fast-forward by another maintenance", before: nodes{status("one", "ff b")}, now: nodes{status("one", "ff a")},
			decided: map[string]plan.NodeDecision{"one": by("a")}, want: []string{"Node one: fast-forwarded by older a"},
		},
		{
			name: "R29: reports a fast-forward that ends in Drained", before: nodes{status("one", "ff b")}, now: nodes{status("one", "Drained")},
			decided: map[string]plan.NodeDecision{"one": {Drained: true, FastForwardedBy: []string{"b"}}},
		},
		{name: "R29: reports nothing without a fast-forward", now: nodes{status("one", "Evacuating")}, decided: map[string]plan.NodeDecision{"one": by()}},
		{
			name:    "R29: many Nodes, two causes",
			now:     nodes{status("1", "b"), status("2", "b"), status("3", "b"), status("4", "b"), status("5", "b"), status("6", "b"), status("7", "a, b")},
			decided: map[string]plan.NodeDecision{"1": by("b"), "2": by("b"), "3": by("b"), "4": by("b"), "5": by("b"), "6": by("b"), "7": by("a", "b")},
			want:    []string{"Node 7: fast-forwarded by older a, b", "Nodes 1, 2, 3, 4, 5 and 1 more: fast-forwarded by older b"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := progress.FastForwards(tc.before, tc.now, tc.decided); strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got %q", got)
			}
		})
	}
}
