package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

const (
	tenantNamespace = "tenant"
	// hostile is the number of Evacuations of Pods that do not exist.
	hostile = 300
	// largeEach says that each nth of them is at the limits of its fields, which the API server takes long to validate.
	largeEach = 20
	// maxWritesEach is the maximum number of writes for each of them. The manager reports that the Pod does not exist, removes finalizers and
	// deletes the Evacuation.
	maxWritesEach = 4
)

// TestTenant tests users with few permissions in a workload cluster. The tenant may edit one Namespace and has all permissions on
// Evacuations there. Admission does not limit how many Evacuations a tenant may create, so that only one scene creates hundreds.
func TestTenant(t *testing.T) {
	parallel(t, 90*time.Second)
	all := newScene(t, fleet.Options{PodDeletionDelay: 200 * time.Millisecond})
	all.withMachines("first", "spare")
	tenant := all.newTenant()
	all.testTenant(tenant)

	t.Run("M50: a tenant has no more power after another actor deleted the admission policies and the manager restored them", func(t *testing.T) {
		s := all.sub(t)
		s.deleteBundle(policies, bindings, roles)
		s.deleteMachine("first")
		s.expectBundle()
		s.expectGone("first")
		user := s.maintainerOf("spare")
		s.Eventually(func() error {
			return user.Create(t.Context(), nm("forged", v1alpha1.StageIdle, ofNodes("spare"), s.namesOwner("m1")), client.DryRunAll)
		}, soon, pace).Should(Satisfy(apierrors.IsForbidden))
		s.sub(t).nameOfAnotherPod("spare")
	})
	t.Run("E10: processes hundreds of Evacuations, some at the limits of all fields, with few writes and without blocking a drain", func(t *testing.T) {
		all.sub(t).hundredsOfEvacuations(tenant, "m1")
	})
}

// testTenant uses Machines of which m1 is left.
func (s *scene) testTenant(tenant client.Client) {
	s.Helper()
	t, all := s.T, s
	m := func(i int) string { return fmt.Sprintf("m%d", i) }
	all.withMachines(m(1), m(2), m(3), m(4), m(5), m(6), m(7), m(8))

	t.Run("E10: denies a tenant to cordon or maintain Nodes", func(t *testing.T) {
		s := all.sub(t)
		s.Expect(tenant.Create(t.Context(), maintenance("tenants", ofNodes(m(1))))).To(Satisfy(apierrors.IsForbidden))
		s.Expect(tenant.Patch(t.Context(), s.node(m(1)), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`)))).
			To(Satisfy(apierrors.IsForbidden))
	})

	t.Run("E10: does not evict a Pod of another namespace whose UID an Evacuation has", func(t *testing.T) {
		s := all.sub(t)
		s.runOn(m(1), "victim", 1, deployment("victim", 1))
		victim := s.podsOf("victim")[0]
		e := tenantEvacuation(victim.Name, victim.UID, func(e *v1alpha1.Evacuation) {
			e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: m(1)}
			e.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "example.com"}
		})
		s.Expect(tenant.Create(t.Context(), e)).To(Succeed())
		other := tenantEvacuation(victim.Name, victim.UID)
		other.Namespace = namespace
		s.Expect(tenant.Create(t.Context(), other)).To(Satisfy(apierrors.IsForbidden))
		honest := tenantEvacuation("none", uuid.NewUUID())
		s.Expect(tenant.Create(t.Context(), honest)).To(Succeed())
		s.expectFailed(honest) // the manager has observed both
		s.Consistently(s.evictions, settled, pace).Should(BeEmpty())
		s.Expect(s.podsOf("victim")[0].UID).To(Equal(victim.UID))
		s.Expect(s.node(m(1)).Spec.Unschedulable).To(BeFalse())
		s.removeWorkloads()
	})

	t.Run("E35: evicts neither Pod for an Evacuation with the name of one Pod and the UID of another", func(t *testing.T) { all.sub(t).nameOfAnotherPod(m(1)) })

	t.Run("M36: does not adopt a user's NodeMaintenance that has the expected name, and drains the Node", func(t *testing.T) {
		all.sub(t).nameTaken(m(2))
	})
	t.Run("M36: does not adopt a NodeMaintenance that names the Machine and selects another Node", func(t *testing.T) { all.sub(t).nameTakenUnguarded(m(3)) })
	t.Run("M37: does not count a NodeMaintenance of another Node that names a waiting Machine as a drain", func(t *testing.T) {
		all.sub(t).forgedDrain(m(4), m(5))
	})

	t.Run("E53, M98: drains beside objects that cannot be decoded, also after a restart, and waits for a policy that cannot be decoded", func(t *testing.T) {
		all.sub(t).undecodable(tenant, m(6), m(7), m(8))
	})
}

// hundredsOfEvacuations drains a Machine while a tenant creates many Evacuations of Pods that do not exist.
func (s *scene) hundredsOfEvacuations(tenant client.Client, machine string) {
	s.runOn(machine, "web", 5, deployment("web", 5), budget("web", 1))
	s.expectDisruptionsAllowed("web", 1)
	pid := s.fleet.Manager.PID()
	var last *v1alpha1.Evacuation
	for i := range hostile {
		last = hostileEvacuation(i)
		s.Expect(tenant.Create(s.Context(), last)).To(Succeed())
		if i == hostile/2 {
			s.deleteMachine(machine)
		}
	}
	s.Eventually(func() error {
		return s.fleet.Client.Get(s.Context(), keyOf(machine), &clusterv1.Machine{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.Expect(s.evictions().Succeeded()).To(HaveLen(5))
	s.expectInvariants()
	s.expectFailed(last)
	s.Eventually(s.unsettled, eventually, time.Second).Should(BeZero())

	writes := 0
	s.Eventually(func(g Gomega) { // failed Evacuations are deleted next
		before := writes
		writes = len(s.audited().WithUserAgent(fleet.ManagerAgent).Writes().InNamespace(tenantNamespace))
		list := &v1alpha1.EvacuationList{}
		g.Expect(s.workload.Client.List(s.Context(), list, client.InNamespace(tenantNamespace))).To(Succeed())
		g.Expect(list.Items).NotTo(ContainElement(HaveField("Annotations", HaveKey("large"))))
		g.Expect(writes).To(Equal(before))
	}, eventually, 2*time.Second).Should(Succeed())
	s.Expect(writes).To(BeNumerically("<=", hostile*maxWritesEach))
	settled := s.sub(s.T)
	settled.Consistently(func() controlplane.Events {
		return settled.audited().WithUserAgent(fleet.ManagerAgent).Writes().InNamespace(tenantNamespace)
	}, 5*time.Second, time.Second).Should(BeEmpty())
	s.Expect(s.fleet.Manager.PID()).To(Equal(pid))
	s.Expect(s.fleet.Manager.Done()).NotTo(BeClosed())
}

// nameOfAnotherPod creates an Evacuation as a user who may only evict one Pod of a Node, with the UID of another one.
func (s *scene) nameOfAnotherPod(node string) {
	defer s.removeWorkloads()
	decoy, victim := bare("decoy-"+node, node), bare("victim-"+node, node)
	user := s.evictorOf(decoy.Name)
	s.run(decoy, victim)
	s.Expect(user.SubResource("eviction").Create(s.Context(), victim, &policyv1.Eviction{})).To(Satisfy(apierrors.IsForbidden))
	s.Expect(user.Create(s.Context(), requestFor(victim))).To(Satisfy(apierrors.IsForbidden))

	forged := requestFor(victim)
	forged.Name, forged.Spec.PodRef.Name = string(victim.UID)+"-"+decoy.Name, decoy.Name
	forged.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: node} // so the manager looks the Pod up by its UID
	s.Expect(user.Create(s.Context(), forged)).To(Succeed())
	s.expectFailed(forged)
	s.Eventually(func() controlplane.Events { // its effect can be observed before it is in the audit log
		return s.ours().Resource("evacuations", "status").Named(namespace, forged.Name).Where(contains(v1alpha1.ReasonPodNotFound))
	}, soon, pace).Should(HaveLen(1))
	s.Expect(s.evictions()).To(BeEmpty())
}

// evictorOf returns a client of a user who may write Evacuations and evict the Pod with this name.
func (s *scene) evictorOf(pod string) client.Client {
	s.Helper()
	s.create(s.workload.Client,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "evictor-of-" + pod}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"evacuations"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}, ResourceNames: []string{pod}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "evictor-of-" + pod},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "evictor-of-" + pod}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "evictor-of-" + pod},
		})
	user := s.user("evictor-of-" + pod)
	canary := bare(pod, "")
	canary.UID = podUID
	s.Eventually(func() error { return user.Create(s.Context(), requestFor(canary), client.DryRunAll) }, soon, pace).Should(Succeed())
	return user
}

// user returns a client of a user of the workload cluster.
func (s *scene) user(name string) client.Client {
	s.Helper()
	config, err := s.workload.ConfigFor(name)
	s.Expect(err).NotTo(HaveOccurred())
	user, err := client.New(config, client.Options{Scheme: clusterapi.Scheme()})
	s.Expect(err).NotTo(HaveOccurred())
	return user
}

// newTenant creates the tenant and its Namespace, and returns a client of the tenant.
func (s *scene) newTenant() client.Client {
	s.Helper()
	s.create(s.workload.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNamespace}},
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "tenant-evacuations"},
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"evacuations", "evacuations/status"}, Verbs: []string{"*"},
			}},
		})
	for _, role := range []string{"edit", "tenant-evacuations"} {
		s.create(s.workload.Client, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: tenantNamespace, Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "tenant"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		})
	}
	tenant := s.user("tenant")
	s.Eventually(func() error {
		return tenant.Create(s.Context(), tenantEvacuation("canary", podUID), client.DryRunAll)
	}, soon, pace).Should(Succeed())
	return tenant
}

func tenantEvacuation(pod string, uid types.UID, changes ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenantNamespace, Name: string(uid) + "-" + pod},
		Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: pod, UID: string(uid)}},
	}
	for _, change := range changes {
		change(e)
	}
	return e
}

// hostileEvacuation returns an Evacuation of a Pod that does not exist. Some are as large as the schema allows.
func hostileEvacuation(i int) *v1alpha1.Evacuation {
	return tenantEvacuation(fmt.Sprintf("none-%d", i), uuid.NewUUID(), func(e *v1alpha1.Evacuation) {
		e.Labels, e.Annotations = map[string]string{}, map[string]string{"large": strings.Repeat("x", 1<<10)}
		e.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "example.com"}
		if i%largeEach != 0 {
			return
		}
		for j := range 50 {
			e.Labels[fmt.Sprintf("%s/%063d", strings.Repeat("a", 200), j)] = strings.Repeat("b", 63)
		}
		for j := range 100 {
			e.Spec.Evacuators = append(e.Spec.Evacuators, v1alpha1.Evacuator{
				EvacuatorClass: fmt.Sprintf("%s%03d.example.com", strings.Repeat("c", 30), j), Priority: int32(j + 1),
			})
		}
	})
}

// expectFailed waits until an Evacuation has failed or is deleted.
func (s *scene) expectFailed(e *v1alpha1.Evacuation) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		present := &v1alpha1.Evacuation{}
		g.Expect(client.IgnoreNotFound(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(e), present))).To(Succeed())
		g.Expect(present.Name == "" || meta.IsStatusConditionTrue(present.Status.Conditions, v1alpha1.EvacuationFailed)).To(BeTrue())
	}, eventually, pace).Should(Succeed())
}

// unsettled counts the hostile Evacuations that have not failed yet.
func (s *scene) unsettled() (int, error) {
	list := &v1alpha1.EvacuationList{}
	if err := s.workload.Client.List(s.Context(), list, client.InNamespace(tenantNamespace)); err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		if list.Items[i].Annotations["large"] != "" && !meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, v1alpha1.EvacuationFailed) {
			n++
		}
	}
	return n, nil
}
