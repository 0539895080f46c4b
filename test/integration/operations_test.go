package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// settled is the time in which a manager would have changed an object that it reconciles.
const settled = 3 * time.Second

// TestWatchLimits starts managers that reconcile a part of the management cluster. The hook on a Machine, which needs no Node, shows that a
// manager reconciles the Machine.
func TestWatchLimits(t *testing.T) {
	parallel(t, 30*time.Second)
	f := fleet.ForTest(t, fleet.Options{WithoutManager: true})
	g := NewWithT(t)
	machine := func(namespace, name string) []client.Object {
		return kwok.NewCluster("c1").InNamespace(namespace).WithExternalControlPlane().Machine(name)
	}
	label := func(object client.Object, value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, clusterv1.WatchLabel, value)
		g.Expect(f.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
	g.Expect(f.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})).To(Succeed())
	for _, ns := range []string{namespace, "other"} {
		cluster := kwok.NewCluster("c1").InNamespace(ns).WithExternalControlPlane()
		if ns == namespace {
			g.Expect(f.Connect(cluster, "workload")).To(Succeed())
		}
		g.Expect(kwok.Create(t.Context(), f.Client, cluster.Objects(), machine(ns, "plain"), machine(ns, "labelled"))).To(Succeed())
		label(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c1"}}, `"ours"`)
		label(&clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "labelled"}}, `"ours"`)
	}
	t.Run("K35: plan predicts the drain of Cluster API if neither cluster has this provider", func(t *testing.T) {
		s := &scene{T: t, WithT: NewWithT(t), fleet: f, workload: f.Workloads["workload"]}
		s.mark()
		s.predictsDrainOfClusterAPI("plain")
	})
	for _, ns := range []string{namespace, "other"} {
		g.Expect(f.Client.Create(t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}})).To(Succeed())
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
	// serves starts a manager and checks to how many Clusters it connects, of which one can be reached, and which Machines have a hook then.
	// Changes of the policies also cause events of the other Machines.
	serves := func(t *testing.T, flag string, clusters float64, expected ...string) {
		t.Helper()
		g := NewWithT(t)
		g.Expect(f.StartManager(t.Context(), flag)).To(Succeed())
		defer f.KillManager()
		connected := func() (float64, error) {
			metrics, err := f.Manager.Metrics(t.Context())
			return metrics.Sum("capi_cluster_cache_connection_up", nil), err
		}
		g.Eventually(held, eventually, pace).Should(ConsistOf(expected))
		g.Eventually(connected, eventually, pace).Should(Equal(clusters))
		for _, ns := range []string{namespace, "other"} {
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}}
			patch := fmt.Appendf(nil, `{"spec":{"clusterSelector":{"matchExpressions":[{"key":%q,"operator":"DoesNotExist"}]}}}`, flag[2:4])
			g.Expect(f.Client.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		}
		g.Consistently(held, settled, pace).Should(ConsistOf(expected))
		g.Expect(connected()).To(Equal(clusters))
	}

	t.Run("M104: --watch-filter: ignores Machines and Clusters without the label", func(t *testing.T) {
		serves(t, "--watch-filter=ours", 1, "default/labelled", "other/labelled")
		serves(t, "--watch-filter=theirs", 0, "default/labelled", "other/labelled")
	})
	t.Run("M104: removes its hook from a Machine that leaves the watch filter, by its label or that of its Cluster", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(f.StartManager(t.Context(), "--watch-filter=ours")).To(Succeed())
		defer f.KillManager()
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "labelled"}}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "c1"}}
		g.Eventually(held, eventually, pace).Should(ConsistOf("default/labelled", "other/labelled"))
		for _, left := range []string{`"theirs"`, `null`} {
			label(machine, left)
			g.Eventually(held, eventually, pace).Should(ConsistOf("other/labelled"))
			label(machine, `"ours"`)
			g.Eventually(held, eventually, pace).Should(ConsistOf("default/labelled", "other/labelled"))
		}
		label(cluster, `"theirs"`)
		g.Eventually(held, eventually, pace).Should(ConsistOf("default/labelled"))
		label(cluster, `"ours"`)
		g.Eventually(held, eventually, pace).Should(ConsistOf("default/labelled", "other/labelled"))
	})
	t.Run("--namespace: ignores Machines and Clusters in other namespaces", func(t *testing.T) {
		serves(t, "--namespace=other", 0, "default/labelled", "other/labelled", "other/plain")
	})
	t.Run("M103, M111: does not change hooks while a selector of the policy is invalid, and says so", func(t *testing.T) {
		g := NewWithT(t)
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}}
		patch := func(selector string) error {
			return f.Client.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"machineSelector":`+selector+`}}`)))
		}
		for _, invalid := range []string{
			`{"matchExpressions":[{"key":"a","operator":"in","values":["b"]}]}`, `{"matchExpressions":[{"key":"a","operator":"In"}]}`, `{"matchLabels":{"a":"b c"}}`,
		} {
			g.Expect(patch(invalid)).To(MatchError(ContainSubstring("machineSelector")))
		}
		hooks := []string{"default/labelled", "other/labelled", "other/plain"}
		g.Expect(patch(`{"matchLabels":{"a key":"b"}}`)).To(Succeed())
		g.Expect(f.StartManager(t.Context(), "--namespace=default")).To(Succeed())
		defer f.KillManager()
		condition := func() string {
			g.Expect(f.Client.Get(t.Context(), client.ObjectKeyFromObject(policy), policy)).To(Succeed())
			if invalid := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.MachineDrainPolicySelectorsValid); invalid != nil {
				g.Expect(meta.IsStatusConditionTrue(policy.Status.Conditions, v1alpha1.MachineDrainPolicyStalled)).To(BeTrue())
				return string(invalid.Status) + " " + invalid.Reason + " " + invalid.Message
			}
			g.Expect(meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.MachineDrainPolicyStalled)).To(BeNil())
			return ""
		}
		g.Eventually(condition, eventually, pace).Should(HavePrefix("False InvalidSelector machineSelector is invalid"))
		events := &corev1.EventList{}
		g.Eventually(func() ([]corev1.Event, error) {
			err := f.Client.List(t.Context(), events, client.InNamespace(namespace))
			return events.Items, err
		}, eventually, pace).Should(ContainElement(HaveField("Reason", v1alpha1.ReasonInvalidSelector)))
		g.Consistently(held, settled, pace).Should(ConsistOf(hooks)) // those that have it keep it, and no other gets it
		g.Expect(patch(`null`)).To(Succeed())
		g.Eventually(held, eventually, pace).Should(ConsistOf(append(hooks, "default/plain")))
		g.Eventually(condition, eventually, pace).Should(BeEmpty())
	})
}

// leaseIsReleased stops managers while they connect to a Cluster. Each must stop and release the lease, for which the next manager would
// otherwise wait until it expires. There are several rounds, because one in four managers hung without the measure in Clusters.Source.
func (s *scene) leaseIsReleased() {
	s.Expect(s.fleet.Manager.Stop()).To(Succeed())
	s.mayLead(fleet.ManagerUser)
	for round := range 5 {
		s.Expect(s.fleet.StartManager(s.Context(), "--leader-elect", "--leader-elect-resource-namespace="+namespace)).To(Succeed())
		s.Eventually(s.leads, soon, pace).Should(BeTrue(), "round %d", round)
		s.Expect(s.leader()).NotTo(BeEmpty(), "round %d", round)
		s.Expect(s.fleet.Manager.Stop()).To(Succeed(), "round %d", round)
		s.Expect(s.leader()).To(BeEmpty(), "round %d: the lease is not released", round)
	}
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.Eventually(func() float64 { return s.metrics().Sum("capnm_connected_clusters", nil) }, soon, pace).Should(BeEquivalentTo(1))
}

// mayLead grants a user the role of an installed manager in its namespace.
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

// leads says whether our manager has observed that it has the lease. A manager that stops before that does not release the lease.
func (s *scene) leads() (bool, error) {
	metrics, err := s.fleet.Manager.Metrics(s.Context())
	return err == nil && metrics.Sum("leader_election_master_status", nil) == 1, err
}

// leader returns the manager that holds the lease, or "".
func (s *scene) leader() (string, error) {
	lease := &coordinationv1.Lease{}
	err := s.fleet.Client.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: leaseName}, lease)
	return ptr.Deref(lease.Spec.HolderIdentity, ""), client.IgnoreNotFound(err)
}
