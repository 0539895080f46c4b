package integration

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestInterference deletes and changes, in the middle of a drain, what the drain depends on.
func TestInterference(t *testing.T) {
	parallel(t, 150*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 100 * time.Millisecond, PodDeletionDelay: 200 * time.Millisecond})
	all.withMachines("freed", "lost", "stripped", "swept", "cut-off", "severed", "unruled", "limited", "last", "spare")

	t.Run("M53: reports that another actor removed the hook, stops evicting, and leaves the drain to Cluster API", func(t *testing.T) { all.sub(t).hookRemoved() })
	t.Run("M54: releases the Machine when another actor deletes its Node during the drain", func(t *testing.T) { all.sub(t).nodeDeleted() })
	t.Run("M55: continues a drain whose NodeMaintenance another actor deleted without its finalizer", func(t *testing.T) { all.sub(t).finalizerRemoved() })
	t.Run("M55: keeps the Node cordoned if that happens while no manager runs", func(t *testing.T) { all.sub(t).finalizerRemovedWithoutManager() })
	t.Run("M56: continues drains without a MachineDrainPolicy while the CRD is missing, and follows the policy when it is created again", func(t *testing.T) {
		all.sub(t).policyCRDDeleted()
	})
	t.Run("E40: deletes a Pod whose disruption was granted to an eviction that was cut off, and does not wait for two minutes", func(t *testing.T) {
		all.sub(t).evictionCutOff()
	})
	t.Run("E40: deletes the Pod if the API server was killed between its write of the budget and the deletion", func(t *testing.T) {
		all.sub(t).apiServerKilledInEviction()
	})
	t.Run("M54: releases the Machine when its Cluster is deleted during the drain, and evicts no further Pod", func(t *testing.T) { all.sub(t).clusterDeleted() })
}

// blockedWithEvacuator deletes a Machine, and waits until a PodDisruptionBudget blocks two Pods of its Node and an evacuator is active for
// another one.
func (s *scene) blockedWithEvacuator(machine string) (waiting *corev1.Pod) {
	s.Helper()
	waiting = bare("waiting-"+machine, machine, withEvacuator)
	s.run(waiting)
	s.blocked(machine)
	s.Eventually(func() string { return s.activeClass(waiting) }, soon, pace).Should(Equal(evacuatorClass))
	return waiting
}

func (s *scene) hookRemoved() {
	defer s.removeWorkloads()
	s.leavesToCore("the hook is removed during the drain")
	s.blockedWithEvacuator("freed")
	s.change("freed", func(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.PreDrainHookAnnotation) })
	s.Eventually(func(g Gomega) {
		g.Expect(s.condition("freed").Reason).To(Equal(v1alpha1.ReasonHookRemoved))
		g.Expect(s.condition("freed").Message).To(HavePrefix("Another actor removed the annotation " + v1alpha1.PreDrainHookAnnotation))
		g.Expect(s.maintenanceOf("freed").Spec.Stage).To(Equal(v1alpha1.StageComplete))
		evacuations := &v1alpha1.EvacuationList{}
		g.Expect(s.workload.Client.List(s.Context(), evacuations)).To(Succeed())
		g.Expect(evacuations.Items).To(BeEmpty())
	}, soon, pace).Should(Succeed())
	s.openBudget()
	s.expectGone("freed")
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.nodeWrites("freed").Where(setsSchedulable)).To(BeEmpty())
}

func (s *scene) nodeDeleted() {
	defer s.removeWorkloads()
	s.blockedWithEvacuator("lost")
	s.Expect(s.workload.Client.Delete(s.Context(), s.node("lost"))).To(Succeed())
	s.Eventually(func(g Gomega) {
		evacuations := &v1alpha1.EvacuationList{}
		g.Expect(s.workload.Client.List(s.Context(), evacuations)).To(Succeed())
		for i := range evacuations.Items {
			g.Expect(evacuation.HasInstigator(&evacuations.Items[i], v1alpha1.NodeMaintenanceInstigatorFinalizer)).To(BeFalse(), evacuations.Items[i].Name)
		}
	}, 30*time.Second, pace).Should(Succeed(), "before Kubernetes deletes the Pods, which takes 40 s")
	s.expectGone("lost")
	said := s.said("lost")
	s.Expect(said[len(said)-1]).To(Equal("True Skipped"))
	s.Expect(s.evictions()).To(BeEmpty())
}

// removeMaintenance deletes the NodeMaintenance of a Machine without its finalizer.
func (s *scene) removeMaintenance(machine string) (removed types.UID) {
	s.Helper()
	m := s.maintenanceOf(machine)
	s.Expect(s.workload.Client.Delete(s.Context(), m)).To(Succeed())
	s.Expect(client.IgnoreNotFound(s.workload.Client.Patch(s.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).
		To(Succeed())
	return m.UID
}

// expectContinues waits until a NodeMaintenance of the Machine replaces another one, and checks that the drain then finishes.
func (s *scene) expectContinues(machine string, removed types.UID, waiting *corev1.Pod) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		m := s.maintenanceOf(machine)
		g.Expect(m).NotTo(BeNil())
		g.Expect(m.UID).NotTo(Equal(removed))
		g.Expect(s.activeClass(waiting)).To(Equal(evacuatorClass))
	}, soon, pace).Should(Succeed())
	s.openBudget()
	s.Eventually(func() int { return len(s.evictions().Succeeded()) }, soon, pace).Should(Equal(2))
	s.deletePods(waiting.Name)
	s.expectGone(machine)
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	s.Expect(s.nodeWrites(machine).Where(setsSchedulable)).To(BeEmpty())
}

func (s *scene) finalizerRemoved() {
	defer s.removeWorkloads()
	waiting := s.blockedWithEvacuator("stripped")
	s.expectContinues("stripped", s.removeMaintenance("stripped"), waiting)
}

func (s *scene) finalizerRemovedWithoutManager() {
	defer s.removeWorkloads()
	waiting := s.blockedWithEvacuator("swept")
	s.fleet.KillManager()
	removed := s.removeMaintenance("swept")
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectContinues("swept", removed, waiting)
}

func (s *scene) policyCRDDeleted() {
	defer s.removeWorkloads()
	s.change("limited", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(20)) })
	s.run(bare("waiting-limited", "limited", withEvacuator))
	s.blocked("unruled")
	s.deleteMachine("limited")
	s.Eventually(s.drainsBegun, soon, pace).Should(ContainElement(HavePrefix("limited-")))
	serve := s.unservePolicies()
	s.Eventually(func() string { return s.condition("unruled").Message }, soon, pace).Should(And(
		ContainSubstring("No MachineDrainPolicy selects the Machine any more: the drain continues with the defaults"),
		ContainSubstring("Waiting for PodDisruptionBudget")))
	s.Eventually(func() map[string]string { return s.machine("spare").Annotations }, soon, pace).ShouldNot(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.expectGone("limited")
	serve()
	s.create(s.fleet.Client, &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}})
	s.Eventually(func() map[string]string { return s.machine("spare").Annotations }, eventually, pace).Should(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.Eventually(func() string { return s.condition("unruled").Message }, soon, pace).ShouldNot(ContainSubstring("No MachineDrainPolicy"))
	s.openBudget()
	s.expectGone("unruled")
	s.Expect(s.evictions().Succeeded()).To(HaveLen(3))
}

// unservePolicies deletes the CRD of MachineDrainPolicies, and with it all policies, until serve creates it again.
func (s *scene) unservePolicies() (serve func()) {
	s.Helper()
	crd := read(s, s.fleet.Client, client.ObjectKey{Name: "machinedrainpolicies." + v1alpha1.GroupVersion.Group}, &apiextensionsv1.CustomResourceDefinition{})
	s.Expect(s.fleet.Client.Delete(s.Context(), crd.DeepCopy())).To(Succeed())
	return func() {
		s.Helper()
		crd.ObjectMeta = metav1.ObjectMeta{Name: crd.Name, Annotations: crd.Annotations, Labels: crd.Labels}
		crd.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		s.create(s.fleet.Client, crd)
		s.Eventually(func() error {
			return s.fleet.Client.List(s.Context(), &v1alpha1.MachineDrainPolicyList{})
		}, soon, pace).Should(Succeed())
	}
}

// evictionCutOff sets the status of a PodDisruptionBudget that an eviction leaves behind when the API server is killed after it has used
// the disruption, and before it has deleted the Pod.
func (s *scene) evictionCutOff() {
	defer s.removeWorkloads()
	s.runOn("cut-off", "web", 3, deployment("web", 3), budget("web", 1))
	s.expectDisruptionsAllowed("web", 1)
	granted := s.podsOf("web")[0]
	s.Eventually(func() time.Duration { return time.Since(granted.CreationTimestamp.Time) }, soon, pace).Should(BeNumerically(">", 2*time.Second))
	entry := fmt.Appendf(nil, `{"status":{"disruptionsAllowed":0,"disruptedPods":{%q:%q}}}`, granted.Name, time.Now().UTC().Format(time.RFC3339))
	s.Expect(s.workload.Client.Status().Patch(s.Context(), budget("web", 1), client.RawPatch(types.MergePatchType, entry))).To(Succeed())

	s.deleteMachine("cut-off")
	s.Eventually(func() []string { return names(s.podsOf("web")) }, soon, pace).ShouldNot(ContainElement(granted.Name))
	s.expectGone("cut-off")
	deletions := s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods").Succeeded()
	s.Expect(deletions).To(HaveLen(1))
	s.Expect(deletions[0].UIDPrecondition()).To(Equal(granted.UID))
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	s.expectNoneRefused()
}

// apiServerKilledInEviction delays all data between the API server and etcd from the eviction on. When etcd has stored the write of the
// budget, the API server does not know the response yet: it has not begun to delete the Pod.
func (s *scene) apiServerKilledInEviction() {
	defer s.removeWorkloads()
	s.mayBeRefused("the API server is killed")
	link, err := s.workload.LinkEtcd()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.workload.StopComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	s.runOn("severed", "web", 3, deployment("web", 3), budget("web", 1))
	s.expectDisruptionsAllowed("web", 1)
	pods := s.podsOf("web")

	webhook := s.hangEvictions("web-")
	s.deleteMachine("severed")
	s.Eventually(webhook.asked, soon).Should(Receive())
	link.Slow(3 * time.Second)
	begin, err := s.workload.StoredRevision(s.Context())
	s.Expect(err).NotTo(HaveOccurred())
	close(webhook.released)
	watching, stop := context.WithTimeout(s.Context(), eventually)
	defer stop()
	_, err = s.workload.StoredBetween(watching, begin, math.MaxInt64, func(key string) bool {
		if key == "/registry/poddisruptionbudgets/"+namespace+"/web" {
			link.Cut()
			stop()
		}
		return false
	})
	s.Expect(err).To(MatchError(context.Canceled))
	s.Expect(s.workload.KillComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	link.Slow(0)
	link.Restore()
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer)).To(Succeed())

	s.expectGone("severed")
	deletions := s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods").Succeeded()
	s.Expect(deletions).To(HaveLen(1))
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	removed := uidsOf(append(s.evictions().Succeeded(), deletions...))
	for i := range pods {
		s.Expect(removed).To(HaveKey(pods[i].UID))
	}
}

// clusterDeleted opens the PodDisruptionBudget after the release: a pre-terminate hook keeps the Machine and its Node.
func (s *scene) clusterDeleted() {
	s.change("last", func(m *clusterv1.Machine) { m.Annotations[preTerminateHook] = "" })
	s.blockedWithEvacuator("last")
	s.Expect(s.fleet.Client.Delete(s.Context(),
		&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.cluster.Key().Namespace, Name: s.cluster.Key().Name}})).To(Succeed())
	released := s.released("last")
	s.openBudget()
	s.Eventually(func(g Gomega) {
		g.Expect(s.maintenanceOf("last").Spec.Stage).To(Equal(v1alpha1.StageComplete))
		evacuations := &v1alpha1.EvacuationList{}
		g.Expect(s.workload.Client.List(s.Context(), evacuations)).To(Succeed())
		g.Expect(evacuations.Items).To(BeEmpty())
	}, soon, pace).Should(Succeed())
	said := s.said("last")
	s.Expect(said[len(said)-1]).To(Equal("True Skipped"))
	s.Expect(excludes(released)).To(Equal([]string{"drain", "volumes"}), "Cluster API may observe the deletion of the Cluster later")
	s.change("last", func(m *clusterv1.Machine) { delete(m.Annotations, preTerminateHook) })
	s.Eventually(func() bool { return s.isGone("last") }, eventually, pace).Should(BeTrue())
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.nodeWrites("last").Where(setsSchedulable)).To(BeEmpty())
}
