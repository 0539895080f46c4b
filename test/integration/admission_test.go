package integration

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// admission is a workload cluster with the bundle as the manager brings it, RBAC, and nothing that acts on our kinds. Each
// user has full rights on our own kinds, so that what is refused is refused by the policies.
type admission struct {
	*testing.T
	*WithT
	cp    *controlplane.ControlPlane
	admin client.Client
}

const maintainers = "maintainers"

func newAdmission(t *testing.T) *admission {
	t.Helper()
	a := &admission{T: t, WithT: NewWithT(t), cp: controlplane.ForTest(t, controlplane.Options{Name: "admission"})}
	a.admin = a.clientFor(a.cp.AdminConfig())
	a.Eventually(func() (bool, error) { return remote.ApplyBundle(t.Context(), a.admin) }, soon, pace).Should(BeTrue())
	a.role(maintainers, rbacv1.Subject{Kind: rbacv1.GroupKind, Name: maintainers}, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group},
		Resources: []string{"nodemaintenances", "nodemaintenances/status", "evacuations", "evacuations/status"},
		Verbs:     []string{"get", "list", "create", "update", "patch", "delete", "deletecollection"},
	})
	// A policy is in force a moment after it is there.
	nobody := a.user("nobody")
	a.Eventually(func() error { return nobody.Create(t.Context(), maintenance("canary"), client.DryRunAll) }, soon, pace).
		Should(MatchError(ContainSubstring("may not maintain Node")))
	a.Eventually(func() error { return nobody.Create(t.Context(), evacuationOf("canary"), client.DryRunAll) }, soon, pace).
		Should(MatchError(ContainSubstring("may not have Pod")))
	canary := a.evacuation("canary", v1alpha1.CancellationForbid)
	a.Eventually(func() error { return nobody.Delete(t.Context(), canary, client.DryRunAll) }, soon, pace).
		Should(MatchError(ContainSubstring("forbids its cancellation")))
	return a
}

func (a *admission) sub(t *testing.T) *admission {
	t.Helper()
	return &admission{T: t, WithT: NewWithT(t), cp: a.cp, admin: a.admin}
}

func (a *admission) clientFor(config *rest.Config) client.Client {
	a.Helper()
	c, err := client.New(config, client.Options{Scheme: clusterapi.Scheme()})
	a.Expect(err).NotTo(HaveOccurred())
	return c
}

// user who may write our kinds, and what the rules say.
func (a *admission) user(name string, rules ...rbacv1.PolicyRule) client.Client {
	a.Helper()
	if len(rules) > 0 {
		a.role(name, rbacv1.Subject{Kind: rbacv1.UserKind, Name: name}, rules...)
	}
	config, err := a.cp.ConfigFor(name, maintainers)
	a.Expect(err).NotTo(HaveOccurred())
	return a.clientFor(config)
}

// role lets somebody do something in the whole cluster, and waits until they may: RBAC hears of it by a watch.
func (a *admission) role(name string, who rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	a.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-" + name}, Rules: rules}
	a.Expect(a.admin.Create(a.Context(), role)).To(Succeed())
	a.Expect(a.admin.Create(a.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + name},
		Subjects:   []rbacv1.Subject{who},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	})).To(Succeed())
	a.Eventually(func() (bool, error) { return a.may(who, rules[0]) }, soon, pace).Should(BeTrue(), "%v may %v", who, rules[0])
}

// may asks the API server whether somebody has the first right of a rule.
func (a *admission) may(who rbacv1.Subject, rule rbacv1.PolicyRule) (bool, error) {
	a.Helper()
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource}
	if len(rule.ResourceNames) > 0 {
		attributes.Name = rule.ResourceNames[0]
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes}}
	switch who.Kind {
	case rbacv1.GroupKind:
		review.Spec.Groups = []string{who.Name}
	case rbacv1.ServiceAccountKind:
		review.Spec.User = "system:serviceaccount:" + who.Namespace + ":" + who.Name
	default:
		review.Spec.User = who.Name
	}
	err := a.admin.Create(a.Context(), review)
	return review.Status.Allowed, err
}

// evacuation of a Pod, made by the administrator.
func (a *admission) evacuation(pod string, policy v1alpha1.EvacuationCancellationPolicy, changes ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	a.Helper()
	e := evacuationOf(pod, changes...)
	a.Expect(a.admin.Create(a.Context(), e)).To(Succeed())
	e.Status.EvacuationCancellationPolicy = policy
	e.Status.EvacuationProgressTimestamp = ptr.To(metav1.Now())
	a.Expect(a.admin.Status().Update(a.Context(), e)).To(Succeed())
	return e
}

func (a *admission) namespace(name string) {
	a.Helper()
	a.Expect(a.admin.Create(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
}

func mayDeleteNodes(names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"delete"}, ResourceNames: names}
}

func ofNodes(names ...string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes(names...) }
}

func ofNodesLabelled(key, value string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Spec.NodeSelector = v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
			MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}
	}
}

func nodeNames(prefix string, n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("%s%d", prefix, i))
	}
	return names
}

// forbidden expects a policy to say so.
func deniedWith(format string, args ...any) gomegatypes.GomegaMatcher {
	return And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring(fmt.Sprintf(format, args...))))
}

// changed applies a change to an object as it is now.
func changed[T client.Object](a *admission, by client.Client, object T, change func(T)) error {
	a.Helper()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		a.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		change(object)
		return by.Update(a.Context(), object)
	})
}

func TestAdmission(t *testing.T) {
	all := newAdmission(t)
	t.Run("NodeMaintenance", func(t *testing.T) { testNodeMaintenanceAdmission(t, all) })
	t.Run("NodeMaintenance updates", func(t *testing.T) { testNodeMaintenanceUpdates(t, all) })
	t.Run("Node agent", func(t *testing.T) { testNodeAgentAdmission(t, all) })
	t.Run("Evacuation", func(t *testing.T) { testEvacuationAdmission(t, all) })
	t.Run("Cancellation", func(t *testing.T) { testCancellationAdmission(t, all) })
	t.Run("Bundle", func(t *testing.T) { testBundleVersions(t, all) })
}

func testNodeMaintenanceAdmission(t *testing.T, all *admission) {
	t.Helper()
	anyNode := all.user("any-node", mayDeleteNodes())
	oneNode := all.user("one-node", mayDeleteNodes("one"))
	noNode := all.user("no-node")
	t.Run("R7: who may delete Nodes may maintain them, however they are selected", func(t *testing.T) {
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
	t.Run("R7: who may delete one Node by name may maintain that one", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(oneNode.Create(a.Context(), maintenance("one-one"))).To(Succeed())
		a.Expect(oneNode.Create(a.Context(), maintenance("one-two", ofNodes("two")))).
			To(deniedWith("user one-node may not maintain Node two: needs delete on it"))
		a.Expect(oneNode.Create(a.Context(), maintenance("one-both", ofNodes("one", "two")))).
			To(deniedWith("user one-node may not maintain Node two: needs delete on it"))
		a.Expect(oneNode.Create(a.Context(), maintenance("one-label", ofNodesLabelled("kubernetes.io/hostname", "one")))).
			To(deniedWith("user one-node may not maintain Nodes by a selector other than at most ten names: needs delete on nodes"))
		a.Expect(oneNode.Delete(a.Context(), maintenance("one-one"))).To(Succeed())
	})
	t.Run("R7: a term that names a Node and requires more is about that Node", func(t *testing.T) {
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
	t.Run("R7: all Nodes but one is no name", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(oneNode.Create(a.Context(), maintenance("all-but-one", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		}))).To(deniedWith("needs delete on nodes"))
		a.Expect(oneNode.Create(a.Context(), maintenance("name-or-label", func(m *v1alpha1.NodeMaintenance) {
			ofNodesLabelled("a", "b")(m)
			m.Spec.NodeSelector.NodeSelectorTerms = append(v1alpha1.SelectNodes("one").NodeSelectorTerms, m.Spec.NodeSelector.NodeSelectorTerms...)
		}))).To(deniedWith("needs delete on nodes"))
	})
	t.Run("R7: ten names are asked for one by one, eleven together", func(t *testing.T) {
		a := all.sub(t)
		tenNodes := a.user("ten-nodes", mayDeleteNodes(nodeNames("n", 10)...))
		elevenNodes := a.user("eleven-nodes", mayDeleteNodes(nodeNames("n", 11)...))
		a.Expect(tenNodes.Create(a.Context(), maintenance("ten", ofNodes(nodeNames("n", 10)...)))).To(Succeed())
		for last := range 10 { // whichever it is that isn't theirs
			names := nodeNames("n", 10)
			names[last] = "other"
			a.Expect(tenNodes.Create(a.Context(), maintenance("ten-other", ofNodes(names...)))).To(deniedWith("may not maintain Node other:"))
		}
		a.Expect(elevenNodes.Create(a.Context(), maintenance("eleven", ofNodes(nodeNames("n", 11)...)))).
			To(deniedWith("user eleven-nodes may not maintain Nodes by a selector other than at most ten names: needs delete on nodes"))
	})
	t.Run("R7: who may delete no Node may neither create, change nor delete", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(noNode.Create(a.Context(), maintenance("none"))).To(deniedWith("user no-node may not maintain Node one: needs delete on it"))
		m := maintenance("none-changes", func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon })
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageDrain })).To(deniedWith("may not maintain Node one:"))
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.DrainRules = nil; m.Spec.Reason = "why" })).To(deniedWith("may not maintain Node one:"))
		a.Expect(noNode.Delete(a.Context(), m)).To(deniedWith("may not maintain Node one:"))
		a.Expect(noNode.DeleteAllOf(a.Context(), m)).To(deniedWith("may not maintain Node"))
	})
}

func testNodeMaintenanceUpdates(t *testing.T, all *admission) {
	t.Helper()
	one := all.user("updates-one", mayDeleteNodes("one"))
	both := all.user("updates-both", mayDeleteNodes("one", "two"))
	noNode := all.user("updates-none")
	t.Run("R7: a selector that changes asks for the old and the new Nodes", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("selector")
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, one, m, ofNodes("two"))).To(deniedWith("user updates-one may not maintain Node two:"))
		a.Expect(changed(a, both, m, ofNodes("two"))).To(Succeed())
		a.Expect(changed(a, one, m, ofNodes("one"))).To(deniedWith("user updates-one may not maintain Node two:"))
		a.Expect(changed(a, both, m, ofNodesLabelled("a", "b"))).To(deniedWith("needs delete on nodes"))
		a.Expect(changed(a, both, m, ofNodes("one"))).To(Succeed())
		a.Expect(changed(a, a.admin, m, ofNodesLabelled("a", "b"))).To(Succeed())
		a.Expect(changed(a, both, m, ofNodes("one"))).To(deniedWith("needs delete on nodes"))
	})
	t.Run("R7: ten names may become ten others, within CEL's budget", func(t *testing.T) {
		a := all.sub(t)
		twenty := a.user("twenty-nodes", mayDeleteNodes(append(nodeNames("old", 10), nodeNames("new", 10)...)...))
		m := maintenance("twenty", ofNodes(nodeNames("old", 10)...))
		a.Expect(twenty.Create(a.Context(), m)).To(Succeed())
		names := nodeNames("new", 10)
		names[9] = "other"
		a.Expect(changed(a, twenty, m, ofNodes(names...))).To(deniedWith("may not maintain Node other:"))
		a.Expect(changed(a, twenty, m, ofNodes(nodeNames("new", 10)...))).To(Succeed())
	})
	t.Run("R7: status and metadata are no maintenance, except for what controllers go by", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("metadata", func(m *v1alpha1.NodeMaintenance) { m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer} })
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		m.Status.ObservedGeneration = 1
		a.Expect(noNode.Status().Update(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Labels = map[string]string{"a": "b"} })).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Annotations = map[string]string{"a": "b"} })).To(Succeed())
		for _, key := range []string{
			v1alpha1.NodeUIDAnnotation, v1alpha1.OwnerClusterAnnotation, v1alpha1.OwnerMachineAnnotation, v1alpha1.OwnerManagementClusterAnnotation,
		} {
			a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Annotations[key] = "x" })).To(deniedWith("may not maintain Node one:"))
			a.Expect(changed(a, one, m, func(m *v1alpha1.NodeMaintenance) { m.Annotations[key] = "x" })).To(Succeed())
			a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { delete(m.Annotations, key) })).To(deniedWith("may not maintain Node one:"))
		}
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.OwnerReferences = noSuchOwner() })).To(deniedWith("may not maintain Node one:"))
	})
	t.Run("R7: removing the last finalizer of one that is being deleted", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("finalizer", func(m *v1alpha1.NodeMaintenance) { m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer} })
		a.Expect(a.admin.Create(a.Context(), m)).To(Succeed())
		a.Expect(a.admin.Delete(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, noNode, m, func(m *v1alpha1.NodeMaintenance) { m.Finalizers = nil })).To(Succeed())
		a.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(m), m)).To(Satisfy(apierrors.IsNotFound))
	})
}

// noSuchOwner has the garbage collector delete what it owns.
func noSuchOwner() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "00000000-0000-0000-0000-000000000000"}}
}

func testNodeAgentAdmission(t *testing.T, all *admission) {
	t.Helper()
	all.role("agent", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "agent"}, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"nodemaintenances"}, Verbs: []string{"get", "create", "patch", "update", "delete"},
	})
	all.Expect(all.admin.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "agent-node"}})).To(Succeed())
	all.Expect(all.admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"}})).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "agent", NodeName: "agent-node",
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	all.Expect(all.admin.Create(t.Context(), pod)).To(Succeed())
	bound := all.serviceAccount("agent", &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID})
	unbound := all.serviceAccount("agent", nil)

	t.Run("R7: the token of an agent on a Node is enough for that Node alone", func(t *testing.T) {
		a := all.sub(t)
		m := maintenance("agent", ofNodes("agent-node"))
		a.Expect(bound.Create(a.Context(), m)).To(Succeed())
		a.Expect(changed(a, bound, m, func(m *v1alpha1.NodeMaintenance) { m.Spec.Reason = "shutdown" })).To(Succeed())
		a.Expect(changed(a, bound, m, ofNodes("one"))).To(deniedWith("user system:serviceaccount:default:agent may not maintain Node "))
		a.Expect(changed(a, bound, m, ofNodes("agent-node", "one"))).To(deniedWith("may not maintain Node "))
		a.Expect(changed(a, bound, m, ofNodesLabelled("a", "b"))).To(deniedWith("needs delete on nodes"))
		a.Expect(bound.Delete(a.Context(), m)).To(Succeed())
		a.Expect(bound.Create(a.Context(), maintenance("agent-two", ofNodes("two")))).To(deniedWith("may not maintain Node two:"))
		a.Expect(a.admin.Create(a.Context(), maintenance("agent-other", ofNodes("two")))).To(Succeed())
		a.Expect(changed(a, bound, maintenance("agent-other"), ofNodes("agent-node"))).To(deniedWith("may not maintain Node "))
	})
	t.Run("R7: a token that isn't bound to a Pod on the Node isn't", func(t *testing.T) {
		a := all.sub(t)
		a.Expect(unbound.Create(a.Context(), maintenance("agent-unbound", ofNodes("agent-node")))).To(deniedWith("may not maintain Node agent-node:"))
	})
}

// serviceAccount is a client with a token of it.
func (a *admission) serviceAccount(name string, bound *authenticationv1.BoundObjectReference) client.Client {
	a.Helper()
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	a.Expect(a.admin.SubResource("token").Create(a.Context(), account, token)).To(Succeed())
	config := rest.AnonymousClientConfig(a.cp.AdminConfig())
	config.BearerToken = token.Status.Token
	return a.clientFor(config)
}

func testEvacuationAdmission(t *testing.T, all *admission) {
	t.Helper()
	all.namespace("theirs")
	tenant := all.user("tenant")
	all.Expect(all.admin.Create(t.Context(), &rbacv1.RoleBinding{ // Kubernetes' own role, in their own Namespace
		ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "tenant"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "tenant"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	})).To(Succeed())
	deletes := all.user("deletes-pod", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"delete"}, ResourceNames: []string{"web"}})
	evicts := all.user("evicts-pod", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}, ResourceNames: []string{"web"}})
	in := func(namespace string) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.Namespace = namespace }
	}

	t.Run("E10: a tenant may have the Pods of their own Namespace evacuated", func(t *testing.T) {
		a := all.sub(t)
		e := evacuationOf("web", in("theirs"))
		a.Eventually(func() error { return tenant.Create(a.Context(), e) }, soon, pace).Should(Succeed())
		a.Expect(changed(a, tenant, e, func(e *v1alpha1.Evacuation) {
			e.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "example.com"}
		})).To(Succeed())
		a.Expect(tenant.Create(a.Context(), evacuationOf("web"))).
			To(deniedWith("user tenant may not have Pod default/web evacuated: needs create on its eviction, or delete on it"))
	})
	t.Run("E10: to delete the Pod, or to evict it, by name, is each enough", func(t *testing.T) {
		a := all.sub(t)
		for _, user := range []client.Client{deletes, evicts} {
			e := evacuationOf("web")
			a.Expect(user.Create(a.Context(), e)).To(Succeed())
			a.Expect(user.Delete(a.Context(), e)).To(Succeed())
			a.Expect(user.Create(a.Context(), evacuationOf("db"))).To(deniedWith("may not have Pod default/db evacuated"))
		}
	})
	t.Run("E10: a change of spec, finalizers or owners is a request; status and labels are none", func(t *testing.T) {
		a := all.sub(t)
		e := a.evacuation("changes", v1alpha1.CancellationAllow, func(e *v1alpha1.Evacuation) {
			e.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "example.com"}
		})
		for _, change := range []func(*v1alpha1.Evacuation){
			evacuators(v1alpha1.Evacuator{EvacuatorClass: "a.example.com", Priority: 1}),
			func(e *v1alpha1.Evacuation) {
				e.Finalizers = append(e.Finalizers, v1alpha1.InstigatorFinalizerPrefix+"other.example.com")
			},
			func(e *v1alpha1.Evacuation) { e.Finalizers = nil },
			func(e *v1alpha1.Evacuation) { e.OwnerReferences = noSuchOwner() },
			func(e *v1alpha1.Evacuation) {
				e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "one"}
			},
		} {
			a.Expect(changed(a, tenant, e, change)).To(deniedWith("may not have Pod default/changes evacuated"))
		}
		a.Expect(changed(a, tenant, e, func(e *v1alpha1.Evacuation) { e.Labels = map[string]string{"a": "b"} })).To(Succeed())
		e.Status.Message = "RBAC is asked who writes it"
		a.Expect(tenant.Status().Update(a.Context(), e)).To(Succeed())
	})
}

func testCancellationAdmission(t *testing.T, all *admission) {
	t.Helper()
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"delete"}}
	canceller := all.user("canceller", pods)
	finalizer := all.user("finalizer", pods, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"evacuations"}, Verbs: []string{"finalize"},
	})
	gone := func(a *admission, e *v1alpha1.Evacuation) {
		a.Eventually(func() error { return a.admin.Get(a.Context(), client.ObjectKeyFromObject(e), e) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	}

	t.Run("E9: one that allows it is cancelled by whoever may delete it", func(t *testing.T) {
		a := all.sub(t)
		e := a.evacuation("allow", v1alpha1.CancellationAllow)
		a.Expect(canceller.Delete(a.Context(), e)).To(Succeed())
		fresh := evacuationOf("fresh") // without a status
		a.Expect(canceller.Create(a.Context(), fresh)).To(Succeed())
		a.Expect(canceller.Delete(a.Context(), fresh)).To(Succeed())
	})
	t.Run("E9: one that forbids it isn't, but for holders of finalize", func(t *testing.T) {
		a := all.sub(t)
		e := a.evacuation("forbid", v1alpha1.CancellationForbid)
		refused := deniedWith("Evacuation default/%s forbids its cancellation", e.Name)
		a.Expect(canceller.Delete(a.Context(), e)).To(refused)
		a.Expect(canceller.DeleteAllOf(a.Context(), e, client.InNamespace(namespace), client.MatchingFields{"metadata.name": e.Name})).To(refused)
		a.Expect(changed(a, canceller, e, func(e *v1alpha1.Evacuation) { e.OwnerReferences = noSuchOwner() })).To(refused)
		a.Expect(changed(a, canceller, e, func(e *v1alpha1.Evacuation) { e.Labels = map[string]string{"a": "b"} })).To(Succeed())
		a.Expect(finalizer.Delete(a.Context(), e)).To(Succeed())
		gone(a, e)
	})
	t.Run("E9: the end of a Namespace isn't held up", func(t *testing.T) {
		a := all.sub(t)
		a.namespace("ends")
		e := a.evacuation("forbid", v1alpha1.CancellationForbid, func(e *v1alpha1.Evacuation) { e.Namespace = "ends" })
		a.Expect(a.admin.Delete(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ends"}})).To(Succeed())
		gone(a, e)
		a.Eventually(func() error {
			return a.admin.Get(a.Context(), types.NamespacedName{Name: "ends"}, &corev1.Namespace{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
	t.Run("E9: nor is the garbage collector, once the Pod is gone", func(t *testing.T) {
		a := all.sub(t)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		a.Expect(a.admin.Create(a.Context(), pod)).To(Succeed())
		e := a.evacuation("owner", v1alpha1.CancellationForbid, func(e *v1alpha1.Evacuation) {
			e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
		})
		a.Expect(canceller.Delete(a.Context(), e)).To(deniedWith("forbids its cancellation"))
		a.Expect(a.admin.Delete(a.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
		gone(a, e)
	})
}

func testBundleVersions(t *testing.T, all *admission) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "evacuations." + v1alpha1.GroupVersion.Group}}
	versioned := func(a *admission, version int, failure admissionregistrationv1.FailurePolicyType) {
		a.Expect(changed(a, a.admin, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
			p.Annotations[v1alpha1.BundleVersionAnnotation] = fmt.Sprint(version)
			p.Spec.FailurePolicy = &failure
		})).To(Succeed())
		a.Expect(remote.ApplyBundle(a.Context(), a.admin)).To(BeTrue())
		a.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(policy), policy)).To(Succeed())
	}
	t.Run("M31: a policy of a newer bundle stays, one of an older bundle is replaced", func(t *testing.T) {
		a := all.sub(t)
		versioned(a, workload.BundleVersion+1, admissionregistrationv1.Ignore)
		a.Expect(policy.Spec.FailurePolicy).To(HaveValue(Equal(admissionregistrationv1.Ignore)))
		versioned(a, workload.BundleVersion-1, admissionregistrationv1.Ignore)
		a.Expect(policy.Spec.FailurePolicy).To(HaveValue(Equal(admissionregistrationv1.Fail)))
		a.Expect(policy.Annotations).To(HaveKeyWithValue(v1alpha1.BundleVersionAnnotation, fmt.Sprint(workload.BundleVersion)))
	})
	t.Run("M31: policies and bindings come before CRDs", func(t *testing.T) {
		a := all.sub(t)
		bundle, err := workload.Bundle()
		a.Expect(err).NotTo(HaveOccurred())
		var kinds []string
		for _, object := range bundle {
			kinds = append(kinds, object.GetKind())
		}
		const policy, binding, crd = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CustomResourceDefinition"
		a.Expect(kinds).To(Equal([]string{policy, binding, policy, binding, policy, binding, crd, crd}))
	})
	t.Run("R7: the expressions fit the types of the CRDs", func(t *testing.T) {
		a := all.sub(t)
		policies := &admissionregistrationv1.ValidatingAdmissionPolicyList{}
		a.Expect(a.admin.List(a.Context(), policies)).To(Succeed())
		a.Expect(policies.Items).To(HaveLen(3))
		for i := range policies.Items {
			// They were checked before the CRDs were there; a copy is checked again.
			again := &admissionregistrationv1.ValidatingAdmissionPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "again." + policies.Items[i].Name}, Spec: policies.Items[i].Spec,
			}
			a.Expect(a.admin.Create(a.Context(), again)).To(Succeed())
			a.Eventually(func(g Gomega) {
				g.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(again), again)).To(Succeed())
				g.Expect(again.Status.TypeChecking).NotTo(BeNil())
			}, soon, pace).Should(Succeed())
			a.Expect(again.Status.TypeChecking.ExpressionWarnings).To(BeEmpty())
		}
	})
}

func TestBundleWithoutAdmissionPolicies(t *testing.T) {
	t.Run("R9: where admission policies aren't served, the CRDs are", func(t *testing.T) {
		g := NewWithT(t)
		cp := controlplane.ForTest(t, controlplane.Options{Name: "no-policies", ExtraArgs: map[controlplane.Component][]string{
			controlplane.APIServer: {
				"--runtime-config=admissionregistration.k8s.io/v1=false",
				"--disable-admission-plugins=ValidatingAdmissionPolicy,ValidatingAdmissionWebhook,MutatingAdmissionPolicy,MutatingAdmissionWebhook",
			},
		}})
		c, err := client.New(cp.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
		g.Expect(err).NotTo(HaveOccurred())
		policy := &unstructured.Unstructured{}
		policy.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"))
		_, err = c.RESTMapper().RESTMapping(policy.GroupVersionKind().GroupKind(), policy.GroupVersionKind().Version)
		g.Expect(err).To(HaveOccurred(), "it is served")
		g.Eventually(func() (bool, error) { return remote.ApplyBundle(t.Context(), c) }, soon, pace).Should(BeTrue())
		g.Expect(c.Create(t.Context(), maintenance("one"))).To(Succeed())
	})
}
