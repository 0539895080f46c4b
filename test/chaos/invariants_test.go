package chaos

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// story builds a history, one second for each thing that happens. In the beginning, Node n1 of Machine n1 is being drained for a minute.
type story struct {
	History
	now      time.Time
	revision int64
}

func newStory() *story {
	s := &story{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), History: History{Replicas: 1, Unhooked: map[string]bool{}}}
	s.storeNode(func(*corev1.Node) {})
	s.storeMachine(func(*clusterv1.Machine) {})
	s.storeMaintenance(v1alpha1.StageDrain)
	s.now = s.now.Add(time.Minute)
	return s
}

// store stores an object in a cluster; nil deletes it.
func (s *story) store(side *Side, key string, object client.Object) {
	s.now = s.now.Add(time.Second)
	s.revision++
	side.Versions = append(side.Versions, Version{s.revision, key, object})
	for _, each := range []*Side{&s.Workload, &s.Management} {
		each.Clock = append(each.Clock, Sample{s.now, s.now, s.revision})
	}
}

func (s *story) storeNode(change func(*corev1.Node)) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{}}}
	change(node)
	s.store(&s.Workload, nodeKeys+"n1", node)
}

func (s *story) storeMachine(change func(*clusterv1.Machine)) {
	deleted := metav1.NewTime(s.now)
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1", DeletionTimestamp: &deleted}}
	change(machine)
	s.store(&s.Management, machineKeys+"default/n1", machine)
}

func (s *story) storeMaintenance(stage v1alpha1.NodeMaintenanceStage) {
	s.store(&s.Workload, maintenanceKeys+"m", &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: "default/n1"}},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("n1"), Stage: stage},
	})
}

func (s *story) storeRule(app string, behavior clusterv1.MachineDrainRuleDrainBehavior, order *int32) {
	s.store(&s.Management, ruleKeys+"default/"+app, &clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app},
		Spec: clusterv1.MachineDrainRuleSpec{
			Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: behavior, Order: order},
			Pods:  []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
		},
	})
}

// storeBudget stores the budget of an app, with the Pods that it has counted as disrupted.
func (s *story) storeBudget(name, app string, allowed int32, disrupted ...string) {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, DisruptedPods: map[string]metav1.Time{}},
	}
	for _, pod := range disrupted {
		budget.Status.DisruptedPods[pod] = metav1.NewTime(s.now)
	}
	s.store(&s.Workload, budgetKeys+"default/"+name, budget)
}

// storePod stores a running Pod of an app with its name, whose UID is uid-<name>.
func (s *story) storePod(name string, changes ...func(*corev1.Pod)) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, change := range changes {
		change(pod)
	}
	s.store(&s.Workload, podKeys+"default/"+name, pod)
}

func (s *story) request(side *Side, event controlplane.Event) {
	s.now = s.now.Add(time.Second)
	event.Requested, event.Answered = s.now, s.now.Add(100*time.Millisecond)
	if event.UserAgent == "" {
		event.UserAgent = fleet.ManagerAgent
	}
	side.Audit = append(side.Audit, event)
}

// evict has our manager evict a Pod, with a UID as precondition. The Pod begins to terminate.
func (s *story) evict(name, uid string) {
	s.requestEviction(name, uid, fleet.ManagerAgent)
	s.terminate(name)
}

// terminate stores the last version of a Pod with a deletionTimestamp.
func (s *story) terminate(name string) {
	for _, version := range slices.Backward(s.Workload.Versions) {
		if version.Key == podKeys+"default/"+name {
			pod := version.Object.(*corev1.Pod).DeepCopy()
			terminating(pod)
			s.store(&s.Workload, version.Key, pod)
			return
		}
	}
}

func (s *story) requestEviction(name, uid, agent string) {
	body := fmt.Appendf(nil, `{"deleteOptions":{"preconditions":{"uid":%q}}}`, uid)
	s.request(&s.Workload, controlplane.Event{UserAgent: agent, Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "default", Name: name, Code: 201, RequestObject: body})
}

func (s *story) delete(name string) {
	body := fmt.Appendf(nil, `{"preconditions":{"uid":"uid-%s"}}`, name)
	s.request(&s.Workload, controlplane.Event{Verb: "delete", Resource: "pods", Namespace: "default", Name: name, Code: 200, RequestObject: body})
	s.terminate(name)
}

// storeAttachment stores the attachment of a PersistentVolume to the Node.
func (s *story) storeAttachment() {
	attachment := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(volumeOf("default", "v"))}}}
	s.store(&s.Workload, attachmentKeys+"v", attachment)
}

func (s *story) releaseHook() {
	s.requestRelease()
	s.now = s.now.Add(appearance)
	s.storeMachine(func(*clusterv1.Machine) {})
	s.store(&s.Workload, "/registry/configmaps/later", nil)
}

func (s *story) requestRelease() {
	body, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.PreDrainHookAnnotation: nil}}})
	s.request(&s.Management, controlplane.Event{Verb: "patch", Resource: "machines", Group: clusterv1.GroupVersion.Group, Namespace: "default", Name: "n1", Code: 200, RequestObject: body})
}

func (s *story) removePod(name string) { s.store(&s.Workload, podKeys+"default/"+name, nil) }

func (s *story) storeDeployment(replicas int32, surging bool) {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	if surging {
		deployment.Annotations = map[string]string{v1alpha1.SurgeAnnotation: "{}"}
	}
	s.store(&s.Workload, deploymentKeys+"default/web", deployment)
}

// terminating marks a Pod as deleted, with a grace period that has elapsed.
func terminating(pod *corev1.Pod) {
	pod.DeletionTimestamp = ptr.To(metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
}

func unreachable(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
}

func unready(pod *corev1.Pod) { pod.Status.Conditions = nil }

func completed(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }

func labelled(value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = value }
}

func controlledBy(kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Controller: ptr.To(true)}}
	}
}

func cordoned(recorded bool) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Unschedulable = true
		if recorded {
			node.Annotations[v1alpha1.NodeOriginAnnotation] = "schedulable"
		}
	}
}

// TestInvariants has histories that violate an invariant, and similar ones that do not.
func TestInvariants(t *testing.T) {
	for _, tc := range []struct {
		name     string
		happens  func(*story)
		violated func(*History) []string
	}{
		{"a Pod is evicted", func(s *story) { s.storePod("a"); s.evict("a", "uid-a") }, nil},
		{"an eviction has no UID", func(s *story) { s.storePod("a"); s.evict("a", "") }, removalsNameTheUID},
		{"a request that was cut off has no UID", func(s *story) {
			s.storePod("a")
			s.request(&s.Workload, controlplane.Event{Verb: "create", Resource: "pods", Subresource: "eviction", Name: "a", Message: "client disconnected"})
		}, nil},

		{"the same manager evicts a Pod twice", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.evict("a", "uid-a")
		}, evictedOnce},
		{"a manager repeats the eviction of its killed predecessor", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.Managers = append(s.Managers, s.now.Add(500*time.Millisecond))
			s.evict("a", "uid-a")
		}, nil},
		{"a manager repeats the eviction of its killed predecessor much later", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.Managers = append(s.Managers, s.now.Add(500*time.Millisecond))
			s.now = s.now.Add(handover)
			s.evict("a", "uid-a")
		}, evictedOnce},
		{"a Pod is evicted that has terminated for long", func(s *story) {
			s.storePod("a", terminating)
			s.now = s.now.Add(lag)
			s.evict("a", "uid-a")
		}, evictedOnce},
		{"a Pod with the same name is evicted", func(s *story) {
			s.storePod("a")
			s.evict("a", "uid-a")
			s.removePod("a")
			again := func(pod *corev1.Pod) { pod.UID = "uid-again" }
			s.storePod("a", again)
			s.evict("a", "uid-again")
		}, nil},

		{"a Pod is evicted from a Node that is only cordoned", func(s *story) {
			s.storeMaintenance(v1alpha1.StageCordon)
			s.now = s.now.Add(lag)
			s.storePod("a")
			s.evict("a", "uid-a")
		}, evictedInStageDrain},
		{"a Pod is evicted just after its maintenance completed", func(s *story) {
			s.storePod("a")
			s.storeMaintenance(v1alpha1.StageComplete)
			s.evict("a", "uid-a")
		}, nil},
		{"a Pod is evicted from another Node", func(s *story) {
			s.storePod("a", func(pod *corev1.Pod) { pod.Spec.NodeName = "n2" })
			s.evict("a", "uid-a")
		}, evictedInStageDrain},

		{"a Pod is evicted that its label skips", func(s *story) { s.storePod("a", labelled("Skip")); s.evict("a", "uid-a") }, protectedStay},
		{"a Pod is deleted that its label waits for", func(s *story) { s.storePod("a", labelled("wait-completed")); s.delete("a") }, protectedStay},
		{"a Pod of a DaemonSet is evicted", func(s *story) { s.storePod("a", controlledBy("DaemonSet")); s.evict("a", "uid-a") }, protectedStay},
		{"a Pod of a DaemonSet is deleted by a policy that drains them", func(s *story) {
			s.DaemonSetPods = true
			s.storePod("a", controlledBy("DaemonSet"))
			s.delete("a")
		}, nil},
		{"a Pod is evicted that a rule skips", func(s *story) {
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
			s.storePod("a")
			s.now = s.now.Add(lag)
			s.evict("a", "uid-a")
		}, protectedStay},
		{"a Pod is evicted that a new rule skips", func(s *story) {
			s.storePod("a")
			s.now = s.now.Add(lag / 2)
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
			s.evict("a", "uid-a")
		}, nil},
		{"a Pod is evicted that an edited rule has skipped for long", func(s *story) {
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorDrain, nil)
			s.storePod("a")
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted, nil)
			s.now = s.now.Add(lag)
			s.evict("a", "uid-a")
		}, protectedStay},

		{"a budget grants the disruption", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.storeBudget("b", "a", 0, "a")
			s.evict("a", "uid-a")
		}, nil},
		{"a budget does not grant the disruption", func(s *story) { s.storePod("a"); s.storeBudget("b", "a", 0); s.evict("a", "uid-a") }, budgetsRespected},
		{"a budget counts a disruption that it does not allow", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.storeBudget("b", "a", 0, "a")
			s.evict("a", "uid-a")
		}, budgetsRespected},
		{"two budgets select the Pod", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.storeBudget("c", "a", 1)
			s.evict("a", "uid-a")
		}, budgetsRespected},
		{"an unready Pod is evicted", func(s *story) { s.storePod("a", unready); s.storeBudget("b", "a", 0); s.evict("a", "uid-a") }, nil},
		{"a Pod is deleted in spite of its budget", func(s *story) { s.storePod("a"); s.storeBudget("b", "a", 1); s.delete("a") }, budgetsRespected},
		{"a Pod is deleted before the drain timeout", func(s *story) {
			s.withTimeout(60)
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.delete("a")
		}, nil},
		{"a Pod is deleted before the drain timeout while it is evicted", func(s *story) {
			s.withTimeout(60)
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.delete("a")
			s.storeBudget("b", "a", 0, "a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.removePod("a")
		}, nil},
		{"a Pod is deleted long before the drain timeout", func(s *story) {
			s.withTimeout(600)
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.delete("a")
		}, budgetsRespected},
		{"a Pod that the drain waits for is deleted before the drain timeout", func(s *story) {
			s.withTimeout(60)
			s.storePod("a", labelled("wait-completed"))
			s.delete("a")
		}, nil},
		{"a Pod that the drain skips is deleted before the drain timeout", func(s *story) {
			s.withTimeout(60)
			s.storePod("a", labelled("skip"))
			s.delete("a")
		}, protectedStay},
		{"an eviction that was cut off is repeated", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 2)
			s.storeBudget("b", "a", 1, "a")
			s.storeBudget("b", "a", 0, "a")
			s.evict("a", "uid-a")
		}, nil},

		{"a Pod is evicted before a Pod with a lower drain order is gone", func(s *story) {
			lowAndHigh(s)
			s.evict("low", "uid-low")
			s.evict("high", "uid-high")
		}, orderRespected},
		{"a Pod is evicted after the Pods with a lower drain order are gone", func(s *story) {
			lowAndHigh(s)
			s.evict("low", "uid-low")
			s.removePod("low")
			s.evict("high", "uid-high")
		}, nil},
		{"a Pod is evicted although a Pod with a lower drain order has appeared", func(s *story) {
			lowAndHigh(s)
			s.removePod("low")
			s.storePod("low", func(pod *corev1.Pod) { pod.UID = "uid-low-again" })
			s.evict("high", "uid-high")
		}, nil},
		{"a Pod is evicted while a Pod with a lower drain order terminates on the unreachable Node", func(s *story) {
			lowAndHigh(s)
			s.storeNode(unreachable)
			s.evict("low", "uid-low")
			s.evict("high", "uid-high")
		}, nil},
		{"the final eviction attempt disregards the order", func(s *story) {
			s.storeMachine(func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60) })
			lowAndHigh(s)
			s.evict("high", "uid-high")
		}, nil},

		{"the hook is removed while a Pod runs", func(s *story) { s.storePod("a"); s.now = s.now.Add(lag); s.releaseHook() }, hookHeld},
		{"the hook is removed immediately after the deletion, while a Pod runs", func(s *story) {
			s.storeMachine(func(m *clusterv1.Machine) { m.DeletionTimestamp = nil })
			s.storePod("a")
			s.now = s.now.Add(lag)
			s.requestRelease()
			s.now = s.now.Add(-150 * time.Millisecond) // stored before the request has its response
			s.storeMachine(func(*clusterv1.Machine) {})
			s.removePod("a")
		}, hookHeld},
		{"the hook is removed while a Pod terminates", func(s *story) {
			s.storePod("a")
			s.evict("a", "uid-a")
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, hookHeld},
		{"the hook is removed while a Pod of an unreachable Node terminates", func(s *story) {
			s.storeNode(unreachable)
			s.storePod("a")
			s.evict("a", "uid-a")
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, nil},
		{"the hook is removed while a Pod of a deleted Node is there", func(s *story) {
			s.storePod("a")
			s.store(&s.Workload, nodeKeys+"n1", nil)
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, nil},
		{"the hook is removed while a Pod of an unreachable Node terminates in its grace period", func(s *story) {
			s.storeNode(unreachable)
			s.storePod("a", func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(time.Hour))) })
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, hookHeld},
		{"the hook is removed while a Pod runs that is waited for", func(s *story) {
			s.storePod("a", labelled("wait-completed"))
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, hookHeld},
		{"the hook is removed while only completed and skipped Pods are there", func(s *story) {
			s.storePod("a", labelled("skip"))
			s.storePod("b", completed)
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, nil},
		{"the hook is removed after the drain timeout", func(s *story) {
			s.storeMachine(func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](20) })
			s.storePod("a")
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, nil},
		{"the hook is removed before the drain timeout", func(s *story) {
			s.storeMachine(func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60) })
			s.storePod("a")
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, hookHeld},

		{"the hook is removed while a volume is attached", func(s *story) { s.storeAttachment(); s.now = s.now.Add(lag); s.releaseHook() }, volumesDetached},
		{"the hook is removed after the volume is detached", func(s *story) {
			s.storeAttachment()
			s.store(&s.Workload, attachmentKeys+"v", nil)
			s.releaseHook()
		}, nil},
		{"the hook is removed while the volume of a Pod that is skipped is attached", func(s *story) {
			s.storePod("a", labelled("skip"), func(pod *corev1.Pod) { storage.Mount(&pod.Spec, "v") })
			s.storeAttachment()
			s.now = s.now.Add(lag)
			s.releaseHook()
		}, nil},

		{"Cluster API evicts", func(s *story) { s.storePod("a"); s.requestEviction("a", "uid-a", fleet.CoreAgent) }, coreDoesNotEvict},
		{"Cluster API evicts after a user removed the hook", func(s *story) {
			s.Unhooked["n1"] = true
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.CoreAgent)
		}, nil},

		{"a Node is restored", func(s *story) { s.storeNode(cordoned(true)); s.storeNode(func(*corev1.Node) {}) }, nil},
		{"a Node is left cordoned", func(s *story) { s.storeNode(cordoned(true)); s.storeNode(cordoned(false)) }, nodesRestored},
		{"a Node is uncordoned that a user had cordoned", func(s *story) {
			s.storeNode(cordoned(false))
			s.storeNode(cordoned(true))
			s.storeNode(func(*corev1.Node) {})
		}, nodesRestored},

		{"a surge is restored", func(s *story) { s.storeDeployment(1, false); s.storeDeployment(2, true); s.storeDeployment(1, false) }, nil},
		{"a surge is not restored", func(s *story) { s.storeDeployment(1, false); s.storeDeployment(2, true); s.storeDeployment(2, false) }, surgesRestored},
		{"a surge is restored twice", func(s *story) {
			s.storeDeployment(2, false)
			s.storeDeployment(3, true)
			s.storeDeployment(2, false)
			s.storeDeployment(1, false)
		}, surgesRestored},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStory()
			tc.happens(s)
			for _, each := range invariants {
				violations := each.check(&s.History)
				if tc.violated != nil && fmt.Sprintf("%p", each.check) == fmt.Sprintf("%p", tc.violated) {
					g.Expect(violations).NotTo(BeEmpty(), each.name)
					continue
				}
				g.Expect(violations).To(BeEmpty(), each.name)
			}
		})
	}
}

// withTimeout gives the Machine a drain timeout, whose half is over if it is a minute, before which Pods are deleted.
func (s *story) withTimeout(seconds int32) {
	s.DeletesOnTimeout = true
	s.storeMachine(func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = &seconds })
	s.now = s.now.Add(30 * time.Second)
}

// lowAndHigh has a Pod with drain order 1 and one with drain order 2 on the Node when its drain begins.
func lowAndHigh(s *story) {
	s.storeRule("low", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](1))
	s.storeRule("high", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](2))
	s.storePod("low")
	s.storePod("high")
	s.now = s.now.Add(lag)
	s.Workload.Versions = slices.DeleteFunc(s.Workload.Versions, func(v Version) bool { return v.Key == maintenanceKeys+"m" })
	s.storeMaintenance(v1alpha1.StageDrain)
	s.now = s.now.Add(time.Minute)
}

func TestLeftovers(t *testing.T) {
	g := NewWithT(t)
	annotated := func(key string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: ""}}}
	}
	for _, object := range []client.Object{
		&v1alpha1.NodeMaintenance{}, &v1alpha1.Evacuation{}, annotated(v1alpha1.NodeOriginAnnotation), annotated(v1alpha1.ExcludedFromLoadBalancersAnnotation),
		&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.NoDaemonSetPodsTaint}}}},
		&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance}}}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.SurgingLabel: ""}}},
	} {
		g.Expect(Leftovers([]Version{{Object: object}})).To(HaveLen(1))
	}
	g.Expect(Leftovers([]Version{{Object: &corev1.Node{}}, {Object: &corev1.Pod{}}, {}})).To(BeEmpty())
}

func TestExcuse(t *testing.T) {
	g := NewWithT(t)
	blocked := &metav1.Condition{Message: "PodDisruptionBudget ns/never allows no disruption"}
	g.Expect(Excuse(blocked, []string{"ns/never"})).NotTo(BeEmpty())
	g.Expect(Excuse(blocked, []string{"ns/other"})).To(BeEmpty())
	g.Expect(Excuse(nil, []string{"ns/never"})).To(BeEmpty())
}

func TestShrink(t *testing.T) {
	g := NewWithT(t)
	var s Schedule
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		s.Faults = append(s.Faults, Step{Fault: name})
	}
	runs := 0
	needs := func(names ...string) func(Schedule) bool {
		return func(s Schedule) bool {
			runs++
			return len(s.Keep(names...).Faults) == len(names)
		}
	}
	g.Expect(s.Shrink(20, needs("b", "f"))).To(Equal(s.Keep("b", "f")))
	g.Expect(s.Shrink(20, needs())).To(Equal(s.Keep()))
	runs = 0
	g.Expect(s.Shrink(3, needs("b")).Faults).To(HaveLen(4))
	g.Expect(runs).To(BeNumerically("<=", 3))
	g.Expect(s.Shrink(0, needs())).To(Equal(s))
}

func TestScheduleFollowsFromItsSeed(t *testing.T) {
	g := NewWithT(t)
	table := faults()
	g.Expect(NewSchedule(7, table).String()).To(Equal(NewSchedule(7, table).String()))
	g.Expect(NewSchedule(7, table).String()).NotTo(Equal(NewSchedule(8, table).String()))
	for seed := range uint64(200) {
		for _, step := range NewSchedule(seed, table).Faults {
			g.Expect(step.At + step.For).To(BeNumerically("<=", faultWindow))
		}
	}
}
