package nodemaintenance

import (
	"reflect"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestInterval(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := func(cluster, name string) workload.Request {
		return workload.Request{Cluster: types.NamespacedName{Name: cluster}, Object: types.NamespacedName{Name: name}}
	}
	r := &Reconciler{}
	s := &scope{request: request("a", "one"), now: now, before: &v1alpha1.NodeMaintenance{}, maintenance: &v1alpha1.NodeMaintenance{}}
	for i := range 500 {
		r.statuses.Record(request("b", string(rune('a'+i))), now)
	}
	g.Expect(r.interval(s)).To(Equal(statusInterval), "writes to another workload cluster do not count")
	for i := range 500 {
		r.statuses.Record(request("a", string(rune('a'+i))), now)
	}
	g.Expect(r.interval(s)).To(Equal(50 * time.Second))
	s.maintenance.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
		NodeRef: v1alpha1.NodeReference{Name: "one"}, DrainTargets: []v1alpha1.DrainTarget{{PodType: v1alpha1.PodTypeDefault}},
	}}
	g.Expect(r.interval(s)).To(Equal(statusInterval), "other components act on drain targets")
}

func TestStartStages(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct{ now, want time.Time }{
		"M65: records the start of a stage": {created.Add(90 * time.Second), created.Add(90 * time.Second)},
		"M65: records no start before the creation of the NodeMaintenance, if the manager's clock is behind": {created.Add(-time.Hour), created},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain},
			}
			startStages(m, tc.now)
			NewWithT(t).Expect(*m.StageStart(v1alpha1.StageDrain)).To(BeTemporally("==", tc.want))
		})
	}
}

func TestPodsRemaining(t *testing.T) {
	drain, skip := rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}, rules.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}
	pod := func(name string, tolerates bool, verdict rules.Verdict, others ...rules.Verdict) drainedPod {
		owner := []metav1.OwnerReference{{Kind: "DaemonSet", Name: name, Controller: ptr.To(true)}}
		return drainedPod{
			Pod:    planinput.Pod{Type: v1alpha1.PodTypeDaemonSet, Planned: plan.Pod{IsRecreated: tolerates}},
			object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: owner}}, verdict: verdict, others: others,
		}
	}
	const stays, notRecreated = ", because the DaemonSets would replace them immediately: ns/",
		"before the end of the maintenance, for example during a rollout: ns/"
	for _, tc := range []struct {
		name    string
		pods    []drainedPod
		targets v1alpha1.PodType
		reason  string
		says    []string
	}{
		{
			"R40: names a DaemonSet that tolerates the taint",
			[]drainedPod{pod("cni", true, drain)}, v1alpha1.PodTypeDaemonSet, "DaemonSetToleratesMaintenance", []string{stays + "cni"},
		},
		{
			"R83: names a DaemonSet that is skipped and could not recreate a Pod",
			[]drainedPod{pod("csi", false, skip)}, v1alpha1.PodTypeDaemonSet, "DaemonSetPodsNotRecreated", []string{notRecreated + "csi"},
		},
		{
			"R83: names both", []drainedPod{pod("csi", false, skip), pod("cni", true, drain)}, v1alpha1.PodTypeDaemonSet, "DaemonSetToleratesMaintenance",
			[]string{stays + "cni", notRecreated + "csi"},
		},
		{"R83: a skipped DaemonSet that tolerates the taint recreates its Pods", []drainedPod{pod("cni", true, skip)}, v1alpha1.PodTypeDaemonSet, "", nil},
		{"R83: without the taint, Pods are recreated", []drainedPod{pod("csi", false, skip)}, v1alpha1.PodTypeDefault, "", nil},
		{"R83: another NodeMaintenance drains the Pod", []drainedPod{pod("csi", false, skip, drain)}, v1alpha1.PodTypeDaemonSet, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, m := NewWithT(t), &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
				NodeRef: v1alpha1.NodeReference{Name: "one"}, DrainTargets: []v1alpha1.DrainTarget{{PodType: tc.targets}},
			}}
			reportPodsRemaining(&scope{
				maintenance: m, nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, drain: &drainState{pods: map[string][]drainedPod{"one": tc.pods}},
			})
			condition := ptr.Deref(meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenancePodsRemaining), metav1.Condition{})
			g.Expect(condition.Reason).To(Equal(tc.reason))
			for _, text := range tc.says {
				g.Expect(condition.Message).To(ContainSubstring(text))
			}
		})
	}
}

func TestDrainedAndNotCordoned(t *testing.T) {
	for name, tc := range map[string]struct {
		cordonErrors map[string]error
		status       metav1.ConditionStatus
		nodes        []bool
	}{
		"R85: Nodes without a Pod that must be drained are drained": {status: metav1.ConditionTrue, nodes: []bool{true, true}},
		"R85: a Node that the API server refuses to cordon is not drained, even without a Pod that must be drained": {
			cordonErrors: map[string]error{"two": errors.New("change freeze")}, status: metav1.ConditionFalse, nodes: []bool{true, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			s := &scope{
				maintenance: m, before: m.DeepCopy(), cordonErrors: tc.cordonErrors,
				nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, {ObjectMeta: metav1.ObjectMeta{Name: "two"}}},
				drain: &drainState{decision: plan.MaintenanceDecision{Drained: true, Nodes: map[string]plan.NodeDecision{"one": {Drained: true}, "two": {Drained: true}}}},
			}
			reportNodes(s)
			reportDrained(s, (&Reconciler{}).cordonFailed(s))
			drained := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
			g.Expect(drained.Status).To(Equal(tc.status))
			var nodes []bool
			for _, status := range m.Status.NodeStatuses {
				nodes = append(nodes, status.Drained)
			}
			g.Expect(nodes).To(Equal(tc.nodes))
			if tc.cordonErrors != nil {
				g.Expect(drained.Message).To(ContainSubstring("Node two cannot be cordoned: change freeze"))
			}
		})
	}
}

// TestCordonErrorThatDiffersEachTime: each write of the status is followed by a reconciliation, which tries to cordon the Node again.
func TestCordonErrorThatDiffersEachTime(t *testing.T) {
	g, r, now := NewWithT(t), &Reconciler{}, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon}}
	// report reports that Nodes could not be cordoned, and stores the status.
	report := func(after time.Duration, request string, nodes ...string) string {
		s := &scope{maintenance: m.DeepCopy(), before: m, nodes: []*corev1.Node{{}}, now: now.Add(after), cordonErrors: map[string]error{}}
		for _, node := range nodes {
			s.cordonErrors[node] = errors.New("denied request " + request)
		}
		reportCordoned(s, r.cordonFailed(s))
		if reported := s.maintenance.Status.Conditions; !reflect.DeepEqual(reported, m.Status.Conditions) {
			r.statuses.Record(s.request, s.now)
		}
		m = s.maintenance
		return meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned).Message
	}
	g.Expect(report(0, "1", "one")).To(ContainSubstring("denied request 1"))
	g.Expect(report(time.Millisecond, "2", "one")).To(ContainSubstring("denied request 1"), "R86: another error of a Node is not stored at once")
	g.Expect(report(5*time.Second, "3", "one")).To(ContainSubstring("denied request 3"), "R86: another error of a Node is stored five seconds later")
	g.Expect(report(5*time.Second, "4", "another", "one")).To(ContainSubstring("denied request 4"), "R86: the error of another Node is stored at once")
	g.Expect(report(5*time.Second, "")).To(BeEmpty())
}

func TestTooManyNodes(t *testing.T) {
	for nodes, reason := range map[int]string{5000: v1alpha1.ReasonDraining, 5001: v1alpha1.ReasonTooManyNodesSelected} {
		t.Run("R81: says why a drain of too many Nodes may not end", func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			reportDrained(&scope{maintenance: m, nodes: make([]*corev1.Node, nodes), drain: &drainState{}}, "")
			NewWithT(t).Expect(meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained).Reason).To(Equal(reason))
		})
	}
}
