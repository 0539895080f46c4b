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

func testEvacuationAdmission(t *testing.T, all *admission) {
	t.Helper()
	all.namespace("theirs")
	tenant := all.user("tenant")
	all.ensure(&rbacv1.RoleBinding{ // the built-in role, in the tenant's Namespace
		ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "tenant"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "tenant"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	})
	deletes := all.user("deletes-pod", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"delete"}, ResourceNames: []string{"web"},
	})
	evicts := all.user("evicts-pod", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}, ResourceNames: []string{"web"},
	})
	in := func(namespace string) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.Namespace = namespace }
	}

	t.Run("E10: allows a tenant to request evacuations of Pods in their Namespace", func(t *testing.T) {
		a := all.sub(t)
		e := evacuationOf("web", in("theirs"))
		a.Eventually(func() error { return tenant.Create(a.Context(), e) }, soon, pace).Should(Succeed())
		a.Expect(changed(a, tenant, e, func(e *v1alpha1.Evacuation) {
			e.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "example.com"}
		})).To(Succeed())
		a.Expect(tenant.Create(a.Context(), evacuationOf("web"))).
			To(deniedWith("user tenant may not request the evacuation of Pod default/web: permission to evict or delete the Pod is required"))
	})
	t.Run("E10: requires permission to delete or to evict the Pod by name", func(t *testing.T) {
		a := all.sub(t)
		for _, user := range []client.Client{deletes, evicts} {
			e := evacuationOf("web")
			a.Expect(user.Create(a.Context(), e)).To(Succeed())
			a.Expect(user.Delete(a.Context(), e)).To(Succeed())
			a.Expect(user.Create(a.Context(), evacuationOf("db"))).To(deniedWith("may not request the evacuation of Pod default/db"))
		}
	})
	t.Run("E59: allows only managers to request an evacuation for NodeMaintenances", func(t *testing.T) {
		a := all.sub(t)
		finalizer := func(e *v1alpha1.Evacuation) {
			e.Finalizers = append(e.Finalizers, v1alpha1.NodeMaintenanceInstigatorFinalizer)
		}
		annotation := func(e *v1alpha1.Evacuation) {
			e.Annotations = map[string]string{v1alpha1.NodeMaintenanceInstigatorFinalizer: ""}
		}
		refused := deniedWith("user tenant may not request the evacuation of Pod theirs/asked for NodeMaintenances")
		own := evacuationOf("asked", in("theirs"))
		a.Expect(tenant.Create(a.Context(), own)).To(Succeed())
		for _, request := range []func(*v1alpha1.Evacuation){finalizer, annotation} {
			a.Expect(tenant.Create(a.Context(), evacuationOf("refused", in("theirs"), request))).To(deniedWith("for NodeMaintenances"))
			a.Expect(changed(a, tenant, own, request)).To(refused)
		}
		a.Expect(tenant.Delete(a.Context(), own)).To(Succeed())
		ours := a.evacuation("ours", v1alpha1.CancellationAllow, in("theirs"), finalizer)
		a.Expect(changed(a, tenant, ours, func(e *v1alpha1.Evacuation) {
			e.Finalizers = append(e.Finalizers, v1alpha1.InstigatorFinalizerPrefix+"example.com")
		})).To(Succeed(), "the request of the manager stays")
		a.Expect(changed(a, tenant, ours, func(e *v1alpha1.Evacuation) { e.Finalizers = nil })).To(Succeed(), "it may be removed")
	})
	t.Run("E10: checks changes of spec, finalizers and owners, but not of status and labels", func(t *testing.T) {
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
			func(e *v1alpha1.Evacuation) {
				e.Annotations = map[string]string{v1alpha1.NodeMaintenanceInstigatorFinalizer: ""}
			},
		} {
			a.Expect(changed(a, tenant, e, change)).To(deniedWith("may not request the evacuation of Pod default/changes"))
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

	t.Run("E9: allows users who may delete an Evacuation to cancel it", func(t *testing.T) {
		a := all.sub(t)
		e := a.evacuation("allow", v1alpha1.CancellationAllow)
		a.Expect(canceller.Delete(a.Context(), e)).To(Succeed())
		fresh := evacuationOf("fresh") // without a status
		a.Expect(canceller.Create(a.Context(), fresh)).To(Succeed())
		a.Expect(canceller.Delete(a.Context(), fresh)).To(Succeed())
	})
	t.Run("E9: denies the cancellation of an Evacuation that forbids it, except with permission to finalize", func(t *testing.T) {
		a := all.sub(t)
		e := a.evacuation("forbid", v1alpha1.CancellationForbid)
		refused := deniedWith("Evacuation default/%s cannot be cancelled", e.Name)
		a.Expect(canceller.Delete(a.Context(), e)).To(refused)
		a.Expect(canceller.DeleteAllOf(a.Context(), e, client.InNamespace(namespace), client.MatchingFields{"metadata.name": e.Name})).To(refused)
		a.Expect(changed(a, canceller, e, func(e *v1alpha1.Evacuation) { e.OwnerReferences = noSuchOwner() })).To(refused)
		a.Expect(changed(a, canceller, e, func(e *v1alpha1.Evacuation) { e.Labels = map[string]string{"a": "b"} })).To(Succeed())
		a.Expect(finalizer.Delete(a.Context(), e)).To(Succeed())
		gone(a, e)
	})
	t.Run("E9: does not block the deletion of a Namespace", func(t *testing.T) {
		a := all.sub(t)
		a.namespace("ends")
		e := a.evacuation("forbid", v1alpha1.CancellationForbid, func(e *v1alpha1.Evacuation) { e.Namespace = "ends" })
		a.Expect(a.admin.Delete(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ends"}})).To(Succeed())
		gone(a, e)
		a.Eventually(func() error {
			return a.admin.Get(a.Context(), types.NamespacedName{Name: "ends"}, &corev1.Namespace{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
	t.Run("E9: does not block the garbage collector after the Pod is deleted", func(t *testing.T) {
		a := all.sub(t)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		a.Expect(a.admin.Create(a.Context(), pod)).To(Succeed())
		e := a.evacuation("owner", v1alpha1.CancellationForbid, func(e *v1alpha1.Evacuation) {
			e.Name, e.Spec.PodRef.UID = string(pod.UID)+"-owner", string(pod.UID)
			e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
		})
		a.Expect(canceller.Delete(a.Context(), e)).To(deniedWith("cannot be cancelled"))
		a.Expect(a.admin.Delete(a.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
		gone(a, e)
	})
	testCollectionAdmission(t, all, canceller, finalizer)
}

func testCollectionAdmission(t *testing.T, all *admission, canceller, finalizer client.Client) {
	t.Helper()
	podOf := func(e *v1alpha1.Evacuation) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: e.Spec.PodRef.Name, UID: types.UID(e.Spec.PodRef.UID)}
	}
	t.Run("E98: denies the garbage collector the deletion of an Evacuation that its Pod does not own", func(t *testing.T) {
		a := all.sub(t)
		owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "owner-"}}
		a.Expect(a.admin.Create(a.Context(), owner)).To(Succeed())
		replaced, similar := a.evacuation("replaced", v1alpha1.CancellationAllow), a.evacuation("similar", v1alpha1.CancellationForbid)
		a.Expect(changed(a, canceller, replaced, func(e *v1alpha1.Evacuation) {
			e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
		})).To(Succeed())
		replaced.Status.EvacuationCancellationPolicy = v1alpha1.CancellationForbid
		a.Expect(a.admin.Status().Update(a.Context(), replaced)).To(Succeed())
		begin, err := a.cp.Audit().Mark()
		a.Expect(err).NotTo(HaveOccurred())
		a.Expect(a.admin.Delete(a.Context(), owner)).To(Succeed())
		a.Expect(changed(a, finalizer, similar, func(e *v1alpha1.Evacuation) {
			otherKind, otherName, otherUID := podOf(e), podOf(e), podOf(e)
			otherKind.Kind, otherName.Name, otherUID.UID = "Secret", "other", "other"
			e.OwnerReferences = []metav1.OwnerReference{otherKind, otherName, otherUID}
		})).To(Succeed())
		for _, e := range []*v1alpha1.Evacuation{replaced, similar} {
			a.Eventually(func(g Gomega) {
				events, err := a.cp.Audit().Since(begin)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(events.Verb("delete").Resource("evacuations").Named(namespace, e.Name)).NotTo(BeEmpty())
			}, eventually, pace).Should(Succeed())
			a.Expect(finalizer.Delete(a.Context(), e)).To(Succeed())
		}
	})
	// Without --use-service-account-credentials, this user is the garbage collector and the namespace controller.
	controllers := all.user("system:kube-controller-manager")
	t.Run("E98: denies the kube-controller-manager that deletion, and allows others", func(t *testing.T) {
		a := all.sub(t)
		foreign := func(e *v1alpha1.Evacuation) { e.Finalizers = []string{"example.com/audit"} }
		unowned := a.evacuation("unowned", v1alpha1.CancellationForbid)
		a.Expect(controllers.Delete(a.Context(), unowned)).To(deniedWith("cannot be cancelled"))
		a.Expect(finalizer.Delete(a.Context(), unowned)).To(Succeed())
		collected := a.evacuation("collected", v1alpha1.CancellationForbid, foreign)
		a.Expect(changed(a, finalizer, collected, func(e *v1alpha1.Evacuation) { e.OwnerReferences = []metav1.OwnerReference{podOf(e)} })).To(Succeed())
		a.Expect(controllers.Delete(a.Context(), collected)).To(Succeed())
		a.namespace("terminating")
		leftBehind := a.evacuation("left", v1alpha1.CancellationForbid, foreign, func(e *v1alpha1.Evacuation) { e.Namespace = "terminating" })
		a.Expect(controllers.Delete(a.Context(), leftBehind)).To(deniedWith("cannot be cancelled"))
		a.Expect(a.admin.Delete(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "terminating"}})).To(Succeed())
		a.Eventually(func() error { return controllers.Delete(a.Context(), leftBehind) }, eventually, pace).Should(Succeed())
		for _, e := range []*v1alpha1.Evacuation{collected, leftBehind} {
			a.Expect(changed(a, a.admin, e, func(e *v1alpha1.Evacuation) { e.Finalizers = nil })).To(Succeed())
		}
		a.Eventually(func() error {
			return a.admin.Get(a.Context(), types.NamespacedName{Name: "terminating"}, &corev1.Namespace{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
}
