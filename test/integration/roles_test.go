package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// testRoles tests users who have only the roles of the bundle.
func testRoles(t *testing.T, all *admission) {
	t.Helper()
	all.ensure(maintenance("seen"))
	seen := all.evacuation("seen", v1alpha1.CancellationAllow)
	report := client.RawPatch(types.MergePatchType, []byte(`{"status":{"message":"in progress"}}`))

	t.Run("M33: allows users who can view the cluster to read NodeMaintenances and Evacuations, and not to change them", func(t *testing.T) {
		a := all.sub(t)
		viewer := a.plainUser("viewer", "view", "")
		a.Eventually(func() error {
			return viewer.Get(t.Context(), types.NamespacedName{Name: "seen"}, &v1alpha1.NodeMaintenance{})
		}, soon, pace).Should(Succeed())
		a.Expect(viewer.List(t.Context(), &v1alpha1.NodeMaintenanceList{})).To(Succeed())
		a.Expect(viewer.List(t.Context(), &v1alpha1.EvacuationList{})).To(Succeed())
		a.Expect(viewer.Create(t.Context(), maintenance("theirs"))).To(Satisfy(apierrors.IsForbidden))
		a.Expect(viewer.Status().Patch(t.Context(), seen.DeepCopy(), report)).To(Satisfy(apierrors.IsForbidden))
		a.Expect(viewer.Delete(t.Context(), seen.DeepCopy())).To(Satisfy(apierrors.IsForbidden))
	})
	t.Run("M33: allows users who can edit a Namespace to read only its Evacuations", func(t *testing.T) {
		a := all.sub(t)
		editor := a.plainUser("editor", "edit", seen.Namespace)
		a.Eventually(func() error { return editor.Get(t.Context(), client.ObjectKeyFromObject(seen), &v1alpha1.Evacuation{}) }, soon, pace).Should(Succeed())
		a.Expect(editor.List(t.Context(), &v1alpha1.EvacuationList{}, client.InNamespace(metav1.NamespaceSystem))).To(Satisfy(apierrors.IsForbidden))
		a.Expect(editor.List(t.Context(), &v1alpha1.NodeMaintenanceList{})).To(Satisfy(apierrors.IsForbidden))
		a.Expect(editor.Create(t.Context(), evacuationOf("theirs"))).To(Satisfy(apierrors.IsForbidden))
		a.Expect(editor.Status().Patch(t.Context(), seen.DeepCopy(), report)).To(Satisfy(apierrors.IsForbidden))
		a.Expect(editor.Delete(t.Context(), seen.DeepCopy())).To(Satisfy(apierrors.IsForbidden))
	})
	t.Run("M33: allows evacuators to report, and not to request evacuations", func(t *testing.T) {
		a := all.sub(t)
		evacuator := a.plainUser("evacuator", "capnm-evacuator", "")
		a.Eventually(func() error { return evacuator.Status().Patch(t.Context(), seen.DeepCopy(), report) }, soon, pace).Should(Succeed())
		a.Expect(evacuator.List(t.Context(), &v1alpha1.EvacuationList{})).To(Succeed())
		a.Expect(evacuator.List(t.Context(), &corev1.PodList{})).To(Succeed())
		a.Expect(evacuator.Create(t.Context(), evacuationOf("theirs"))).To(Satisfy(apierrors.IsForbidden))
		a.Expect(evacuator.Delete(t.Context(), seen.DeepCopy())).To(Satisfy(apierrors.IsForbidden))
		a.Expect(evacuator.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: seen.Namespace, Name: "seen"}})).
			To(Satisfy(apierrors.IsForbidden))
	})
}

// plainUser returns a client of a user with one ClusterRole, in a Namespace or in the whole cluster, and no group.
func (a *admission) plainUser(name, role, namespace string) client.Client {
	a.Helper()
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "plain-" + name}
	if namespace == "" {
		a.ensure(&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref})
	} else {
		a.ensure(&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref})
	}
	config, err := a.cp.ConfigFor(name)
	a.Expect(err).NotTo(HaveOccurred())
	return a.clientFor(config)
}
