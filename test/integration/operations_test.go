package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// settled is long enough for a manager that serves an object to show it: it serves others in that time.
const settled = 3 * time.Second

// TestWhatAManagerServes starts managers that serve a part of the management cluster. Machines that run carry the hook of the
// manager that serves them; no Node is needed for that.
func TestWhatAManagerServes(t *testing.T) {
	t.Parallel()
	f := fleet.ForTest(t, fleet.Options{WithoutManager: true})
	g := NewWithT(t)
	machine := func(namespace, name string) []client.Object {
		return kwok.NewCluster("c1").InNamespace(namespace).WithExternalControlPlane().Machine(name)
	}
	g.Expect(f.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})).To(Succeed())
	for _, ns := range []string{namespace, "other"} {
		cluster := kwok.NewCluster("c1").InNamespace(ns).WithExternalControlPlane()
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}}
		g.Expect(kwok.Create(t.Context(), f.Client, cluster.Objects(), []client.Object{policy}, machine(ns, "plain"), machine(ns, "labelled"))).To(Succeed())
		labelled := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "labelled"}}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"ours"}}}`, clusterv1.WatchLabel)
		g.Expect(f.Client.Patch(t.Context(), labelled, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
	held := func() (names []string, err error) {
		machines := &clusterv1.MachineList{}
		err = f.Client.List(t.Context(), machines)
		for i := range machines.Items {
			if _, has := machines.Items[i].Annotations[v1alpha1.PreDrainHookAnnotation]; has {
				names = append(names, client.ObjectKeyFromObject(&machines.Items[i]).String())
			}
		}
		return names, err
	}
	// serves starts a manager, and checks which Machines get its hook. Events of what it doesn't serve come as well: the policies
	// are changed.
	serves := func(t *testing.T, flag string, expected ...string) {
		t.Helper()
		g := NewWithT(t)
		g.Expect(f.StartManager(t.Context(), flag)).To(Succeed())
		defer f.KillManager()
		g.Eventually(held, eventually, pace).Should(ConsistOf(expected))
		for _, ns := range []string{namespace, "other"} {
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}}
			patch := fmt.Appendf(nil, `{"spec":{"clusterSelector":{"matchExpressions":[{"key":%q,"operator":"DoesNotExist"}]}}}`, flag[2:4])
			g.Expect(f.Client.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		}
		g.Consistently(held, settled, pace).Should(ConsistOf(expected))
	}

	t.Run("--watch-filter: Machines without the label are nobody's", func(t *testing.T) {
		serves(t, "--watch-filter=ours", "default/labelled", "other/labelled")
	})
	t.Run("--namespace: Machines of other namespaces are nobody's", func(t *testing.T) {
		serves(t, "--namespace=other", "default/labelled", "other/labelled", "other/plain")
	})
}

// TestLeaseIsGivenBack ends managers while they connect to a Cluster: everything ends, and the lease is given back. Were it kept,
// the next manager would wait until it runs out. One in four would hang (see Clusters.Source), so there are some.
func TestLeaseIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newScene(t, fleet.Options{})
	s.Expect(s.fleet.Manager.Stop()).To(Succeed())
	s.mayLead(fleet.ManagerUser)
	for round := range 5 {
		s.Expect(s.fleet.StartManager(s.Context(), "--leader-elect", "--leader-elect-resource-namespace="+namespace)).To(Succeed())
		s.Eventually(s.leads, soon, pace).Should(BeTrue(), "round %d", round)
		s.Expect(s.leader()).NotTo(BeEmpty(), "round %d", round)
		s.Expect(s.fleet.Manager.Stop()).To(Succeed(), "round %d", round)
		s.Expect(s.leader()).To(BeEmpty(), "round %d: the lease is kept", round)
	}
}

// mayLead gives a user the role that an installation's manager has in its own namespace.
func (s *scene) mayLead(user string) {
	s.Helper()
	name := metav1.ObjectMeta{Namespace: namespace, Name: "leader-election"}
	s.create(s.fleet.Client, &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{leaseName}, Verbs: []string{"get", "update"}},
	}}, &rbacv1.RoleBinding{ObjectMeta: name,
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
	})
}

const leaseName = "controller-leader-election-capnm"

// leads says whether our manager knows that it has the lease. It is there a moment earlier, and a manager that ends in between has
// nothing to give back.
func (s *scene) leads() (bool, error) {
	metrics, err := s.fleet.Manager.Metrics(s.Context())
	return err == nil && metrics.Sum("leader_election_master_status", nil) == 1, err
}

// leader is the manager that holds the lease. Nobody does where it is empty.
func (s *scene) leader() (string, error) {
	lease := &coordinationv1.Lease{}
	err := s.fleet.Client.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: leaseName}, lease)
	return ptr.Deref(lease.Spec.HolderIdentity, ""), client.IgnoreNotFound(err)
}
