package chaos

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// TestInvariantsOfPauses has histories in which the manager changes something that is paused, and similar ones in which it does not.
func TestInvariantsOfPauses(t *testing.T) {
	patchNode := func(s *story) {
		s.request(&s.Workload, controlplane.Event{Verb: "patch", Resource: "nodes", Name: "n1", Code: 200})
	}
	pauseMachine := func(m *clusterv1.Machine) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.PausedAnnotation, "")
	}
	expectViolations(t, []happening{
		{"M16: the workload cluster of a paused Cluster is changed", func(s *story) {
			s.storeCluster(true)
			patchNode(s.later(appearance))
		}, pausesRespected},
		{"M16: a Machine of a paused Cluster is changed", func(s *story) {
			s.storeCluster(true)
			s.later(appearance).request(&s.Management, controlplane.Event{
				Verb: "patch", Group: clusterv1.GroupVersion.Group, Resource: "machines", Namespace: "default", Name: "n2", Code: 200,
			})
		}, pausesRespected},
		{"M16: the workload cluster is changed just after its Cluster was paused", func(s *story) {
			s.storeCluster(true)
			patchNode(s)
		}, nil},
		{"M16: the workload cluster is changed while a fault keeps the manager from observing that its Cluster is paused", func(s *story) {
			s.storeCluster(true)
			s.Faults = []InjectedFault{{Period{s.now, s.now}, watchStale}}
			patchNode(s.later(appearance))
		}, nil},
		{"M16: the workload cluster is changed while the manager may still repeat its watch after an outage of the management cluster", func(s *story) {
			s.Faults = []InjectedFault{{Period{s.now.Add(-time.Minute), s.now.Add(-20 * time.Second)}, "management-apiserver-killed"}}
			s.storeCluster(true)
			patchNode(s.later(lag))
		}, nil},
		{"M16: the workload cluster is changed after the pause", func(s *story) {
			s.storeCluster(true)
			s.later(time.Minute).storeCluster(false)
			patchNode(s)
		}, nil},
		{"M102: the workload cluster is changed while its Cluster has the annotation of a pause", func(s *story) {
			s.storeCluster(false, func(c *clusterv1.Cluster) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, clusterv1.PausedAnnotation, "")
			})
			patchNode(s.later(time.Minute))
		}, nil},
		{"M16: a Pod of a paused Machine is evicted", func(s *story) {
			s.storePod("a")
			s.storeMachine(pauseMachine)
			s.later(appearance).evict("a", "uid-a")
		}, pausesRespected},
		{"M16: the hook of a paused Machine is removed", func(s *story) {
			s.storeMachine(pauseMachine)
			s.later(appearance).releaseHook()
		}, pausesRespected},
		{"M115: a Pod is evicted while a hook of another owner holds the drain", func(s *story) {
			s.storePod("a")
			s.storeMachine(hooked(true))
			s.later(appearance).evict("a", "uid-a")
		}, hooksRespected},
		{"M113: a Machine is released while a hook of another owner holds its drain", func(s *story) {
			s.storeMachine(hooked(true))
			s.later(appearance).releaseHook()
		}, hooksRespected},
		{"M115: a Pod is evicted after a hook of another owner has held the drain", func(s *story) {
			s.storePod("a")
			s.storeMachine(hooked(true))
			s.later(time.Minute).storeMachine(hooked(false))
			s.evict("a", "uid-a")
		}, nil},
		{"M16: a Pod of another Machine than the paused one is evicted", func(s *story) {
			s.storePod("a")
			s.storeNamedMachine("n2", pauseMachine)
			s.later(appearance).evict("a", "uid-a")
		}, nil},
	})
}
