package integration

import (
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// nameTaken creates a NodeMaintenance of the Node spare with the name that the NodeMaintenance of a Machine will have.
func (s *scene) nameTaken(machine string) {
	s.drainsBesides(machine, func(name string) {
		user := s.maintainerOf("spare")
		s.Expect(user.Create(s.Context(), nm(name, v1alpha1.StageIdle, ofNodes("spare"), s.namesOwner(machine)))).To(Satisfy(apierrors.IsForbidden))
		s.Expect(user.Create(s.Context(), nm(name, v1alpha1.StageIdle, ofNodes("spare")))).To(Succeed())
	})
}

// nameTakenUnguarded does so as an administrator, whom no admission policy prevents from naming the Machine: the manager must detect that
// another Node is selected.
func (s *scene) nameTakenUnguarded(machine string) {
	s.drainsBesides(machine, func(name string) {
		s.create(s.workload.Client, nm(name, v1alpha1.StageIdle, ofNodes("spare"), s.namesOwner(machine)))
	})
}

// drainsBesides deletes a Machine although the name of its NodeMaintenance is taken, and expects that only the Node of the Machine is
// drained.
func (s *scene) drainsBesides(machine string, take func(name string)) {
	s.Helper()
	defer s.removeWorkloads()
	other := bare("other-"+machine, "spare") // kwok may delete a Pod whose name the Pod of an earlier scene had
	s.run(other)
	s.runOn(machine, "web", 2, deployment("web", 2), budget("web", 0))
	name := machinedrain.MaintenanceName(keyOf(machine), machine, s.node(machine).UID)
	take(name)
	s.deleteMachine(machine)
	s.Eventually(func() string { return s.condition(machine).Message }, soon, pace).Should(And(
		ContainSubstring("Waiting for PodDisruptionBudget"),
		ContainSubstring("NodeMaintenance "+name+" was not written by the manager for this Machine and Node")))
	s.openBudget()
	s.Eventually(func() bool { return s.isGone(machine) }, eventually, pace).Should(BeTrue())
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	s.Expect(s.evictions().Succeeded().Names()).To(HaveEach(HavePrefix("web-")))
	s.Expect(s.pod(other.Name).UID).To(Equal(other.UID))
	s.Expect(s.node("spare").Spec.Unschedulable).To(BeFalse())

	taken := read(s, s.workload.Client, client.ObjectKey{Name: name}, &v1alpha1.NodeMaintenance{})
	s.Expect(taken.Spec.Stage).To(Equal(v1alpha1.StageIdle))
	s.deleteMaintenances(name)
	s.expectGone(machine)
}

// namesOwner adds the annotations with which the manager names the Machine of a NodeMaintenance.
func (s *scene) namesOwner(machine string) func(*v1alpha1.NodeMaintenance) {
	s.Helper()
	kubeSystem := read(s, s.fleet.Client, client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
	node := s.node("spare").UID
	return func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{
			v1alpha1.OwnerManagementClusterAnnotation: string(kubeSystem.UID),
			v1alpha1.OwnerClusterAnnotation:           s.cluster.Key().String(),
			v1alpha1.OwnerMachineAnnotation:           keyOf(machine).String(),
			v1alpha1.NodeUIDAnnotation:                string(node),
			v1alpha1.RequestedForAnnotation:           v1alpha1.RequestedForDeletion,
		}
	}
}

// maintainerOf returns a client of a user with all permissions on our kinds and permission to delete one Node.
func (s *scene) maintainerOf(node string) client.Client {
	s.Helper()
	name := "maintainer-of-" + node
	s.ensure(s.workload.Client,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"*"}},
			mayDeleteNodes(node),
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: name}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		})
	user := s.user(name)
	s.Eventually(func() error {
		return user.Create(s.Context(), nm("canary", v1alpha1.StageIdle, ofNodes(node)), client.DryRunAll)
	}, soon, pace).Should(Succeed())
	return user
}

// forgedDrain creates a NodeMaintenance of another Node that names the Machine that waits for a turn.
func (s *scene) forgedDrain(first, second string) {
	defer s.limitDrains()()
	s.run(bare("on-"+first, first), bare("on-"+second, second))
	s.create(s.workload.Client, nm("forged", v1alpha1.StageDrain, ofNodes("spare"), s.namesOwner(second)))
	s.expectObserved("forged")
	s.deleteMachine(first)
	s.deleteMachine(second)
	for _, machine := range []string{first, second} {
		s.Eventually(func() bool { return s.isGone(machine) }, eventually, pace).Should(BeTrue())
	}
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-"+first, "on-"+second))
	s.setStage("forged", v1alpha1.StageComplete)
	s.deleteMaintenances("forged")
	s.setUnschedulable("spare", false)
}

// limitDrains sets maxParallelDrains to one. The returned function removes the limit.
func (s *scene) limitDrains() (unlimited func()) {
	s.Helper()
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1)) })
	return func() { s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = nil }) }
}
