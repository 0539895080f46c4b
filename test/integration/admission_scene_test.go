package integration

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workloadcluster"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// admission is a workload cluster with the bundle and RBAC, and without a manager. Each user has all permissions on our kinds, so only the
// policies deny requests.
type admission struct {
	*testing.T
	*WithT
	cp    *controlplane.ControlPlane
	admin client.Client
}

const maintainers = "maintainers"

func newAdmission(t *testing.T, options controlplane.Options) *admission {
	t.Helper()
	a := &admission{T: t, WithT: NewWithT(t), cp: controlplane.ForTest(t, options)}
	a.admin = a.clientFor(a.cp.AdminConfig())
	a.applyBundle()
	a.role(maintainers, rbacv1.Subject{Kind: rbacv1.GroupKind, Name: maintainers}, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group},
		Resources: []string{"nodemaintenances", "nodemaintenances/status", "evacuations", "evacuations/status"},
		Verbs:     []string{"get", "list", "create", "update", "patch", "delete", "deletecollection"},
	})
	// The API server enforces a policy a moment after its creation.
	unprivileged := a.user("unprivileged")
	a.Eventually(func() error { return unprivileged.Create(t.Context(), maintenance("canary"), client.DryRunAll) }, soon, pace).
		Should(MatchError(ContainSubstring("may not maintain Node")))
	a.Eventually(func() error { return unprivileged.Create(t.Context(), evacuationOf("canary"), client.DryRunAll) }, soon, pace).
		Should(MatchError(ContainSubstring("may not request the evacuation of Pod")))
	canary := a.evacuation("canary", v1alpha1.CancellationForbid)
	a.Eventually(func() error { return unprivileged.Delete(t.Context(), canary, client.DryRunAll) }, soon, pace).
		Should(MatchError(ContainSubstring("cannot be cancelled")))
	return a
}

// applyBundle applies the bundle as the manager does. It expects success for all objects except those of the missing kinds.
func (a *admission) applyBundle(missing ...string) {
	a.Helper()
	a.Eventually(func(g Gomega) {
		applied, err := workloadcluster.ApplyBundle(a.Context(), a.admin)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(applied.Unserved).To(BeEmpty())
		g.Expect(applied.Missing).To(HaveLen(len(missing)))
		for i, kind := range missing {
			g.Expect(applied.Missing[i]).To(HavePrefix(kind + " "))
		}
	}, soon, pace).Should(Succeed())
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

// user returns a client of a user who may write our kinds and has the permissions in rules.
func (a *admission) user(name string, rules ...rbacv1.PolicyRule) client.Client {
	a.Helper()
	if len(rules) > 0 {
		a.role(name, rbacv1.Subject{Kind: rbacv1.UserKind, Name: name}, rules...)
	}
	config, err := a.cp.ConfigFor(name, maintainers)
	a.Expect(err).NotTo(HaveOccurred())
	return a.clientFor(config)
}

// ensure creates an object unless it exists, since scenes can be repeated.
func (a *admission) ensure(object client.Object) {
	a.Helper()
	err := a.admin.Create(a.Context(), object)
	if apierrors.IsAlreadyExists(err) {
		err = a.admin.Get(a.Context(), client.ObjectKeyFromObject(object), object)
	}
	a.Expect(err).NotTo(HaveOccurred())
}

// role grants permissions in the whole cluster and waits until they are effective, since the authorizer observes them by a watch.
func (a *admission) role(name string, who rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	a.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-" + name}, Rules: rules}
	a.ensure(role)
	a.ensure(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + name},
		Subjects:   []rbacv1.Subject{who},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	})
	a.Eventually(func() (bool, error) { return a.may(who, rules[0]) }, soon, pace).Should(BeTrue(), "%v may %v", who, rules[0])
}

// may asks the API server whether a subject has the first permission of a rule.
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

// evacuation creates an Evacuation of a Pod as administrator.
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
	a.ensure(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
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

// deniedWith matches the error of a policy that denies a request with a message.
func deniedWith(format string, args ...any) gomegatypes.GomegaMatcher {
	return And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring(fmt.Sprintf(format, args...))))
}

// changed reads an object and applies a change to it.
func changed[T client.Object](a *admission, by client.Client, object T, change func(T)) error {
	a.Helper()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		a.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		change(object)
		return by.Update(a.Context(), object)
	})
}

// serviceAccount returns a client with a token of a ServiceAccount.
func (a *admission) serviceAccount(name string, bound *authenticationv1.BoundObjectReference) client.Client {
	a.Helper()
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	a.Expect(a.admin.SubResource("token").Create(a.Context(), account, token)).To(Succeed())
	config := rest.AnonymousClientConfig(a.cp.AdminConfig())
	config.BearerToken = token.Status.Token
	return a.clientFor(config)
}

// noSuchOwner is an owner that does not exist, so the garbage collector deletes the object.
func noSuchOwner() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "00000000-0000-0000-0000-000000000000"}}
}
