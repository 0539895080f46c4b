package machine

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestDrainMetrics(t *testing.T) {
	deletion := metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	drain := func(name string) *scope {
		s := &scope{
			machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, DeletionTimestamp: &deletion}}, now: deletion.Add(time.Minute),
		}
		s.maintenance = &v1alpha1.NodeMaintenance{}
		s.maintenance.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: deletion}}
		return s
	}
	waiting := volumes.Decide(volumes.Observation{Attached: []string{"kubernetes.io/none/1", "kubernetes.io/none/2"}})
	t.Run("M29: counts a drain and its volumes once until the hook is released", func(t *testing.T) {
		clear(inProgress.machines) // those of other tests
		one, two := drain("one"), drain("two")
		since := deletion.Add(10 * time.Second)
		one.VolumeWaitStart, two.VolumeWaitStart = &since, &one.now
		for range 3 {
			observeDrain(one)
			observeVolumes(one, waiting)
			observeDrain(two)
			observeVolumes(two, volumes.Decision{})
			observeDrain(one)
		}
		if got := testutil.ToFloat64(longestVolumeWait); got != float64(since.Unix()) {
			t.Errorf("the longest wait for volumes has begun at %v, want %v", got, since.Unix())
		}
		if drains, left := testutil.ToFloat64(drainsInProgress), testutil.ToFloat64(volumesWaitedFor); drains != 2 || left != 2 {
			t.Errorf("got %v drains and %v volumes, want 2 and 2", drains, left)
		}
		drainDuration.Reset() // other tests release Machines, too
		hookWait.Reset()
		recordReleaseMetrics(one, outcome{reason: v1alpha1.ReasonTimedOut})
		removeDrainMetrics(client.ObjectKeyFromObject(two.machine))
		if drains, left := testutil.ToFloat64(drainsInProgress), testutil.ToFloat64(volumesWaitedFor); drains != 0 || left != 0 {
			t.Errorf("got %v drains and %v volumes, want none", drains, left)
		}
		if got := testutil.ToFloat64(longestVolumeWait); got != 0 {
			t.Errorf("the longest wait for volumes has begun at %v, want none", got)
		}
		for name, series := range map[string]int{"drain duration": testutil.CollectAndCount(drainDuration), "hook wait": testutil.CollectAndCount(hookWait)} {
			if series != 1 {
				t.Errorf("%s has %d series, want that of TimedOut alone", name, series)
			}
		}
	})
}

func TestOldestDrain(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	drain := func(name, cluster string, requested time.Duration) *scope {
		s := &scope{now: begin.Add(24 * time.Hour), machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: "oldest", Name: name, DeletionTimestamp: &metav1.Time{Time: begin.Add(requested)},
		}}}
		s.machine.Spec.ClusterName = cluster
		return s
	}
	started := func(s *scope, after time.Duration) *scope {
		s.observe(&v1alpha1.NodeMaintenance{})
		s.maintenance.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(begin.Add(after))}}
		return s
	}
	oldest := func() map[string]time.Duration {
		found, collected := map[string]time.Duration{}, make(chan prometheus.Metric, 1000)
		oldestDrain.Collect(collected)
		close(collected)
		for metric := range collected {
			written := &dto.Metric{}
			if err := metric.Write(written); err != nil {
				t.Fatal(err)
			}
			labels := written.GetLabel()          // cluster, cluster_namespace, reason
			if labels[1].GetValue() != "oldest" { // of another test
				continue
			}
			found[labels[0].GetValue()+" "+labels[2].GetValue()] = time.Unix(int64(written.GetGauge().GetValue()), 0).Sub(begin)
		}
		return found
	}
	a, b, other := drain("a", "c1", time.Minute), drain("b", "c1", 2*time.Minute), drain("o", "c2", time.Hour)
	for _, step := range []struct {
		name string
		do   func()
		want map[string]time.Duration
	}{
		{"the oldest of each Cluster and reason", func() {
			observeUnended(b, v1alpha1.ReasonWaitingForTurn)
			observeUnended(a, v1alpha1.ReasonWaitingForTurn)
			observeUnended(other, v1alpha1.ReasonWaitingForTurn)
		}, map[string]time.Duration{"c1 WaitingForTurn": time.Minute, "c2 WaitingForTurn": time.Hour}},
		{"a drain counts from the start of its stage", func() { observeUnended(started(a, time.Hour), v1alpha1.ReasonMachineDraining) },
			map[string]time.Duration{"c1 WaitingForTurn": 2 * time.Minute, "c1 Draining": time.Hour, "c2 WaitingForTurn": time.Hour}},
		{"a step that changes no condition keeps its reason", func() {
			s := drain("a", "c1", time.Minute)
			s.machine.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
			s.machine.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonWaitingForPreDrainHook}}
			observeUnended(s, "")
		}, map[string]time.Duration{"c1 WaitingForTurn": 2 * time.Minute, "c1 WaitingForPreDrainHook": time.Hour, "c2 WaitingForTurn": time.Hour}},
		{
			"another reason does not change the start, nor does a lost connection",
			func() { observeUnended(drain("a", "c1", time.Minute), v1alpha1.ReasonWaitingForWorkloadCluster) },
			map[string]time.Duration{"c1 WaitingForTurn": 2 * time.Minute, "c1 WaitingForWorkloadCluster": time.Hour, "c2 WaitingForTurn": time.Hour},
		},
		{"the deletion after a drain in place is a new start", func() { observeUnended(started(b, -time.Hour), v1alpha1.ReasonWaitingForVolumeDetach) },
			map[string]time.Duration{"c1 WaitingForVolumeDetach": 2 * time.Minute, "c1 WaitingForWorkloadCluster": time.Hour, "c2 WaitingForTurn": time.Hour}},
		{"a start in the future, which a user of the workload cluster may write, does not count",
			func() { observeUnended(started(other, 48*time.Hour), v1alpha1.ReasonMachineDraining) },
			map[string]time.Duration{"c1 WaitingForVolumeDetach": 2 * time.Minute, "c1 WaitingForWorkloadCluster": time.Hour, "c2 Draining": time.Hour}},
		{"a drain that has ended is forgotten", func() {
			for _, s := range []*scope{a, b, other} {
				removeDrainMetrics(client.ObjectKeyFromObject(s.machine))
			}
		}, map[string]time.Duration{}},
	} {
		t.Run("K52: "+step.name, func(t *testing.T) {
			if step.do(); !maps.Equal(oldest(), step.want) {
				t.Errorf("got %v, want %v", oldest(), step.want)
			}
		})
	}
}

func TestWithdrawnDrainIsForgotten(t *testing.T) {
	scheme := fakes.Scheme()
	management := fakes.Client()
	r := &Reconciler{
		Client: management, Clusters: workload.NewClusters(management, clustercache.NewFakeEmptyClusterCache(), scheme, workload.Limits{}, clock.RealClock{}),
	}
	s := &scope{
		machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}},
		cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}},
		policy:  &v1alpha1.MachineDrainPolicy{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	clear(inProgress.machines) // those of other tests
	observeDrain(s)
	if _, err := r.reconcileStage(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if drains := testutil.ToFloat64(drainsInProgress); drains != 0 {
		t.Errorf("M29: the stage annotation was removed during the drain, and %v drains are in progress", drains)
	}
}
