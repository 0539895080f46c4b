package machine

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
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
		s := &scope{machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, DeletionTimestamp: &deletion}}, now: deletion.Add(time.Minute)}
		s.maintenance = &v1alpha1.NodeMaintenance{}
		s.maintenance.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: deletion}}
		return s
	}
	waiting := volumes.Decide(volumes.Observation{Attached: []string{"kubernetes.io/none/1", "kubernetes.io/none/2"}})
	t.Run("M29: counts a drain and its volumes once until the hook is released", func(t *testing.T) {
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

func TestWithdrawnDrainIsForgotten(t *testing.T) {
	scheme := fakes.Scheme()
	management := fakes.Client()
	r := &Reconciler{Client: management, Clusters: workload.NewClusters(management, clustercache.NewFakeEmptyClusterCache(), scheme, workload.Limits{}, clock.RealClock{})}
	s := &scope{
		machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}},
		policy: &v1alpha1.MachineDrainPolicy{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	observeDrain(s)
	if _, err := r.reconcileStage(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if drains := testutil.ToFloat64(drainsInProgress); drains != 0 {
		t.Errorf("M29: the stage annotation was removed during the drain, and %v drains are in progress", drains)
	}
}
