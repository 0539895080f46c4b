package integration

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

const (
	crds     = "CustomResourceDefinition"
	policies = "ValidatingAdmissionPolicy"
	bindings = "ValidatingAdmissionPolicyBinding"
	roles    = "ClusterRole"
)

// testBundleRestored is the part of TestRollouts that deletes and changes what the manager installs in a workload cluster. It leaves no
// Machine.
func (s *scene) testBundleRestored() {
	t, all := s.T, s
	all.withMachines("idle", "draining", "unattended", "terminating", "limited", "changed", "refused", "spare")
	tenant := all.newTenant()

	t.Run("M50: drains a Machine after all objects of the bundle were deleted from the idle workload cluster", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("idle", "web", 3, deployment("web", 3), budget("web", 1))
		s.expectDisruptionsAllowed("web", 1)
		s.deleteBundle(crds, policies, bindings, roles)
		s.deleteMachine("idle")
		s.expectBundle()
		s.expectGone("idle")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(3))
	})

	t.Run("M50: continues a drain after the CRDs were deleted with their objects, and evicts no Pod twice", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		waiting := bare("waiting", "draining", withEvacuator)
		s.run(waiting)
		s.runOn("draining", "web", 3, deployment("web", 3), budget("web", 1))
		s.expectDisruptionsAllowed("web", 1)
		s.deleteMachine("draining")
		s.Eventually(func() string { return s.activeClass(waiting) }, soon, pace).Should(Equal(evacuatorClass))
		s.deleteBundle(crds)
		s.expectBundle()
		s.Eventually(func() string { return s.activeClass(waiting) }, eventually, pace).Should(Equal(evacuatorClass))
		s.Expect(s.node("draining").Spec.Unschedulable).To(BeTrue())
		s.deletePods(waiting.Name)
		s.expectGone("draining")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(3))
	})

	t.Run("M50: continues a drain whose CRDs another actor deleted while no manager ran", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		waiting := bare("waiting", "unattended", withEvacuator)
		s.run(waiting)
		s.deleteMachine("unattended")
		s.Eventually(func() string { return s.activeClass(waiting) }, soon, pace).Should(Equal(evacuatorClass))
		s.fleet.KillManager()
		s.requestBundleDeletion(crds) // which waits for the finalizers of the manager
		s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
		s.expectBundle()
		s.Eventually(func() string { return s.activeClass(waiting) }, eventually, pace).Should(Equal(evacuatorClass))
		s.Expect(s.node("unattended").Spec.Unschedulable).To(BeTrue())
		s.deletePods(waiting.Name)
		s.expectGone("unattended")
	})

	t.Run("M51: restores changed and deleted objects while a Machine is drained, counts them, and does not write unchanged ones", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		waiting := bare("waiting", "changed", withEvacuator)
		s.run(waiting)
		s.deleteMachine("changed")
		s.Eventually(func() string { return s.activeClass(waiting) }, soon, pace).Should(Equal(evacuatorClass))
		before := s.restored()
		s.changeBundle()
		s.expectUnchanged()
		s.Eventually(func() map[string]float64 { // the manager counts after it has written all objects
			counts := s.restored()
			for kind := range counts {
				counts[kind] -= before[kind]
			}
			return counts
		}, eventually, pace).Should(Equal(map[string]float64{policies: 3, bindings: 1, crds: 1, roles: 1}))
		s.expectEventIn(s.fleet.Client, s.cluster.Key().Name, "BundleRestored",
			"Restored ValidatingAdmissionPolicy nodemaintenances."+v1alpha1.GroupVersion.Group+" in the workload cluster, which another actor had changed")
		s.Expect(s.bundleWrites()).To(HaveLen(6))
		s.tenantHasNoPower(tenant)
		s.deletePods(waiting.Name)
		s.expectGone("changed")
	})

	t.Run("M52: names the missing CRD that the API server does not allow to recreate, and why", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("refused", "web", 1, deployment("web", 1))
		name := "nodemaintenances." + v1alpha1.GroupVersion.Group
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		crd.ResourceVersion = ""
		permit := s.refuse("crds", fmt.Sprintf("object.metadata.name == %q", name), admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{apiextensionsv1.GroupName}, APIVersions: []string{"*"}, Resources: []string{"customresourcedefinitions"},
			},
		}, func() error { return s.workload.Client.Create(s.Context(), crd.DeepCopy(), client.DryRunAll) })
		s.deleteBundle(crds)
		s.deleteMachine("refused")
		s.Eventually(func(g Gomega) {
			g.Expect(s.condition("refused").Reason).To(Equal(v1alpha1.ReasonCRDNotServed))
			g.Expect(s.condition("refused").Message).To(And(
				HavePrefix("CustomResourceDefinition "+name+" is missing in the workload cluster and cannot be created: "),
				ContainSubstring("ValidatingAdmissionPolicy 'crds'")))
		}, soon, pace).Should(Succeed())
		permit()
		s.expectGone("refused")
		s.expectBundle()
	})

	t.Run("M52: names the CRD that is being deleted and the finalizers that it waits for; M13: the drain timeout ends this wait", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		kept := nm("kept", v1alpha1.StageIdle, ofNodes("none"))
		kept.Finalizers = []string{"example.com/keep"}
		s.create(s.workload.Client, kept)
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "nodemaintenances." + v1alpha1.GroupVersion.Group}}
		s.Expect(s.workload.Client.Delete(s.Context(), crd)).To(Succeed())
		s.change("limited", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(20)) })
		s.deleteMachine("terminating")
		s.deleteMachine("limited")
		s.Eventually(func(g Gomega) {
			g.Expect(s.condition("terminating").Reason).To(Equal(v1alpha1.ReasonCRDNotServed))
			g.Expect(s.condition("terminating").Message).To(Equal("Waiting for the deletion of CustomResourceDefinition " + crd.Name +
				" by another actor to complete, which waits for the finalizers of NodeMaintenance kept: example.com/keep. It is recreated afterwards"))
		}, soon, pace).Should(Succeed())
		s.Eventually(func() bool { return s.isGone("limited") }, eventually, pace).Should(BeTrue())
		s.Expect(s.condition("terminating").Reason).To(Equal(v1alpha1.ReasonCRDNotServed))
		s.Expect(s.workload.Client.Patch(s.Context(), kept, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		s.expectGone("terminating")
	})
	all.deleteMachine("spare")
	all.expectGone("spare")
}

// requestBundleDeletion deletes the objects of the bundle that are of these kinds, and returns them.
func (s *scene) requestBundleDeletion(kinds ...string) []*unstructured.Unstructured {
	s.Helper()
	objects, err := workload.Bundle()
	s.Expect(err).NotTo(HaveOccurred())
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return !slices.Contains(kinds, o.GetKind()) })
	for _, object := range objects {
		s.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		s.Expect(s.workload.Client.Delete(s.Context(), object)).To(Succeed())
	}
	return objects
}

// deleteBundle deletes the objects of the bundle that are of these kinds, and waits until they are gone.
func (s *scene) deleteBundle(kinds ...string) {
	s.Helper()
	for _, object := range s.requestBundleDeletion(kinds...) {
		deleted := object.GetUID()
		s.Eventually(func(g Gomega) {
			err := s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(object), object)
			g.Expect(client.IgnoreNotFound(err)).To(Succeed())
			g.Expect(err != nil || object.GetUID() != deleted).To(BeTrue())
		}, eventually, pace).Should(Succeed(), "%s %s", object.GetKind(), object.GetName())
	}
}

// expectBundle waits until all objects of the bundle exist and the API server serves their kinds.
func (s *scene) expectBundle() {
	s.Helper()
	objects, err := workload.Bundle()
	s.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		s.Eventually(func(g Gomega) {
			g.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.GetDeletionTimestamp()).To(BeNil())
		}, eventually, pace).Should(Succeed(), "%s %s", object.GetKind(), object.GetName())
	}
	for _, list := range []client.ObjectList{&v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}} {
		s.Eventually(func() error { return s.workload.Client.List(s.Context(), list) }, eventually, pace).Should(Succeed())
	}
}

// changeBundle changes an object of each kind of the bundle in a way that makes it ineffective, and deletes a policy and its binding.
func (s *scene) changeBundle() {
	s.Helper()
	group := "." + v1alpha1.GroupVersion.Group
	for object, patch := range map[client.Object]string{
		// Server-side apply would keep this addition of another field manager.
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nodemaintenances" + group}}: `[{"op":"add",` +
			`"path":"/spec/matchConditions/0","value":{"name":"never","expression":"false"}}]`,
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "evacuations" + group}}: `[{"op":"replace",` +
			`"path":"/spec/matchConstraints/namespaceSelector","value":{"matchLabels":{"a":"b"}}}]`,
		&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "evacuations" + group}}: `[{"op":"remove","path":"/spec/names/shortNames"}]`,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "capnm-view"}}:                                `[{"op":"replace","path":"/rules","value":[]}]`,
	} {
		s.Expect(s.workload.Client.Patch(s.Context(), object, client.RawPatch(types.JSONPatchType, []byte(patch)))).To(Succeed())
	}
	s.Expect(s.workload.Client.Delete(s.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cancellations" + group}})).To(Succeed())
	s.Expect(s.workload.Client.Delete(s.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "cancellations" + group},
	})).To(Succeed())
}

// expectUnchanged waits until the changes of changeBundle are reverted.
func (s *scene) expectUnchanged() {
	s.Helper()
	s.expectBundle()
	group := "." + v1alpha1.GroupVersion.Group
	s.Eventually(func(g Gomega) {
		policy, crd, role := &admissionregistrationv1.ValidatingAdmissionPolicy{}, &apiextensionsv1.CustomResourceDefinition{}, &rbacv1.ClusterRole{}
		g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "nodemaintenances" + group}, policy)).To(Succeed())
		g.Expect(policy.Spec.MatchConditions).To(HaveLen(1))
		g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "evacuations" + group}, policy)).To(Succeed())
		g.Expect(policy.Spec.MatchConstraints.NamespaceSelector).To(BeComparableTo(&metav1.LabelSelector{}))
		g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "evacuations" + group}, crd)).To(Succeed())
		g.Expect(crd.Spec.Names.ShortNames).To(Equal([]string{"evac"}))
		g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "capnm-view"}, role)).To(Succeed())
		g.Expect(role.Rules).NotTo(BeEmpty())
	}, soon, pace).Should(Succeed())
}

// restored is how many objects of the bundle were restored, by kind.
func (s *scene) restored() map[string]float64 {
	s.Helper()
	counts, metrics := map[string]float64{}, s.metrics()
	for _, kind := range []string{policies, bindings, crds, roles} {
		counts[kind] = metrics.Sum("capnm_bundle_restored_total", map[string]string{"kind": kind})
	}
	return counts
}

// bundleWrites are the successful writes of our manager to objects of the bundle.
func (s *scene) bundleWrites() (names []string) {
	s.Helper()
	writes := s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Succeeded() // not the conflicts with writes of the status of a policy
	for _, resource := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings", "customresourcedefinitions", "clusterroles"} {
		for _, write := range writes.Resource(resource) {
			names = append(names, write.Verb+" "+resource+" "+write.Name)
		}
	}
	return names
}

// tenantHasNoPower checks that admission policies restrict a tenant: they are in force a moment after they are created.
func (s *scene) tenantHasNoPower(tenant client.Client) {
	s.Helper()
	victim := bare("victim", "spare")
	s.run(victim)
	stolen := tenantEvacuation(victim.Name, victim.UID)
	stolen.Namespace = namespace
	s.Eventually(func() error { return tenant.Create(s.Context(), stolen, client.DryRunAll) }, soon, pace).Should(Satisfy(apierrors.IsForbidden))
	user := s.evictorOf("decoy")
	s.Eventually(func() error { return user.Create(s.Context(), requestFor(victim), client.DryRunAll) }, soon, pace).Should(Satisfy(apierrors.IsForbidden))
	maintainer := s.maintainerOf("none")
	s.Eventually(func() error {
		return maintainer.Create(s.Context(), maintenance("stolen", ofNodes("spare")), client.DryRunAll)
	}, soon, pace).Should(MatchError(ContainSubstring("may not maintain Node spare")))
	s.Expect(s.evictionsOf("victim")).To(BeEmpty())
	s.deletePods(victim.Name)
}
