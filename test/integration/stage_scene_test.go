package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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

// What a test of stages says: Nodes without Machines, Pods that are bound to them, and NodeMaintenances that an administrator
// of the workload cluster writes.

// evacuatorClass is an evacuator that isn't there, so that a Pod of its class is asked to leave and stays until the test
// has it go.
const evacuatorClass = "evacuator.test"

// withNodes adds Nodes that no Machine stands for. Names may be followed by a label: "one pool=a".
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
		s.Eventually(func() bool { return isReady(s.node(name)) }, eventually, pace).Should(BeTrue())
	}
}

// relabel sets a Node's label, or takes it away where the value is empty.
func (s *scene) relabel(node, key, value string) {
	s.Helper()
	object := s.node(node)
	before := object.DeepCopy()
	if delete(object.Labels, key); value != "" {
		object.Labels[key] = value
	}
	s.Expect(s.workload.Client.Patch(s.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// bare is a Pod without a controller, bound to a Node.
func bare(name, node string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metaNamed(name, name), Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	pod.Annotations = map[string]string{}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// held has the Pod wait for an evacuator.
func held(pod *corev1.Pod) {
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
		s.Eventually(func() corev1.PodPhase { return s.pod(pod.Name).Status.Phase }, eventually, pace).Should(Equal(corev1.PodRunning))
	}
}

// annotate sets an annotation of a Pod, as its owner may.
func (s *scene) annotate(pod *corev1.Pod, key, value string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	s.Expect(s.workload.Client.Patch(s.Context(), pod, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

func (s *scene) pod(name string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{}
	s.Expect(s.workload.Client.Get(s.Context(), keyOf(name), pod)).To(Succeed())
	return pod
}

// goes has Pods deleted, as their evacuators would, and waits until they are gone.
func (s *scene) goes(names ...string) {
	s.Helper()
	for _, name := range names {
		s.Expect(s.workload.Client.Delete(s.Context(), bare(name, ""))).To(Succeed())
	}
	for _, name := range names {
		s.Eventually(func() error { return s.workload.Client.Get(s.Context(), keyOf(name), &corev1.Pod{}) }, soon, pace).Should(Satisfy(apierrors.IsNotFound))
	}
}

// nm is a NodeMaintenance in a stage.
func nm(name string, stage v1alpha1.NodeMaintenanceStage, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	return maintenance(name, append([]func(*v1alpha1.NodeMaintenance){func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = stage }}, changes...)...)
}

func of(nodes ...string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes(nodes...) }
}

func ofLabelled(key, value string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Spec.NodeSelector = v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
			MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}
	}
}

// upTo is a plan of Pods of the type Default.
func upTo(priorities ...int32) func(*v1alpha1.NodeMaintenance) {
	entries := make([]v1alpha1.DrainPlanEntry, 0, len(priorities))
	for _, p := range priorities {
		entries = append(entries, entry(v1alpha1.PodTypeDefault, p))
	}
	return planned(entries...)
}

// maintain creates a NodeMaintenance and waits until it is observed.
func (s *scene) maintain(m *v1alpha1.NodeMaintenance) {
	s.Helper()
	s.create(s.workload.Client, m)
	s.expectObserved(m.Name)
}

// to sets the stage, and waits until that is observed.
func (s *scene) to(name string, stage v1alpha1.NodeMaintenanceStage) {
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
	m := &v1alpha1.NodeMaintenance{}
	s.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, m)).To(Succeed())
	return m
}

// ends deletes NodeMaintenances and waits until they are gone.
func (s *scene) ends(names ...string) {
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

// evacuation returns the Evacuation of a Pod, nil if there is none.
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

// existing is the Evacuation of a Pod that must have one.
func (s *scene) existing(pod *corev1.Pod) *v1alpha1.Evacuation {
	s.Helper()
	e := s.evacuation(pod)
	s.Expect(e).NotTo(BeNil(), "Pod %s has no Evacuation", pod.Name)
	return e
}

// activeClass is the evacuator whose turn it is with a Pod, "" while there is none.
func (s *scene) activeClass(pod *corev1.Pod) string {
	s.Helper()
	if e := s.evacuation(pod); e != nil {
		return ptr.Deref(e.Status.ActiveEvacuatorClass, "")
	}
	return ""
}

// asked are the Pods of those given that NodeMaintenances ask to leave.
func (s *scene) asked(pods ...*corev1.Pod) []string {
	s.Helper()
	asked := []string{}
	for _, pod := range pods {
		if e := s.evacuation(pod); e != nil && evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			asked = append(asked, pod.Name)
		}
	}
	return asked
}

// expectAsked waits until exactly the first of the Pods are asked to leave.
func (s *scene) expectAsked(n int, pods ...*corev1.Pod) {
	s.Helper()
	want := []string{}
	for _, pod := range pods[:n] {
		want = append(want, pod.Name)
	}
	s.Eventually(func() []string { return s.asked(pods...) }, soon, pace).Should(ConsistOf(want))
}

// setFinalizers sets all finalizers of a Pod's Evacuation, as anybody may.
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

// expectCordoned waits until the Nodes are cordoned by a maintenance.
func (s *scene) expectCordoned(nodes ...string) {
	s.Helper()
	for _, node := range nodes {
		s.Eventually(func(g Gomega) {
			g.Expect(s.node(node).Spec.Unschedulable).To(BeTrue(), node)
			g.Expect(s.node(node).Annotations).To(HaveKey(v1alpha1.NodeOriginAnnotation), node)
		}, soon, pace).Should(Succeed())
	}
}

// expectReleased waits until no maintenance has left a trace on the Nodes, and they are schedulable.
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

// rows are the drain targets published for a Node, "priority" or "priority/app".
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

// drained is the condition Drained: "True Drained".
func (s *scene) drained(name string) string {
	s.Helper()
	condition := ptr.Deref(meta.FindStatusCondition(s.stored(name).Status.Conditions, v1alpha1.NodeMaintenanceDrained), metav1.Condition{})
	return string(condition.Status) + " " + condition.Reason
}

// expectEvents waits for the events on a NodeMaintenance that have a reason: each message once.
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

// ours are the requests of our manager since the scene began.
func (s *scene) ours() controlplane.Events {
	s.Helper()
	return s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Succeeded()
}

// nodeWrites are our writes of a Node itself, not of its status.
func (s *scene) nodeWrites(node string) controlplane.Events {
	s.Helper()
	return s.ours().Resource("nodes").Named("", node)
}

// takesAway picks the writes that leave an object without a finalizer that it may have had.
func takesAway(finalizer string) func(controlplane.Event) bool {
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

func contains(text string) func(controlplane.Event) bool {
	return func(event controlplane.Event) bool { return strings.Contains(string(event.RequestObject), text) }
}

// expectOrder checks that each of the requests was answered before the next was made.
func (s *scene) expectOrder(events ...controlplane.Event) {
	s.Helper()
	s.Expect(slices.IsSortedFunc(events, func(a, b controlplane.Event) int { return a.Requested.Compare(b.Requested) })).To(BeTrue(), "%s", controlplane.Events(events))
	for i := range events[1:] {
		s.Expect(events[i].Answered).To(BeTemporally("<=", events[i+1].Requested), "%s before %s", events[i], events[i+1])
	}
}

// first is the first request of those that must have been made.
func (s *scene) first(events controlplane.Events) controlplane.Event {
	s.Helper()
	s.Expect(events).NotTo(BeEmpty())
	return events[0]
}
