package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// TestAdmission tests admission and validation of our kinds, and which stored objects can be decoded, without a manager.
func TestAdmission(t *testing.T) {
	parallel(t, 140*time.Second)
	all := newAdmission(t, controlplane.Options{Name: "admission"})
	for range *repeat {
		testAdmission(t, all)
		t.Run("Bundle", func(t *testing.T) { testBundleVersions(t, all) })
		testNodeMaintenanceValidation(t, all.validation(t))
		testEvacuationValidation(t, all.validation(t))
		removeAll(t, all.WithT, all.admin)
	}
	testStoredObjects(t, all.validation(t))
}

// testAdmission tests admission in workload clusters of every version.
func testAdmission(t *testing.T, all *admission) {
	t.Helper()
	t.Run("NodeMaintenance", func(t *testing.T) { testNodeMaintenanceAdmission(t, all.sub(t)) })
	t.Run("NodeMaintenance updates", func(t *testing.T) { testNodeMaintenanceUpdates(t, all.sub(t)) })
	t.Run("Owners", func(t *testing.T) { testOwnerAdmission(t, all.sub(t)) })
	t.Run("Uncordons", func(t *testing.T) { testUncordonWarnings(t, all.sub(t)) })
	t.Run("Selections", func(t *testing.T) { testSelectionWarnings(t, all.sub(t)) })
	t.Run("Node agent", func(t *testing.T) { testNodeAgentAdmission(t, all.sub(t)) })
	t.Run("Evacuation", func(t *testing.T) { testEvacuationAdmission(t, all.sub(t)) })
	t.Run("Cancellation", func(t *testing.T) { testCancellationAdmission(t, all.sub(t)) })
	t.Run("Roles", func(t *testing.T) { testRoles(t, all.sub(t)) })
	removeAll(t, all.WithT, all.admin)
}

func testNodeMaintenanceAdmission(t *testing.T, all *admission) {
	t.Helper()
	anyNode := all.user("any-node", mayDeleteNodes())
	oneNode := all.user("one-node", mayDeleteNodes("one"))
	noNode := all.user("no-node")
	t.Run("R7: allows users who may delete all Nodes to maintain any selection", func(t *testing.T) {
		a := all.sub(t)
		for name, selected := range map[string]func(*v1alpha1.NodeMaintenance){
			"one": ofNodes("one"), "ten": ofNodes(nodeNames("n", 10)...), "eleven": ofNodes(nodeNames("n", 11)...), "label": ofNodesLabelled("a", "b"),
		} {
			m := maintenance("any-"+name, selected)
			a.Expect(anyNode.Create(a.Context(), m)).To(Succeed())
			a.Expect(changed(a, anyNode, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Reason = "changed" })).To(Succeed())
			a.Expect(anyNode.Delete(a.Context(), m)).To(Succeed())
		}
	})
	t.Run("R7: allows a user who may delete one Node by name to maintain that Node", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(oneNode.Create(a.Context(), maintenance("one-one"))).To(Succeed())
		a.Expect(oneNode.Create(a.Context(), maintenance("one-two", ofNodes("two")))).
			To(deniedWith("user one-node may not maintain Node two: permission to delete the Node is required"))
		a.Expect(oneNode.Create(a.Context(), maintenance("one-both", ofNodes("one", "two")))).
			To(deniedWith("user one-node may not maintain Node two: permission to delete the Node is required"))
		a.Expect(oneNode.Create(a.Context(), maintenance("one-label", ofNodesLabelled("kubernetes.io/hostname", "one")))).
			To(deniedWith("user one-node may not maintain Nodes with a selector other than at most ten names: permission to delete all Nodes is required"))
		a.Expect(oneNode.Delete(a.Context(), maintenance("one-one"))).To(Succeed())
	})
	t.Run("R7: accepts further requirements in a term that names a Node", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("narrow", ofNodes("one"), func(m *v1alpha1.NodeMaintenance) {
			term := &m.Spec.NodeSelector.NodeSelectorTerms[0]
			term.MatchFields = append([]v1alpha1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"three"}},
			}, term.MatchFields...)
			term.MatchExpressions = []v1alpha1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}
		})
		a.Expect(oneNode.Create(a.Context(), m)).To(Succeed())
	})
	t.Run("R7: treats NotIn as a selection of all Nodes", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(oneNode.Create(a.Context(), maintenance("all-but-one", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		}))).To(deniedWith("permission to delete all Nodes is required"))
		a.Expect(oneNode.Create(a.Context(), maintenance("name-or-label", func(m *v1alpha1.NodeMaintenance) {
			ofNodesLabelled("a", "b")(m)
			m.Spec.NodeSelector.NodeSelectorTerms = append(v1alpha1.SelectNodes("one").NodeSelectorTerms, m.Spec.NodeSelector.NodeSelectorTerms...)
		}))).To(deniedWith("permission to delete all Nodes is required"))
	})
	t.Run("R7: checks up to ten names one by one, and more as all Nodes", func(t *testing.T) {
		a := all.sub(t)
		tenNodes := a.user("ten-nodes", mayDeleteNodes(nodeNames("n", 10)...))
		elevenNodes := a.user("eleven-nodes", mayDeleteNodes(nodeNames("n", 11)...))
		a.Expect(tenNodes.Create(a.Context(), maintenance("ten", ofNodes(nodeNames("n", 10)...)))).To(Succeed())
		for last := range 10 { // at each position
			names := nodeNames("n", 10)
			names[last] = "other"
			a.Expect(tenNodes.Create(a.Context(), maintenance("ten-other", ofNodes(names...)))).To(deniedWith("may not maintain Node other:"))
		}
		a.Expect(elevenNodes.Create(a.Context(), maintenance("eleven", ofNodes(nodeNames("n", 11)...)))).
			To(deniedWith("user eleven-nodes may not maintain Nodes with a selector other than at most ten names: permission to delete all Nodes is required"))
	})
	t.Run("R7: denies creation, changes and deletion to users who may delete no Node", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(noNode.Create(a.Context(), maintenance("none"))).To(deniedWith("user no-node may not maintain Node one: permission to delete the Node is required"))
		m := maintenance("none-changes", func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon })
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageDrain })).To(deniedWith("may not maintain Node one:"))
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.DrainRules = nil; m.Spec.Reason = "why" })).
			To(deniedWith("may not maintain Node one:"))
		a.Expect(noNode.Delete(a.Context(), m)).To(deniedWith("may not maintain Node one:"))
		a.Expect(noNode.DeleteAllOf(a.Context(), m)).To(deniedWith("may not maintain Node"))
	})
}

func testNodeMaintenanceUpdates(t *testing.T, all *admission) {
	t.Helper()
	one := all.user("updates-one", mayDeleteNodes("one"))
	both := all.user("updates-both", mayDeleteNodes("one", "two"))
	noNode := all.user("updates-none")
	t.Run("R7: checks the old and the new Nodes when the selector changes", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("selector")
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, one, m, ofNodes("two"))).To(deniedWith("user updates-one may not maintain Node two:"))
		a.Expect(changed(a, both, m, ofNodes("two"))).To(Succeed())
		a.Expect(changed(a, one, m, ofNodes("one"))).To(deniedWith("user updates-one may not maintain Node two:"))
		a.Expect(changed(a, both, m, ofNodesLabelled("a", "b"))).To(deniedWith("permission to delete all Nodes is required"))
		a.Expect(changed(a, both, m, ofNodes("one"))).To(Succeed())
		a.Expect(changed(a, a.admin, m, ofNodesLabelled("a", "b"))).To(Succeed())
		a.Expect(changed(a, both, m, ofNodes("one"))).To(deniedWith("permission to delete all Nodes is required"))
	})
	t.Run("R7: checks a change of ten names to ten others within the cost limit of CEL", func(t *testing.T) {
		a := all.sub(t)
		twenty := a.user("twenty-nodes", mayDeleteNodes(append(nodeNames("old", 10), nodeNames("new", 10)...)...))
		m := maintenance("twenty", ofNodes(nodeNames("old", 10)...))
		a.Expect(twenty.Create(a.Context(), m)).To(Succeed())
		names := nodeNames("new", 10)
		names[9] = "other"
		a.Expect(changed(a, twenty, m, ofNodes(names...))).To(deniedWith("may not maintain Node other:"))
		a.Expect(changed(a, twenty, m, ofNodes(nodeNames("new", 10)...))).To(Succeed())
	})
	t.Run("R7: does not check changes of status and metadata, except metadata that controllers use", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("metadata", func(m *v1alpha1.NodeMaintenance) { m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer} })
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		m.Status.ObservedGeneration = 1
		a.Expect(noNode.Status().Update(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Labels = map[string]string{"a": "b"} })).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Annotations = map[string]string{"a": "b"} })).To(Succeed())
		const key = v1alpha1.NodeUIDAnnotation
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Annotations[key] = "x" })).To(deniedWith("may not maintain Node one:"))
		a.Expect(changed(a, one, m, func(m *v1alpha1.NodeMaintenance) { m.Annotations[key] = "x" })).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { delete(m.Annotations, key) })).To(deniedWith("may not maintain Node one:"))
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.OwnerReferences = noSuchOwner() })).To(deniedWith("may not maintain Node one:"))
	})
	t.Run("R7: does not check the removal of the last finalizer during deletion", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("finalizer", func(m *v1alpha1.NodeMaintenance) { m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer} })
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(a.admin.Delete(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Finalizers = nil })).To(Succeed())
		a.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(m), m)).To(Satisfy(apierrors.IsNotFound))
	})
}

func testOwnerAdmission(t *testing.T, all *admission) {
	t.Helper()
	maintainer := all.user("owners-maintainer", mayDeleteNodes(), rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"*"},
	})
	manager := all.user("owners-manager", rbacv1.PolicyRule{
		APIGroups: []string{"authorization." + v1alpha1.GroupVersion.Group}, Resources: []string{"managers"}, Verbs: []string{"impersonate"},
	}, mayDeleteNodes())
	for _, key := range []string{
		v1alpha1.OwnerClusterAnnotation, v1alpha1.OwnerMachineAnnotation, v1alpha1.OwnerManagementClusterAnnotation, v1alpha1.RequestedForAnnotation,
		v1alpha1.DrainStartedAnnotation, v1alpha1.VolumesDetachedAnnotation,
	} {
		t.Run("M37: allows only managers to write "+key, func(t *testing.T) {
			a := all.sub(t)
			refused := deniedWith("permission to impersonate managers.authorization.%s is required", v1alpha1.GroupVersion.Group)
			set := func(m *v1alpha1.NodeMaintenance) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, "x") }
			unset := func(m *v1alpha1.NodeMaintenance) { delete(m.Annotations, key) }
			a.Eventually(func() error { return maintainer.Create(a.Context(), maintenance("owned", set), client.DryRunAll) }, soon, pace).Should(refused)
			a.Expect(a.admin.Create(a.Context(), maintenance("owned", set))).To(Succeed())
			m := maintenance("owned")
			a.Expect(changed(a, maintainer, m, unset)).To(refused)
			a.Expect(changed(a, maintainer, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Reason, m.Labels = "why", map[string]string{"a": "b"} })).To(Succeed())
			a.Expect(changed(a, manager, m, unset)).To(Succeed())
			a.Expect(changed(a, maintainer, m, set)).To(refused)
			a.Expect(changed(a, manager, m, set)).To(Succeed())
			a.Expect(maintainer.Delete(a.Context(), m)).To(Succeed())
		})
	}
	t.Run("M37: allows only managers to write the UID of the Node of a NodeMaintenance that serves a Machine", func(t *testing.T) {
		testOwnedNodeUID(all.sub(t), maintainer)
	})
}

func testOwnedNodeUID(a *admission, maintainer client.Client) {
	a.Helper()
	owned := maintenance("owned-uid", func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "ns/m", v1alpha1.NodeUIDAnnotation: "uid"}
	})
	a.Expect(a.admin.Create(a.Context(), owned)).To(Succeed())
	for _, change := range []func(*v1alpha1.NodeMaintenance){
		func(m *v1alpha1.NodeMaintenance) { m.Annotations[v1alpha1.NodeUIDAnnotation] = "other" },
		func(m *v1alpha1.NodeMaintenance) { delete(m.Annotations, v1alpha1.NodeUIDAnnotation) },
	} {
		a.Expect(changed(a, maintainer, owned, change)).To(deniedWith("permission to impersonate managers"))
	}
	a.Expect(a.admin.Delete(a.Context(), owned)).To(Succeed())
}

func testUncordonWarnings(t *testing.T, all *admission) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "uncordoned"}}
	all.ensure(node)
	warnings := &warnings{}
	config := rest.CopyConfig(all.cp.AdminConfig())
	config.WarningHandler = warnings
	nodes := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes()
	// write changes the Node and returns the warnings in the response.
	write := func(a *admission, change func(*corev1.Node)) []string {
		warnings.texts = nil
		a.Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			present, err := nodes.Get(a.Context(), node.Name, metav1.GetOptions{})
			a.Expect(err).NotTo(HaveOccurred())
			change(present)
			_, err = nodes.Update(a.Context(), present, metav1.UpdateOptions{})
			return err
		})).To(Succeed())
		return warnings.texts
	}
	uncordon := func(n *corev1.Node) { n.Spec.Unschedulable = false }
	uncordonWarns := ContainElement(ContainSubstring("Node uncordoned is under maintenance and will be cordoned again: to uncordon it, complete its " +
		"NodeMaintenance"))

	t.Run("R46: warns a user who uncordons a Node under maintenance, without denying it", func(t *testing.T) {
		a := all.sub(t)
		a.Eventually(func() []string {
			a.Expect(write(a, func(n *corev1.Node) { cordon.Apply(n) })).To(BeEmpty())
			return write(a, uncordon)
		}, soon, pace).Should(uncordonWarns)
		present, err := nodes.Get(a.Context(), node.Name, metav1.GetOptions{})
		a.Expect(err).NotTo(HaveOccurred())
		a.Expect(present.Spec.Unschedulable).To(BeFalse())
	})
	t.Run("R46: names the NodeMaintenance that a Node condition names", func(t *testing.T) {
		a := all.sub(t)
		write(a, func(n *corev1.Node) { cordon.Apply(n) })
		a.Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			present, err := nodes.Get(a.Context(), node.Name, metav1.GetOptions{})
			a.Expect(err).NotTo(HaveOccurred())
			present.Status.Conditions, _ = nodecondition.Changes(nil, nodecondition.Wanted([]nodecondition.Maintenance{{Name: "kernel", Stage: v1alpha1.StageCordon}}),
				time.Now())
			_, err = nodes.UpdateStatus(a.Context(), present, metav1.UpdateOptions{})
			return err
		})).To(Succeed())
		a.Expect(write(a, uncordon)).To(And(uncordonWarns, ContainElement(ContainSubstring("NodeMaintenance kernel"))))
	})
	t.Run("R46: does not warn when a maintenance restores the Node or when the Node is not under maintenance", func(t *testing.T) {
		a := all.sub(t)
		write(a, func(n *corev1.Node) { cordon.Apply(n) })
		a.Expect(write(a, func(n *corev1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, "a", "b") })).To(BeEmpty())
		a.Expect(write(a, func(n *corev1.Node) { cordon.Restore(n) })).To(BeEmpty())
		write(a, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		a.Expect(write(a, uncordon)).To(BeEmpty())
	})
}

func testSelectionWarnings(t *testing.T, all *admission) {
	t.Helper()
	warnings := &warnings{}
	config := rest.CopyConfig(all.cp.AdminConfig())
	config.WarningHandler = warnings
	admin := all.clientFor(config)
	// create applies a NodeMaintenance without storing it, and returns the warnings in the response.
	create := func(a *admission, changes ...func(*v1alpha1.NodeMaintenance)) []string {
		warnings.texts = nil
		a.Expect(admin.Create(a.Context(), maintenance("selects", changes...), client.DryRunAll)).To(Succeed())
		return warnings.texts
	}
	mayBeAll := ConsistOf(ContainSubstring("NodeMaintenance selects does not select Nodes by name, so it may select all Nodes, also later ones"))
	t.Run("R82: warns at apply of a selector that is no list of names, or names the label of the control plane", func(t *testing.T) {
		a := all.sub(t)
		a.Eventually(func() []string { return create(a, ofNodesLabelled("pool", "a")) }, soon, pace).Should(mayBeAll)
		a.Expect(create(a, func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		})).To(mayBeAll)
		a.Expect(create(a, ofNodesLabelled("node-role.kubernetes.io/control-plane", ""))).
			To(ConsistOf(ContainSubstring("selects Nodes of the control plane by their label, possibly all of them")))
	})
	t.Run("R82: does not warn of names, of stage Complete, or of a change that keeps the selector", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(create(a, ofNodes("one", "two"))).To(BeEmpty())
		a.Expect(create(a, ofNodesLabelled("pool", "a"), func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageComplete })).To(BeEmpty())
		m := maintenance("selects")
		a.Expect(admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, admin, m, ofNodesLabelled("pool", "a"))).To(Succeed())
		a.Expect(warnings.texts).To(mayBeAll)
		warnings.texts = nil
		a.Expect(changed(a, admin, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage, m.Spec.Reason = v1alpha1.StageCordon, "why" })).To(Succeed())
		a.Expect(warnings.texts).To(BeEmpty())
	})
}

// warnings collects warnings of an API server.
type warnings struct{ texts []string }

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

func testNodeAgentAdmission(t *testing.T, all *admission) {
	t.Helper()
	all.role("agent", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "agent"}, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"nodemaintenances"}, Verbs: []string{"get", "create", "patch", "update", "delete"},
	})
	all.ensure(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "agent-node"}})
	all.ensure(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "agent", NodeName: "agent-node",
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	all.ensure(pod)
	bound := all.serviceAccount("agent", &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID})
	unbound := all.serviceAccount("agent", nil)

	t.Run("R7: allows a node agent to maintain only the Node to which its token is bound", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("agent", ofNodes("agent-node"))
		a.Expect(bound.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, bound, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Reason = "shutdown" })).To(Succeed())
		a.Expect(changed(a, bound, m, ofNodes("one"))).To(deniedWith("user system:serviceaccount:default:agent may not maintain Node "))
		a.Expect(changed(a, bound, m, ofNodes("agent-node", "one"))).To(deniedWith("may not maintain Node "))
		a.Expect(changed(a, bound, m, ofNodesLabelled("a", "b"))).To(deniedWith("permission to delete all Nodes is required"))
		a.Expect(bound.Delete(a.Context(), m)).To(Succeed())
		a.Expect(bound.Create(a.Context(), maintenance("agent-two", ofNodes("two")))).To(deniedWith("may not maintain Node two:"))
		a.Expect(a.admin.Create(a.Context(), maintenance("agent-other", ofNodes("two")))).To(Succeed())
		a.Expect(changed(a, bound, maintenance("agent-other"), ofNodes("agent-node"))).To(deniedWith("may not maintain Node "))
	})
	t.Run("R7: denies a token that is not bound to a Pod on the Node", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(unbound.Create(a.Context(), maintenance("agent-unbound", ofNodes("agent-node")))).To(deniedWith("may not maintain Node agent-node:"))
	})
}
