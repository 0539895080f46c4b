package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
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
)

// happening is a story with the invariant that it violates, nil if it violates none.
type happening struct {
	name     string
	happens  func(*story)
	violated func(*History) []string
}

// expectViolations checks all invariants of each story.
func expectViolations(t *testing.T, happenings []happening) {
	t.Helper()
	for _, tc := range happenings {
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

// story builds a history, one second for each thing that happens. In the beginning, Node n1 of Machine n1 has been drained for a minute.
type story struct {
	History
	now      time.Time
	revision int64
}

func newStory() *story {
	s := &story{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), History: History{Namespace: "default", Replicas: 1, Unhooked: map[string]bool{}}}
	s.storeNode()
	s.storeMachine()
	s.storeMaintenance(v1alpha1.StageDrain)
	s.now = s.now.Add(time.Minute)
	return s
}

// later lets time pass.
func (s *story) later(d time.Duration) *story {
	s.now = s.now.Add(d)
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

func (s *story) storeNode(changes ...func(*corev1.Node)) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{}}}
	for _, change := range changes {
		change(node)
	}
	s.store(&s.Workload, nodeKeys+node.Name, node)
}

func (s *story) storeCluster(paused bool, changes ...func(*clusterv1.Cluster)) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: clusterName}, Spec: clusterv1.ClusterSpec{Paused: &paused}}
	for _, change := range changes {
		change(cluster)
	}
	s.store(&s.Management, clusterKeys+"default/"+clusterName, cluster)
}

// storeMachine stores Machine n1, with changes of its last version. It was deleted when it was first stored.
func (s *story) storeMachine(changes ...func(*clusterv1.Machine)) {
	s.storeNamedMachine("n1", changes...)
}

func (s *story) storeNamedMachine(name string, changes ...func(*clusterv1.Machine)) {
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, DeletionTimestamp: ptr.To(metav1.NewTime(s.now)), Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: ""},
	}}
	for _, version := range s.Management.Versions {
		if last, ok := version.Object.(*clusterv1.Machine); ok && last.Name == name {
			machine = last.DeepCopy()
		}
	}
	for _, change := range changes {
		change(machine)
	}
	s.store(&s.Management, machineKeys+"default/"+name, machine)
}

func (s *story) storeMaintenance(stage v1alpha1.NodeMaintenanceStage, changes ...func(*v1alpha1.NodeMaintenance)) {
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: "default/n1"}},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("n1"), Stage: stage},
		Status:     v1alpha1.NodeMaintenanceStatus{StageStatuses: []v1alpha1.StageStatus{{Name: stage}}},
	}
	for _, change := range changes {
		change(m)
	}
	s.store(&s.Workload, maintenanceKeys+m.Name, m)
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
	s.request(&s.Workload, controlplane.Event{
		UserAgent: agent, Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "default", Name: name, Code: 201, RequestObject: body,
	})
}

// refuseEviction has our manager request an eviction that the API server refuses.
func (s *story) refuseEviction(name string) {
	s.requestEviction(name, "uid-"+name, fleet.ManagerAgent)
	s.Workload.Audit[len(s.Workload.Audit)-1].Code = http.StatusInternalServerError
}

func (s *story) delete(name string) {
	body := fmt.Appendf(nil, `{"preconditions":{"uid":"uid-%s"}}`, name)
	s.request(&s.Workload, controlplane.Event{Verb: "delete", Resource: "pods", Namespace: "default", Name: name, Code: 200, RequestObject: body})
	s.terminate(name)
}

// storeAttachment stores the attachment of a PersistentVolume to the Node.
func (s *story) storeAttachment() {
	attachment := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{
		NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(volumeOf("default", "v"))},
	}}
	s.store(&s.Workload, attachmentKeys+"v", attachment)
}

func (s *story) releaseHook() { s.releaseHookOf("n1") }

func (s *story) releaseHookOf(machine string) {
	body, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.PreDrainHookAnnotation: nil}}})
	s.request(&s.Management, controlplane.Event{
		Verb: "patch", Resource: "machines", Group: clusterv1.GroupVersion.Group, Namespace: "default", Name: machine, Code: 200, RequestObject: body,
	})
	s.storeNamedMachine(machine, unhooked)
	s.now = s.now.Add(appearance)
	s.store(&s.Workload, "/registry/configmaps/later", nil)
}

// timeOut releases the hook after the condition has named a wait that has timed out.
func (s *story) timeOut(machine, waitedFor string) {
	s.storeNamedMachine(machine, func(m *clusterv1.Machine) {
		m.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonTimedOut, Message: "The drain exceeded nodeDrainTimeoutSeconds: " + waitedFor,
		}}
	})
	s.releaseHookOf(machine)
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

func unhooked(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.PreDrainHookAnnotation) }

// hooked adds or removes a pre-drain hook of another owner.
func hooked(is bool) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		delete(m.Annotations, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other")
		if is {
			m.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other"] = ""
		}
	}
}

// timeout sets the drain timeout, and that for volumes.
func timeout(seconds int32) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Spec.Deletion.NodeDrainTimeoutSeconds, m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = &seconds, &seconds
	}
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
