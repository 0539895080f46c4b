package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// The vocabulary of tests of stages: Nodes without Machines, Pods that are bound to them, and NodeMaintenances that an administrator of
// the workload cluster writes.

// evacuatorClass is the class of an evacuator that does not exist. A Pod with this class has an Evacuation and stays until the test deletes
// it.
const evacuatorClass = "evacuator.test"

// withNodes adds Nodes without Machines. A label can follow the name: "one pool=a".
func (s *scene) withNodes(nodes ...string) {
	s.Helper()
	for _, node := range nodes {
		name, label, labelled := strings.Cut(node, " ")
		object := controlplane.NewNode(name)
		object.Labels[stageNode] = ""
		if labelled {
			key, value, _ := strings.Cut(label, "=")
			object.Labels[key] = value
		}
		s.create(s.workload.Client, object)
	}
	for _, node := range nodes {
		name, _, _ := strings.Cut(node, " ")
		s.Eventually(func() bool { return isInitialized(s.node(name)) }, eventually, pace).Should(BeTrue())
	}
}

// relabel sets a label of a Node, or removes it if the value is empty.
func (s *scene) relabel(node, key, value string) {
	s.Helper()
	object := s.node(node)
	before := object.DeepCopy()
	if delete(object.Labels, key); value != "" {
		object.Labels[key] = value
	}
	s.Expect(s.workload.Client.Patch(s.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// bare returns a Pod without a controller that is bound to a Node.
func bare(name, node string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metaNamed(name, name), Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	pod.Annotations = map[string]string{}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// withEvacuator adds the evacuator that does not exist to a Pod.
func withEvacuator(pod *corev1.Pod) {
	pod.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+evacuatorClass] = "5000"
}

func priority(value int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.PriorityClassName = fmt.Sprintf("p%d", value) }
}

func (s *scene) withPriorities(values ...int32) {
	s.Helper()
	for _, value := range values {
		s.create(s.workload.Client, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", value)}, Value: value})
	}
}

// run creates Pods and waits until they run.
func (s *scene) run(pods ...*corev1.Pod) {
	s.Helper()
	for _, pod := range pods {
		s.create(s.workload.Client, pod)
	}
	for _, pod := range pods {
		changed := time.Now()
		s.Eventually(func() corev1.PodPhase {
			present := s.pod(pod.Name)
			if present.Status.Phase == corev1.PodPending && time.Since(changed) > startInterval {
				changed = time.Now()
				s.annotate(present, "capnm.test/changed", changed.Format(time.RFC3339))
			}
			return present.Status.Phase
		}, eventually, pace).Should(Equal(corev1.PodRunning))
	}
}

// startInterval is how often a Pod that does not start is changed: kwok v0.8.0 drops the event of a Pod while its cache does not contain
// the lease of the Node yet, after an outage of the API server for example, and waits for the next event.
const startInterval = 10 * time.Second

// annotate sets an annotation of a Pod.
func (s *scene) annotate(pod *corev1.Pod, key, value string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	s.Expect(s.workload.Client.Patch(s.Context(), pod, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

func (s *scene) pod(name string) *corev1.Pod {
	s.Helper()
	return read(s, s.workload.Client, keyOf(name), &corev1.Pod{})
}

// deletePods deletes Pods, as evacuators do, and waits until they are deleted.
func (s *scene) deletePods(names ...string) {
	s.Helper()
	for _, name := range names {
		s.Expect(s.workload.Client.Delete(s.Context(), bare(name, ""))).To(Succeed())
	}
	for _, name := range names {
		s.Eventually(func() error { return s.workload.Client.Get(s.Context(), keyOf(name), &corev1.Pod{}) }, soon, pace).Should(Satisfy(apierrors.IsNotFound))
	}
}

// nm returns a NodeMaintenance in a stage.
func nm(name string, stage v1alpha1.NodeMaintenanceStage, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	return maintenance(name, append([]func(*v1alpha1.NodeMaintenance){func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = stage }}, changes...)...)
}

// upTo sets a drain plan for Pods of the type Default.
func upTo(priorities ...int32) func(*v1alpha1.NodeMaintenance) {
	entries := make([]v1alpha1.DrainPlanEntry, 0, len(priorities))
	for _, p := range priorities {
		entries = append(entries, entry(v1alpha1.PodTypeDefault, p))
	}
	return planned(entries...)
}

// maintain creates a NodeMaintenance and waits until the manager has observed it.
func (s *scene) maintain(m *v1alpha1.NodeMaintenance) {
	s.Helper()
	s.create(s.workload.Client, m)
	s.expectObserved(m.Name)
}

// setStage sets the stage and waits until the manager has observed it.
func (s *scene) setStage(name string, stage v1alpha1.NodeMaintenanceStage) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"stage":%q}}`, stage)
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance(name), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	s.expectObserved(name)
}

func (s *scene) expectObserved(name string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		m := s.stored(name)
		g.Expect(m.Status.ObservedGeneration).To(Equal(m.Generation))
	}, soon, pace).Should(Succeed())
}

func (s *scene) stored(name string) *v1alpha1.NodeMaintenance {
	s.Helper()
	return read(s, s.workload.Client, client.ObjectKey{Name: name}, &v1alpha1.NodeMaintenance{})
}

// deleteMaintenances deletes NodeMaintenances and waits until they are deleted.
func (s *scene) deleteMaintenances(names ...string) {
	s.Helper()
	for _, name := range names {
		s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), maintenance(name)))).To(Succeed())
	}
	for _, name := range names {
		s.Eventually(func() error {
			return s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, &v1alpha1.NodeMaintenance{})
		}, soon, pace).Should(Satisfy(apierrors.IsNotFound), "NodeMaintenance %s", name)
	}
}

// evacuation returns the Evacuation of a Pod, or nil.
func (s *scene) evacuation(pod *corev1.Pod) *v1alpha1.Evacuation {
	s.Helper()
	e := &v1alpha1.Evacuation{}
	err := s.workload.Client.Get(s.Context(), evacuationKey(pod), e)
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.Expect(err).NotTo(HaveOccurred())
	return e
}

// existing returns the Evacuation of a Pod that must have one.
func (s *scene) existing(pod *corev1.Pod) *v1alpha1.Evacuation {
	s.Helper()
	e := s.evacuation(pod)
	s.Expect(e).NotTo(BeNil(), "Pod %s has no Evacuation", pod.Name)
	return e
}

// activeClass returns the class of a Pod's active evacuator, or "".
func (s *scene) activeClass(pod *corev1.Pod) string {
	s.Helper()
	if e := s.evacuation(pod); e != nil {
		return ptr.Deref(e.Status.ActiveEvacuatorClass, "")
	}
	return ""
}

// targets returns the names of the given Pods whose Evacuations NodeMaintenances request.
func (s *scene) targets(pods ...*corev1.Pod) []string {
	s.Helper()
	asked := []string{}
	for _, pod := range pods {
		if e := s.evacuation(pod); e != nil && evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			asked = append(asked, pod.Name)
		}
	}
	return asked
}

// expectTargets waits until NodeMaintenances request the Evacuations of the first n Pods and of no other.
func (s *scene) expectTargets(n int, pods ...*corev1.Pod) {
	s.Helper()
	want := []string{}
	for _, pod := range pods[:n] {
		want = append(want, pod.Name)
	}
	s.Eventually(func() []string { return s.targets(pods...) }, soon, pace).Should(ConsistOf(want))
}

// setFinalizers replaces the finalizers of a Pod's Evacuation.
func (s *scene) setFinalizers(pod *corev1.Pod, finalizers ...string) {
	s.Helper()
	s.Eventually(func() error {
		e := s.evacuation(pod)
		if e == nil {
			return nil
		}
		e.Finalizers = finalizers
		return client.IgnoreNotFound(s.workload.Client.Update(s.Context(), e))
	}, soon, pace).Should(Succeed())
}

func labelSelector(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// expectCordoned waits until a NodeMaintenance has cordoned the Nodes.
func (s *scene) expectCordoned(nodes ...string) {
	s.Helper()
	for _, node := range nodes {
		s.Eventually(func(g Gomega) {
			g.Expect(s.node(node).Spec.Unschedulable).To(BeTrue(), node)
			g.Expect(s.node(node).Annotations).To(HaveKey(v1alpha1.NodeOriginAnnotation), node)
		}, soon, pace).Should(Succeed())
	}
}

// expectReleased waits until the Nodes are schedulable and have no annotation, label or taint of a NodeMaintenance.
func (s *scene) expectReleased(nodes ...string) {
	s.Helper()
	for _, node := range nodes {
		s.Eventually(func(g Gomega) {
			g.Expect(s.node(node).Spec.Unschedulable).To(BeFalse(), node)
			g.Expect(s.node(node).Annotations).NotTo(HaveKey(v1alpha1.NodeOriginAnnotation), node)
		}, soon, pace).Should(Succeed())
	}
}

// expectMessages waits for drain messages, each "maintenance/node: message".
func (s *scene) expectMessages(messages ...string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		for _, expected := range messages {
			where, message, _ := strings.Cut(expected, ": ")
			name, node, _ := strings.Cut(where, "/")
			g.Expect(s.nodeStatus(name, node).DrainMessage).To(Equal(message), where)
		}
	}, soon, pace).Should(Succeed())
}

func (s *scene) nodeStatus(name, node string) v1alpha1.NodeMaintenanceNodeStatus {
	s.Helper()
	for _, status := range s.stored(name).Status.NodeStatuses {
		if status.NodeRef.Name == node {
			return status
		}
	}
	return v1alpha1.NodeMaintenanceNodeStatus{}
}

// rows returns the published drain targets of a Node, each "priority" or "priority/app".
func (s *scene) rows(name, node string) []string {
	s.Helper()
	status, rows := s.nodeStatus(name, node), []string{}
	targets := status.DrainTargets
	if i := status.DrainTargetsIndex; i != nil {
		targets = s.stored(name).Status.DrainTargetSets[*i].DrainTargets
	}
	for _, row := range targets {
		text := fmt.Sprint(row.PodPriority)
		if row.PodSelector != nil {
			text += "/" + row.PodSelector.MatchLabels["app"]
		}
		rows = append(rows, text)
	}
	return rows
}

// drained returns status and reason of the condition Drained: "True Drained".
func (s *scene) drained(name string) string {
	s.Helper()
	condition := ptr.Deref(meta.FindStatusCondition(s.stored(name).Status.Conditions, v1alpha1.NodeMaintenanceDrained), metav1.Condition{})
	return string(condition.Status) + " " + condition.Reason
}

// expectEvents waits until the events about a NodeMaintenance with a reason have these messages, each once.
func (s *scene) expectEvents(name, reason string, messages ...string) {
	s.Helper()
	s.Eventually(func() []string {
		said := []string{}
		for _, event := range s.eventsAbout(name, reason) {
			said = append(said, event.Message)
		}
		return said
	}, soon, pace).Should(ConsistOf(messages))
}

// ours returns the requests of our manager since the scene began.
func (s *scene) ours() controlplane.Events {
	s.Helper()
	return s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Succeeded()
}

// nodeWrites returns our writes of a Node, without those of its status.
func (s *scene) nodeWrites(node string) controlplane.Events {
	s.Helper()
	return s.ours().Resource("nodes").Named("", node)
}

// removesFinalizer matches writes after which an object does not have a finalizer.
func removesFinalizer(finalizer string) func(controlplane.Event) bool {
	return func(event controlplane.Event) bool {
		var patch struct {
			Metadata map[string]json.RawMessage `json:"metadata"`
		}
		if json.Unmarshal(event.RequestObject, &patch) != nil {
			return false
		}
		finalizers, patched := patch.Metadata["finalizers"]
		return patched && !strings.Contains(string(finalizers), finalizer)
	}
}

// contains matches requests whose body contains a text.
func contains(text string) func(controlplane.Event) bool {
	return func(event controlplane.Event) bool { return strings.Contains(string(event.RequestObject), text) }
}

// expectOrder checks that each request was answered before the next one was sent.
func (s *scene) expectOrder(events ...controlplane.Event) {
	s.Helper()
	s.Expect(slices.IsSortedFunc(events, func(a, b controlplane.Event) int { return a.Requested.Compare(b.Requested) })).
		To(BeTrue(), "%s", controlplane.Events(events))
	for i := range events[1:] {
		s.Expect(events[i].Answered).To(BeTemporally("<=", events[i+1].Requested), "%s before %s", events[i], events[i+1])
	}
}

// first returns the first of the requests, of which there must be one.
func (s *scene) first(events controlplane.Events) controlplane.Event {
	s.Helper()
	s.Expect(events).NotTo(BeEmpty())
	return events[0]
}
