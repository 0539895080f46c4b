package chaos

import (
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// TestInvariantsOfReleases has histories that violate an invariant about releases, and similar ones that do not.
func TestInvariantsOfReleases(t *testing.T) {
	expectViolations(t, []happening{
		{"the hook is removed while a Pod runs", func(s *story) { s.storePod("a"); s.now = s.now.Add(lag); s.releaseHook() }, hookHeld},
		{"the hook is removed immediately after the deletion, while a Pod runs", func(s *story) {
			s.storeMachine(func(m *clusterv1.Machine) { m.DeletionTimestamp = nil })
			s.storePod("a")
			s.later(lag).storeMachine(func(m *clusterv1.Machine) { m.DeletionTimestamp = ptr.To(metav1.NewTime(s.now)) })
			s.storeMachine(unhooked)
			s.removePod("a")
		}, hookHeld},
		{"the hook is removed before the deletion", func(s *story) {
			s.storeMachine(func(m *clusterv1.Machine) { m.DeletionTimestamp = nil })
			s.storePod("a")
			s.later(lag).storeMachine(unhooked)
		}, nil},
		{"M53: a user removes the hook while a Pod runs", func(s *story) {
			s.Unhooked["n1"] = true
			s.storePod("a")
			s.later(lag).storeMachine(unhooked)
		}, nil},
		{"M81: the hook is removed while a Pod of a Node that is out of service is there", func(s *story) {
			s.storeNode(unreachable, func(node *corev1.Node) { node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} })
			s.storePod("a")
			s.later(lag).releaseHook()
		}, nil},
		{"the hook is removed while a Pod terminates", func(s *story) { s.storePod("a"); s.evict("a", "uid-a"); s.later(lag).releaseHook() }, hookHeld},
		{"the hook is removed while a Pod of an unreachable Node terminates", func(s *story) {
			s.storeNode(unreachable)
			s.storePod("a")
			s.evict("a", "uid-a")
			s.later(lag).releaseHook()
		}, nil},
		{"the hook is removed while a Pod of a DaemonSet runs on a reachable Node", func(s *story) {
			s.DaemonSetPods = true
			s.storeNode()
			s.storePod("a", controlledBy("DaemonSet"))
			s.later(lag).releaseHook()
		}, hookHeld},
		{"M152: the hook is removed while a Pod of a DaemonSet runs on an unreachable Node", func(s *story) {
			s.DaemonSetPods = true
			s.storeNode(unreachable)
			s.storePod("a", controlledBy("DaemonSet"))
			s.later(lag).releaseHook()
		}, nil},
		{"the hook is removed while a Pod of a deleted Node is there", func(s *story) {
			s.storePod("a")
			s.store(&s.Workload, nodeKeys+"n1", nil)
			s.later(lag).releaseHook()
		}, nil},
		{"the hook is removed a moment after the Node was deleted", func(s *story) {
			s.storePod("a")
			s.later(lag).request(&s.Workload, controlplane.Event{Verb: "delete", Resource: "nodes", Name: "n1", Code: http.StatusOK, UserAgent: "kubectl"})
			s.releaseHook()
		}, nil},
		{"the hook is removed while a Pod of an unreachable Node terminates in its grace period", func(s *story) {
			s.storeNode(unreachable)
			s.storePod("a", func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(time.Hour))) })
			s.later(lag).releaseHook()
		}, hookHeld},
		{"the hook is removed while a Pod runs that is waited for", func(s *story) {
			s.storePod("a", labelled("wait-completed"))
			s.later(lag).releaseHook()
		}, hookHeld},
		{"the hook is removed while only completed and skipped Pods are there", func(s *story) {
			s.storePod("a", labelled("skip"))
			s.storePod("b", completed)
			s.later(lag).releaseHook()
		}, nil},
		{"the hook is removed after the drain timeout", func(s *story) {
			s.storeMachine(timeout(20))
			s.storePod("a")
			s.later(lag).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"M39: the hook is removed after the drain timeout, and the condition names no wait", func(s *story) {
			s.storeMachine(timeout(20))
			s.storePod("a")
			s.later(lag).timeOut("n1", "")
		}, hookHeld},
		{"M39: the hook is removed after the drain timeout, and there is no condition", func(s *story) {
			s.storeMachine(timeout(20))
			s.storePod("a")
			s.later(lag).releaseHook()
		}, hookHeld},
		{"M39: the hook is removed after the drain timeout, and the write of the condition is lost", func(s *story) {
			s.storeMachine(timeout(20))
			s.storePod("a")
			s.later(lag)
			s.Faults = []InjectedFault{{Period{s.now, s.now.Add(time.Minute)}, writesLost}}
			s.releaseHook()
		}, nil},
		{"M39: the hook is removed before the drain timeout, and writes are lost", func(s *story) {
			s.storeMachine(timeout(120))
			s.storePod("a")
			s.Faults = []InjectedFault{{Period{s.now, s.now.Add(time.Minute)}, writesLost}}
			s.later(lag).releaseHook()
		}, hookHeld},
		{"M66: the hook is removed before the drain timeout by a manager whose clock is wrong", func(s *story) {
			s.ClockOff = time.Minute
			s.storeMachine(timeout(120))
			s.storePod("a")
			s.later(lag).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"M92: the hook is removed after a drain timeout that started while no manager ran", func(s *story) {
			s.Down = [][]Period{{{Until: s.now}}}
			s.storeMachine(timeout(60))
			s.storePod("a")
			s.later(lag).timeOut("n1", "Waiting for a connection to the workload cluster")
		}, hookHeld},
		{"M93: the hook is removed while the Machine waits for a turn for longer than its drain timeout", func(s *story) {
			waitForTurn(s, "n2")
			s.later(21*time.Second).timeOut("n2", "Waiting for a connection to the workload cluster")
		}, hookHeld},
		{"M93: the hook is removed while the Machine waits for a turn, and a record says that its drain has begun", func(s *story) {
			waitForTurn(s, "n2")
			s.storeNamedMachine("n2", func(m *clusterv1.Machine) {
				m.Annotations[v1alpha1.DrainStartedAnnotation] = m.DeletionTimestamp.UTC().Format(time.RFC3339)
			})
			s.later(21*time.Second).timeOut("n2", "Drain not completed yet")
		}, hookHeld},
		{"M93: the wait for a turn limits the drain", func(s *story) {
			waitForTurn(s, "n2")
			s.later(45*time.Second).timeOut("n2", "Waiting for other Machines of Cluster default/c to be drained: 1 draining "+
				"(maxParallelDrains allows 1), 0 waiting longer")
		}, hookHeld},
		{"M92: the hook is removed a drain timeout after the deletion of the Machine, since the workload cluster was never reached", func(s *story) {
			waitForTurn(s, "n2")
			s.Workload.Versions = slices.DeleteFunc(s.Workload.Versions, func(v Version) bool { return v.Key == maintenanceKeys+"of-n2" })
			s.later(21*time.Second).timeOut("n2", "Waiting for a connection to the workload cluster")
		}, nil},
		{"M93: the hook is removed a drain timeout after the Machine had a turn, since no other drain began", func(s *story) {
			waitForTurn(s, "n2")
			s.later(41*time.Second).timeOut("n2", "Waiting for a connection to the workload cluster")
		}, nil},
		{"M93: the hook is removed a drain timeout after the other drain ended", func(s *story) {
			waitForTurn(s, "n2")
			s.storeMachine(unhooked)
			s.later(21*time.Second).timeOut("n2", "Drain not completed yet")
		}, nil},
		{"M93: a Machine gets a turn before an older one that is paused", func(s *story) {
			waitForTurn(s, "n2", "n3")
			s.storeMachine(unhooked)
			s.storeNamedMachine("n2", func(m *clusterv1.Machine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
			getTurn(s, "n3")
			s.later(25*time.Second).timeOut("n3", "Drain not completed yet")
		}, nil},
		{"M93: two Machines get a turn at once while the manager cannot observe turns", func(s *story) {
			waitForTurn(s, "n2", "n3")
			getTurn(s.later(20*time.Second), "n2")
			getTurn(s, "n3")
			s.later(25*time.Second).timeOut("n3", "Waiting for a connection to the workload cluster")
		}, hookHeld},
		{"M93: the second one of two Machines gets a turn a drain timeout after the first one", func(s *story) {
			waitForTurn(s, "n2", "n3")
			getTurn(s.later(20*time.Second), "n2")
			getTurn(s.later(20*time.Second), "n3")
			s.later(25*time.Second).timeOut("n3", "Waiting for a connection to the workload cluster")
		}, nil},
		{"M93: the drain timeout counts from a turn that was granted just before the manager was stopped", func(s *story) {
			waitForTurn(s, "n2")
			s.later(20 * time.Second)
			s.Down = [][]Period{{{From: s.now.Add(-4 * time.Second), Until: s.now.Add(10 * time.Second)}}}
			getTurn(s, "n2")
			s.later(21*time.Second).timeOut("n2", "Drain not completed yet")
		}, nil},
		{"M93: the second one of two Machines gets a turn when the first one loses its hook", func(s *story) {
			waitForTurn(s, "n2", "n3")
			getTurn(s.later(20*time.Second), "n2")
			s.now = s.now.Add(8 * time.Second)
			s.Unhooked["n2"] = true
			s.storeNamedMachine("n2", unhooked)
			getTurn(s, "n3")
			s.later(25*time.Second).timeOut("n3", "Waiting for a connection to the workload cluster")
		}, nil},
		{"M93: the second one of two Machines gets a turn when the Node of the first one no longer exists", func(s *story) {
			waitForTurn(s, "n2", "n3")
			getTurn(s.later(20*time.Second), "n2")
			s.later(8*time.Second).store(&s.Workload, nodeKeys+"n2", nil)
			getTurn(s, "n3")
			s.later(25*time.Second).timeOut("n3", "Waiting for a connection to the workload cluster")
		}, nil},
		{"M93: the hook is removed a drain timeout after the Machine had a turn, but another drain began meanwhile", func(s *story) {
			waitForTurn(s, "n2", "n3")
			getTurn(s.later(5*time.Second), "n2")
			s.later(32*time.Second).timeOut("n3", "Waiting for a connection to the workload cluster")
		}, hookHeld},
		{"M159: the drain timeout of the Machine does not count from another drain whose NodeMaintenance no longer exists", func(s *story) {
			waitForVanishingDrain(s)
			s.later(23*time.Second).timeOut("n2", "Waiting for a connection to the workload cluster")
		}, nil},
		{"M159: it counts from another drain with a drain timeout whose NodeMaintenance no longer exists", func(s *story) {
			s.storeMachine(timeout(300))
			waitForVanishingDrain(s)
			s.later(23*time.Second).timeOut("n2", "Waiting for a connection to the workload cluster")
		}, hookHeld},
		{"M115: the hook is removed less than the drain timeout after a hook of another owner has held the drain", func(s *story) {
			s.storeMachine(timeout(100))
			s.storePod("a")
			s.storeMachine(hooked(true))
			s.later(time.Minute).store(&s.Management, "/registry/configmaps/before", nil)
			s.storeMachine(hooked(false))
			s.later(90*time.Second).timeOut("n1", "Drain not completed yet")
		}, hookHeld},
		{"M115: the hook is removed a drain timeout after a hook of another owner has held the drain", func(s *story) {
			s.storeMachine(timeout(100))
			s.storePod("a", labelled("wait-completed"))
			s.storeMachine(hooked(true))
			s.later(time.Minute).store(&s.Management, "/registry/configmaps/before", nil)
			s.storeMachine(hooked(false))
			s.later(100*time.Second).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"M115: a hook of another owner was removed before the manager could observe it", func(s *story) {
			s.storeMachine(timeout(100))
			s.storePod("a", labelled("wait-completed"))
			s.storeMachine(hooked(true))
			s.Faults = []InjectedFault{{Period{s.now, s.now.Add(time.Minute)}, watchStale}}
			s.later(time.Minute).store(&s.Management, "/registry/configmaps/before", nil)
			s.storeMachine(hooked(false))
			s.later(90*time.Second).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"M115: a Pod is deleted before the drain timeout, and then a hook of another owner holds the drain", func(s *story) {
			s.DeletesOnTimeout = true
			s.storeMachine(timeout(100))
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.later(30 * time.Second).delete("a")
			s.storeMachine(hooked(true))
			s.later(20*time.Second).store(&s.Management, "/registry/configmaps/later", nil)
		}, nil},
		{"M117: the hook is removed a drain timeout after a hook of another owner began to hold the other drain", func(s *story) {
			waitForTurn(s, "n2")
			s.storeMachine(hooked(true))
			s.later(25*time.Second).timeOut("n2", "Drain not completed yet")
		}, nil},
		{"M54: the hook is removed while a Pod runs, after the Cluster was deleted", func(s *story) {
			s.ClusterDeleted = s.now
			s.storePod("a")
			s.later(lag).releaseHook()
		}, nil},
		{"M54: the hook is removed while a Pod runs, before the Cluster is deleted", func(s *story) {
			s.storePod("a")
			s.later(lag).releaseHook()
			s.ClusterDeleted = s.now.Add(time.Second)
		}, hookHeld},
		{"the hook is removed before the drain timeout", func(s *story) {
			s.storeMachine(timeout(120))
			s.storePod("a")
			s.later(lag).timeOut("n1", "Drain not completed yet")
		}, hookHeld},

		{"the hook is removed while a volume is attached", func(s *story) { s.storeAttachment(); s.now = s.now.Add(lag); s.releaseHook() }, volumesDetached},
		{"the hook is removed after the volume is detached", func(s *story) {
			s.storeAttachment()
			s.store(&s.Workload, attachmentKeys+"v", nil)
			s.releaseHook()
		}, nil},
		{"M21: the hook is removed while a volume is attached, a timeout after the end of the drain", func(s *story) {
			s.storeMaintenance(v1alpha1.StageDrain, func(m *v1alpha1.NodeMaintenance) {
				m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue}}
			})
			s.storeMachine(timeout(20))
			s.storeAttachment()
			s.later(21*time.Second).timeOut("n1", "VolumeAttachment v")
		}, nil},
		{"M13: the hook is removed while a volume is attached, a timeout after the start of the drain", func(s *story) {
			s.storeMachine(timeout(60))
			s.storeAttachment()
			s.later(lag).timeOut("n1", "VolumeAttachment v")
		}, volumesDetached},
		{"the hook is removed while the volume of a Pod that is skipped is attached", func(s *story) {
			s.storePod("a", labelled("skip"), func(pod *corev1.Pod) { storage.Mount(&pod.Spec, "v") })
			s.storeAttachment()
			s.later(lag).releaseHook()
		}, nil},

		{"E52: a Pod that could be evicted had no final eviction attempt", func(s *story) {
			cordonedAndLimited(s)
			s.later(140*time.Second).timeOut("n1", "Drain not completed yet")
		}, finalAttemptsMade},
		{"E52: a Pod that its budget allows to evict had no final eviction attempt", func(s *story) {
			cordonedAndLimited(s)
			s.storeBudget("b", "a", 1)
			s.later(140*time.Second).timeOut("n1", "Drain not completed yet")
		}, finalAttemptsMade},
		{"E52: the eviction of a Pod was refused only before its final eviction attempt was due", func(s *story) {
			cordonedAndLimited(s)
			s.refuseEviction("a")
			s.later(140*time.Second).timeOut("n1", "Drain not completed yet")
		}, finalAttemptsMade},
		{"E52: the eviction of a Pod was refused only before the present timeout was set", func(s *story) {
			cordonedAndLimited(s)
			s.later(time.Minute).refuseEviction("a")
			s.storeMachine(timeout(100))
			s.later(10*time.Second).timeOut("n1", "Drain not completed yet")
		}, finalAttemptsMade},
		{"E52: the final eviction attempt of a Pod was refused", func(s *story) {
			cordonedAndLimited(s)
			s.later(time.Minute).refuseEviction("a")
			s.later(80*time.Second).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"E52: a Pod waits for its budget until the drain timeout", func(s *story) {
			cordonedAndLimited(s)
			s.storeBudget("b", "a", 0)
			s.later(140*time.Second).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"M96: a budget allows a disruption just before the release", func(s *story) {
			cordonedAndLimited(s)
			s.storeBudget("b", "a", 0)
			s.later(140*time.Second).storeBudget("b", "a", 1)
			s.timeOut("n1", "Drain not completed yet")
		}, nil},
		{"M96: a budget allows a disruption after the wait for volumes has begun", func(s *story) {
			cordonedAndLimited(s)
			s.storeBudget("b", "a", 0)
			s.later(140 * time.Second).storeMachine(awaitsVolumes)
			s.storeBudget("b", "a", 1)
			s.later(20*time.Second).timeOut("n1", "Drain not completed yet")
		}, nil},
		{"E52: a Pod had no final eviction attempt before the wait for volumes began", func(s *story) {
			cordonedAndLimited(s)
			s.later(140*time.Second).store(&s.Management, "/registry/configmaps/before", nil)
			s.storeMachine(awaitsVolumes)
			s.later(20*time.Second).timeOut("n1", "Drain not completed yet")
		}, finalAttemptsMade},
		{"E52: a fault keeps the manager from making the final eviction attempt", func(s *story) {
			cordonedAndLimited(s)
			s.Faults = []InjectedFault{{Period{s.now, s.now.Add(130 * time.Second)}, "network-cut"}}
			s.later(140*time.Second).timeOut("n1", "Drain not completed yet")
		}, nil},
	})
}

// cordonedAndLimited has a Pod on the cordoned Node, whose Machine has a drain timeout of 200 s. Its drain has begun a minute ago.
func cordonedAndLimited(s *story) {
	s.storeNode(cordoned(true))
	s.storeMachine(timeout(200))
	s.storePod("a")
}

// waitForTurn has Machines with a drain timeout of 20 s, which wait for the turns of the Machines before them. Each has a Node with a Pod.
// Machine n1 drains.
func waitForTurn(s *story, names ...string) {
	s.MaxParallelDrains = 1
	for _, name := range names {
		s.storeNode(func(node *corev1.Node) { node.Name = name })
		s.storeNamedMachine(name, timeout(20))
		s.storePod("on-"+name, func(pod *corev1.Pod) { pod.Spec.NodeName = name })
		s.storeMaintenance(v1alpha1.StageCordon, func(m *v1alpha1.NodeMaintenance) {
			m.Name, m.Annotations[v1alpha1.OwnerMachineAnnotation], m.Spec.NodeSelector = "of-"+name, "default/"+name, v1alpha1.SelectNodes(name)
		})
	}
}

// waitForVanishingDrain has Machine n2 wait for Machine n1, whose drain begins ten seconds later. The NodeMaintenance of n1 is deleted
// after another six seconds.
func waitForVanishingDrain(s *story) {
	s.Workload.Versions = slices.DeleteFunc(s.Workload.Versions, func(v Version) bool { return v.Key == maintenanceKeys+"m" })
	waitForTurn(s, "n2")
	s.later(9 * time.Second).storeMaintenance(v1alpha1.StageDrain)
	s.later(5*time.Second).store(&s.Workload, maintenanceKeys+"m", nil)
}

// awaitsVolumes records that the wait for volumes has begun.
func awaitsVolumes(m *clusterv1.Machine) {
	m.Annotations[v1alpha1.VolumeWaitStartedAnnotation] = "2026-01-01T00:00:00Z"
}

// getTurn records that the drain of a Machine has begun.
func getTurn(s *story, name string) {
	s.storeNamedMachine(name, func(m *clusterv1.Machine) {
		m.Annotations[v1alpha1.DrainStartedAnnotation] = s.now.UTC().Format(time.RFC3339)
	})
}
