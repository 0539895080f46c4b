package nodemaintenance

import (
	"context"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// selectingByLabel returns a NodeMaintenance that selects the Nodes of a pool.
func selectingByLabel() *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon, NodeSelector: v1alpha1.NodeSelector{
			NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
				MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "pool", Operator: "In", Values: []string{"x"}}},
			}},
		}},
	}
}

func TestNodeIsListedBeforeItIsCordoned(t *testing.T) {
	t.Run("R66: the status lists a cordoned Node, although the writes of another Node get no answer", func(t *testing.T) {
		g := NewWithT(t)
		node := func(name string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"pool": "x"}}}
		}
		m := selectingByLabel()
		server := fakes.Builder(m, node("a"), node("b")).WithStatusSubresource(m).WithInterceptorFuncs(beforePatch(func(object client.Object) error {
			if object.GetName() == "b" {
				return errors.New("context deadline exceeded")
			}
			return nil
		})).Build()
		s := &scope{client: server, before: &v1alpha1.NodeMaintenance{}, now: time.Now()}
		g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), s.before)).To(Succeed())
		s.maintenance = s.before.DeepCopy()
		for _, name := range []string{"a", "b"} {
			found := node(name)
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(found), found)).To(Succeed())
			s.nodes = append(s.nodes, found)
		}
		r := &Reconciler{written: expectations.New[*corev1.Node](t.Context(), workload.TrimNode)}
		var err error
		for _, step := range r.steps(s) {
			if done, failed := step(t.Context(), s); failed != nil || !done {
				err = failed
				break
			}
		}
		g.Expect(err).To(HaveOccurred())
		cordoned, stored := node("a"), &v1alpha1.NodeMaintenance{}
		g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(cordoned), cordoned)).To(Succeed())
		g.Expect(cordoned.Spec.Unschedulable).To(BeTrue())
		g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
		g.Expect(nodesInStatus(stored).UnsortedList()).To(ConsistOf("a", "b"))
	})
}

func TestProxyAnswersThatTheNodeMaintenanceDoesNotExist(t *testing.T) {
	t.Run("M109: the drain does not stop without an error because a proxy answers the write of the list of Nodes with 404", func(t *testing.T) {
		g, m := NewWithT(t), selectingByLabel()
		proxied := fakes.Builder(m).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				return notFoundByProxy("m")
			},
		}).Build()
		s := &scope{client: proxied, before: m, maintenance: m.DeepCopy(), nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, now: time.Now()}
		_, err := (&Reconciler{}).listNodes(t.Context(), s)
		g.Expect(err).To(HaveOccurred(), "no event follows")
	})
}

func TestConditionsOfADeselectedNode(t *testing.T) {
	for name, stage := range map[string]v1alpha1.NodeMaintenanceStage{
		"R90: a Node loses its conditions if one edit selects another name and begins the maintenance": v1alpha1.StageCordon,
		"R90: also if the edit ends the maintenance":                                                   v1alpha1.StageComplete,
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "b")
			m.Spec.Stage, m.Finalizers = stage, []string{v1alpha1.MaintenanceCompletionFinalizer}
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageIdle, StartTimestamp: metav1.NewTime(time.Unix(0, 0))}}
			m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "a"}}}
			a, b := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b"}}
			a.Annotations, a.Spec.Unschedulable = map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}, true // by a NodeMaintenance that is recreated
			a.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeMaintenancePlanned, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance}}
			refuses := true
			server := withMaintenancesBuilder(m, a, b).WithStatusSubresource(m, a).
				WithInterceptorFuncs(beforeStatusPatch(func(object client.Object) error {
					if object.GetName() == "a" && refuses {
						return apierrors.NewForbidden(corev1.Resource("nodes"), "a", errors.New("change freeze"))
					}
					return nil
				})).Build()
			r := reconcilerOf(t, server, cluster)
			stored := &v1alpha1.NodeMaintenance{}
			reconcile := func() {
				g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
				g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
				g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(a), a)).To(Succeed())
			}
			for range 2 {
				reconcile()
				g.Expect(a.Status.Conditions).NotTo(BeEmpty())
				g.Expect(stored.Status.Conditions).To(ContainElement(And(
					HaveField("Type", v1alpha1.NodeMaintenanceRestoreFailed), HaveField("Message", HavePrefix("Cannot change the conditions of Node a: ")),
				)))
			}
			refuses = false
			for range 2 {
				reconcile()
				g.Expect(a.Status.Conditions).To(BeEmpty())
				g.Expect(a.Spec.Unschedulable).To(BeTrue(), "stage Idle has cordoned nothing")
			}
			g.Expect(stored.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.NodeMaintenanceRestoreFailed)))
			g.Expect(nodesInStatus(stored).Has("a")).To(Equal(stage == v1alpha1.StageComplete), "the status of a completed NodeMaintenance stays")
		})
	}
}

func TestDeselectedNodes(t *testing.T) {
	t.Run("R71: a Node whose restoration gets no answer delays neither the others nor the status, which lists it until it is restored", func(t *testing.T) {
		g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, selectingByLabel()
		m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer}
		var objects []client.Object
		for _, name := range []string{"a", "b"} {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.NodeSpec{Unschedulable: true}}
			node.Annotations = map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}
			objects = append(objects, node)
			m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}})
		}
		hangs := true
		server := withMaintenancesBuilder(append(objects, m)...).WithStatusSubresource(m).WithInterceptorFuncs(beforePatch(func(object client.Object) error {
			if object.GetName() == "a" && hangs {
				return &url.Error{Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded}
			}
			return nil
		})).Build()
		r := reconcilerOf(t, server, cluster)
		reconcile := func() (unschedulable, listed []string) {
			g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
			nodes, stored := &corev1.NodeList{}, &v1alpha1.NodeMaintenance{}
			g.Expect(server.List(t.Context(), nodes)).To(Succeed())
			for i := range nodes.Items {
				if nodes.Items[i].Spec.Unschedulable {
					unschedulable = append(unschedulable, nodes.Items[i].Name)
				}
			}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			isReported := meta.IsStatusConditionTrue(stored.Status.Conditions, v1alpha1.NodeMaintenanceRestoreFailed)
			g.Expect(isReported).To(Equal(hangs))
			return unschedulable, nodesInStatus(stored).UnsortedList()
		}
		unschedulable, listed := reconcile()
		g.Expect(unschedulable).To(Equal([]string{"a"}))
		g.Expect(listed).To(Equal([]string{"a"}))
		hangs = false
		unschedulable, listed = reconcile()
		g.Expect(unschedulable).To(BeEmpty())
		g.Expect(listed).To(BeEmpty())
	})
	t.Run("R17, R94: no withdrawal from an Evacuation for another NodeMaintenance that drains the Node since the reconciliation began", func(t *testing.T) {
		for created, keeps := range map[bool]bool{true: true, false: false} {
			g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, selectingByLabel()
			m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one"}}}
			e := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "a", UID: "pod"}}, nil, 0)
			e.UID, e.Annotations = "evacuation", map[string]string{v1alpha1.EvacuationNodeAnnotation: "one"}
			objects := []client.Object{m, e, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}}
			if created {
				objects = append(objects, maintenanceOf("another", "one"))
			}
			server := fakes.Builder(objects...).WithIndex(m, "node", func(object client.Object) []string {
				return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
			}).WithIndex(e, "node", func(object client.Object) []string {
				return []string{object.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]}
			}).Build()
			s := &scope{request: workload.Request{Cluster: cluster}, client: server, maintenance: m, before: m, now: time.Now()}
			_, err := reconcilerOf(t, server, cluster).releaseDeselectedNodes(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			g.Expect(evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)).To(Equal(keeps))
		}
	})
}
