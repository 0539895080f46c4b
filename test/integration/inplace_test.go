package integration

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/inplace"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// TestInPlaceUpdates rolls a MachineDeployment out with Cluster API's in-place updates and an extension that waits with exp/inplace.
func TestInPlaceUpdates(t *testing.T) {
	parallel(t, 120*time.Second)
	all := newScene(t, fleet.Options{PodDeletionDelay: 200 * time.Millisecond, CoreArgs: []string{"--feature-gates=RuntimeSDK=true,InPlaceUpdates=true"}})
	u := all.withUpdater()
	all.create(all.fleet.Client, all.cluster.MachineDeployment("pool", 3, kwok.With(func(d *clusterv1.MachineDeployment) {
		d.Spec.Rollout.Strategy.Type = clusterv1.RollingUpdateMachineDeploymentStrategyType
		d.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
		d.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(2))
	}))...)
	all.expectRolled("pool", 3)
	machines := all.machinesOf("pool")
	for _, machine := range machines {
		all.setBootstrapped(machine)
	}

	t.Run("M83: does not change the Node of an in-place update by default", func(t *testing.T) {
		s := all.sub(t)
		s.run(bare("ignored", machines[0]))
		s.updateInPlace("ignored", machines)
		for _, machine := range machines {
			s.Expect(s.nodeWrites(machine)).To(BeEmpty(), machine)
		}
		s.Expect(s.evictions()).To(BeEmpty())
		s.deletePods("ignored")
	})

	t.Run("M83, M86: cordons the Node before an in-place update, and restores it afterwards", func(t *testing.T) {
		s := all.sub(t)
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesCordon })
		s.run(bare("cordoned", machines[0]))
		s.updateInPlace("cordoned", machines)
		s.expectReleased(machines...)
		for _, machine := range machines {
			s.expectUpdatedWhileCordoned(machine)
		}
		s.Expect(s.evictions()).To(BeEmpty())
		s.deletePods("cordoned")
	})

	t.Run("M86: drains the Node before an in-place update, within maxParallelDrains, and restores it afterwards", func(t *testing.T) {
		s := all.sub(t)
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) {
			p.Spec.InPlaceUpdates, p.Spec.MaxParallelDrains = v1alpha1.InPlaceUpdatesDrain, ptr.To(intstr.FromInt32(1))
		})
		s.create(s.workload.Client, budget("held", 0))
		for _, machine := range machines {
			s.run(bare("on-"+machine, machine, withApp("held")))
		}
		s.rollInPlace("drained")
		s.Eventually(func() []string { return s.withReason(v1alpha1.ReasonMachineDraining) }, eventually, pace).Should(HaveLen(1))
		s.Eventually(func() []string { return s.withReason(v1alpha1.ReasonWaitingForTurn) }, eventually, pace).Should(HaveLen(1))
		draining := s.withReason(v1alpha1.ReasonMachineDraining)[0]
		s.Expect(s.maintenanceOf(draining).Spec.Reason).To(Equal("Cluster API updates Machine default/" + draining + " in place"))
		s.Expect(s.machine(draining).Annotations).NotTo(HaveKey(clusterv1.MachineSkipRemediationAnnotation))
		s.Eventually(func() string { return s.updating(draining) }, eventually, pace).
			Should(And(ContainSubstring("In-place update in progress: Waiting for stage Drain of the Node (Draining): "), ContainSubstring("Pod default/on-"+draining)))
		s.Expect(s.updates()).To(BeEmpty())

		s.Expect(s.workload.Client.Delete(s.Context(), budget("held", 0))).To(Succeed())
		s.expectUpdated("drained", machines)
		s.expectReleased(machines...)
		s.expectAtMostDraining(1)
		for _, machine := range machines {
			s.expectUpdatedWhileCordoned(machine)
			begin := s.first(s.updates().Named("", machine))
			s.expectOrder(s.first(s.audited().By("kwok").Verb("delete").Resource("pods").Succeeded().Named(namespace, "on-"+machine)), begin)
			s.Expect(string(begin.RequestObject)).To(ContainSubstring("begins with 0 Pods"))
		}
		s.expectInvariants()
	})

	t.Run("M86: keeps the Node drained while the update fails, and waits for a stage annotation that takes precedence", func(t *testing.T) {
		s := all.sub(t)
		kept, others := machines[0], machines[1:]
		s.requestStage(kept, "Cordon")
		s.expectCondition(kept, metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned)
		u.failing.Store(true)
		for _, machine := range others {
			s.run(bare("on-"+machine, machine))
		}
		s.rollInPlace("failed")
		failing := ""
		s.Eventually(func() string {
			for _, machine := range others {
				if len(s.updates().Named("", machine)) > 1 {
					failing = machine
				}
			}
			return failing
		}, eventually, pace).ShouldNot(BeEmpty(), "Cluster API repeats the failed update")
		s.expectCondition(failing, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
		s.expectCordoned(failing)
		s.Expect(s.evictions().Succeeded().Names()).To(ContainElement("on-" + failing))
		allowed := s.machine(failing)
		s.Expect(allowed.Annotations).To(HaveKeyWithValue(v1alpha1.UpdateAllowedAnnotation, v1alpha1.ReasonMachineDrained+"/"+string(allowed.UID)))
		s.Expect(s.nodeWrites(failing).Where(setsSchedulable)).To(BeEmpty())

		u.failing.Store(false)
		s.Eventually(func() string { return s.updating(kept) }, eventually, pace).Should(ContainSubstring("stage: Cordon of the Machine takes precedence"))
		s.Expect(s.updates().Named("", kept)).To(BeEmpty())
		s.requestStage(kept, "")
		s.expectUpdated("failed", machines)
		s.expectReleased(machines...)
		s.Eventually(func(g Gomega) {
			for _, machine := range machines {
				g.Expect(s.machine(machine).Annotations).NotTo(Or(HaveKey(v1alpha1.UpdateAllowedAnnotation), HaveKey(v1alpha1.DrainRequestedAnnotation),
					HaveKey(clusterv1.MachineSkipRemediationAnnotation)))
				g.Expect(s.condition(machine)).To(BeZero())
				g.Expect(s.maintenanceOf(machine)).To(BeNil())
			}
		}, soon, pace).Should(Succeed())
	})

	t.Run("M166: neither allows an update nor ends the drain before it while the policy is replaced", func(t *testing.T) {
		s := all.sub(t)
		s.withMachines("replaced")
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesDrain })
		s.create(s.workload.Client, budget("replaced", 0))
		s.run(bare("on-replaced", "replaced", withApp("replaced")))
		s.change("replaced", func(m *clusterv1.Machine) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.UpdateInProgressAnnotation, "")
		})
		s.expectCondition("replaced", metav1.ConditionFalse, v1alpha1.ReasonMachineDraining)
		drain := s.maintenanceOf("replaced")
		allowed := func(g Gomega) bool {
			decision, err := inplace.Check(s.Context(), u.management, keyOf("replaced"))
			g.Expect(err).NotTo(HaveOccurred())
			return decision.Allowed
		}
		for range 2 {
			policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
			s.Expect(s.fleet.Client.Delete(s.Context(), policy)).To(Succeed())
			s.Consistently(allowed, time.Second, pace).Should(BeFalse())
			policy.ResourceVersion, policy.UID = "", ""
			s.create(s.fleet.Client, policy)
			s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.TurnPatienceSeconds += 60 }) // the manager has observed the policy
		}
		s.Expect(allowed(s)).To(BeFalse())
		s.Expect(s.maintenanceOf("replaced").UID).To(Equal(drain.UID))
		s.Expect(s.maintenanceOf("replaced").Spec.Stage).To(Equal(v1alpha1.StageDrain))
		s.Expect(s.nodeWrites("replaced").Where(setsSchedulable)).To(BeEmpty())
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.TurnPatienceSeconds = 0 })
		s.Expect(s.workload.Client.Delete(s.Context(), budget("replaced", 0))).To(Succeed())
		s.Eventually(allowed, eventually, pace).Should(BeTrue())
		s.Expect(s.evictions().Succeeded().Names()).To(ContainElement("on-replaced"))
		s.change("replaced", func(m *clusterv1.Machine) { delete(m.Annotations, clusterv1.UpdateInProgressAnnotation) })
		s.expectReleased("replaced")
	})

	t.Run("M84: never allows an update because of the drain of the previous one", func(t *testing.T) {
		s := all.sub(t)
		s.withMachines("alone")
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) {
			p.Spec.InPlaceUpdates, p.Spec.MaxParallelDrains = v1alpha1.InPlaceUpdatesDrain, nil
		})
		begin := func(m *clusterv1.Machine) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.UpdateInProgressAnnotation, "")
		}
		end := func(m *clusterv1.Machine) { delete(m.Annotations, clusterv1.UpdateInProgressAnnotation) }
		expectDrained := func() { // an update is in progress, so the manager must not restore the Node after the permission
			s.Eventually(func() (inplace.Decision, error) { return inplace.Check(s.Context(), u.management, keyOf("alone")) }, eventually, pace).
				Should(HaveField("Allowed", BeTrue()))
			s.Expect(s.node("alone").Spec.Unschedulable).To(BeTrue())
			s.Expect(s.maintenanceOf("alone").Spec.Stage).To(Equal(v1alpha1.StageDrain))
		}
		for range 10 {
			s.change("alone", begin)
			expectDrained()
			s.change("alone", end)
		}
		s.change("alone", begin)
		expectDrained()
		s.fleet.KillManager()
		s.change("alone", end)
		s.change("alone", begin)
		expectDrained()
		s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
		s.change("alone", end)
		s.expectReleased("alone")
	})
}

// updateAnnotation on a Node is what the updater has done last.
const updateAnnotation = "test.capnm.dev/update"

// updater is a Runtime Extension that updates Machines in place. It writes each step to the Node, so that the audit log has it.
type updater struct {
	management client.Reader
	workload   client.Client
	failing    atomic.Bool
}

// withUpdater starts an updater with the rights that package inplace names, and registers it.
func (s *scene) withUpdater() *updater {
	s.Helper()
	s.create(s.fleet.Client,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "updater"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{clusterv1.GroupVersion.Group}, Resources: []string{"machines", "clusters"}, Verbs: []string{"get"}},
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"machinedrainpolicies"}, Verbs: []string{"list"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "updater"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "updater"}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "updater"},
		})
	u := &updater{management: s.clientOf(s.fleet.Management), workload: s.clientOf(s.workload.ControlPlane, "system:masters")}
	port, release, err := controlplane.ReservePort()
	s.Expect(err).NotTo(HaveOccurred())
	s.Cleanup(release)
	s.serve(u, port)
	s.create(s.fleet.Client, &runtimev1.ExtensionConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "updater"},
		Spec: runtimev1.ExtensionConfigSpec{ClientConfig: runtimev1.ClientConfig{
			URL: "https://127.0.0.1:" + strconv.Itoa(port), CABundle: s.fleet.Management.CAData(),
		}},
	})
	s.Eventually(func(g Gomega) {
		config := read(g, s.fleet.Client, client.ObjectKey{Name: "updater"}, &runtimev1.ExtensionConfig{})
		g.Expect(config.Status.Handlers).To(HaveLen(3), "%v", config.Status.Conditions)
	}, eventually, pace).Should(Succeed())
	return u
}

// clientOf returns an uncached client of the user updater.
func (s *scene) clientOf(cluster *controlplane.ControlPlane, groups ...string) client.Client {
	s.Helper()
	config, err := cluster.ConfigFor("updater", groups...)
	s.Expect(err).NotTo(HaveOccurred())
	c, err := client.New(config, client.Options{Scheme: clusterapi.Scheme()})
	s.Expect(err).NotTo(HaveOccurred())
	return c
}

// serve runs Cluster API's extension server until the test ends.
func (s *scene) serve(u *updater, port int) {
	s.Helper()
	dir := s.TempDir()
	cert, key, err := s.fleet.Management.SignServerCert("127.0.0.1")
	s.Expect(err).NotTo(HaveOccurred())
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		s.Expect(os.WriteFile(filepath.Join(dir, name), content, 0o600)).To(Succeed())
	}
	catalog := runtimecatalog.New()
	s.Expect(runtimehooksv1.AddToCatalog(catalog)).To(Succeed())
	extension, err := server.New(server.Options{Catalog: catalog, Host: "127.0.0.1", Port: port, CertDir: dir})
	s.Expect(err).NotTo(HaveOccurred())
	for _, handler := range []server.ExtensionHandler{
		{Hook: runtimehooksv1.CanUpdateMachine, Name: "can-update-machine", HandlerFunc: u.canUpdateMachine},
		{Hook: runtimehooksv1.CanUpdateMachineSet, Name: "can-update-machine-set", HandlerFunc: u.canUpdateMachineSet},
		{Hook: runtimehooksv1.UpdateMachine, Name: "update-machine", HandlerFunc: u.updateMachine},
	} {
		s.Expect(extension.AddExtensionHandler(handler)).To(Succeed())
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- extension.Start(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) {
			s.Errorf("the extension server: %v", err)
		}
	})
}

// canUpdateMachine is called for control planes only.
func (u *updater) canUpdateMachine(_ context.Context, _ *runtimehooksv1.CanUpdateMachineRequest, response *runtimehooksv1.CanUpdateMachineResponse) {
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
}

// canUpdateMachineSet says that the updater can change the zone of a machine.
func (u *updater) canUpdateMachineSet(_ context.Context, request *runtimehooksv1.CanUpdateMachineSetRequest,
	response *runtimehooksv1.CanUpdateMachineSetResponse,
) {
	desired := &infrav1.KwokMachineTemplate{}
	err := json.Unmarshal(request.Desired.InfrastructureMachineTemplate.Raw, desired)
	if err == nil {
		patch := map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"zone": desired.Spec.Template.Spec.Zone}}}}
		response.InfrastructureMachineTemplatePatch.Patch, err = json.Marshal(patch)
	}
	if err != nil {
		response.SetStatus(runtimehooksv1.ResponseStatusFailure)
		response.SetMessage(err.Error())
		return
	}
	response.InfrastructureMachineTemplatePatch.PatchType = runtimehooksv1.JSONMergePatchType
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
}

// updateMachine begins the update in the first call, and completes it in the second one.
func (u *updater) updateMachine(ctx context.Context, request *runtimehooksv1.UpdateMachineRequest, response *runtimehooksv1.UpdateMachineResponse) {
	if !inplace.Await(ctx, u.management, request, response) {
		return
	}
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	if err := u.step(ctx, request, response); err != nil {
		response.SetStatus(runtimehooksv1.ResponseStatusFailure)
		response.SetMessage(err.Error())
	}
}

func (u *updater) step(ctx context.Context, request *runtimehooksv1.UpdateMachineRequest, response *runtimehooksv1.UpdateMachineResponse) error {
	desired, node, pods := &infrav1.KwokMachine{}, &corev1.Node{}, &corev1.PodList{}
	if err := json.Unmarshal(request.Desired.InfrastructureMachine.Raw, desired); err != nil {
		return errors.Wrap(err, "reading the desired KwokMachine")
	}
	if err := u.workload.Get(ctx, client.ObjectKey{Name: request.Desired.Machine.Name}, node); err != nil {
		return errors.Wrap(err, "getting the Node")
	}
	if err := u.workload.List(ctx, pods, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
		return errors.Wrap(err, "listing the Pods of the Node")
	}
	before, zone := node.DeepCopy(), desired.Spec.Zone
	says := func(what string) error {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, updateAnnotation, zone+" "+what)
		return errors.Wrap(u.workload.Patch(ctx, node, client.MergeFrom(before)), "recording the step")
	}
	switch present := before.Annotations[updateAnnotation]; {
	case u.failing.Load():
		if err := says("fails at " + time.Now().Format(time.RFC3339Nano)); err != nil {
			return err
		}
		return errors.New("the update fails")
	case strings.HasPrefix(present, zone+" begins"):
		return says("ends")
	case strings.HasPrefix(present, zone+" ends"):
		return says("is repeated")
	default:
		response.SetRetryAfterSeconds(1)
		return says("begins with " + strconv.Itoa(len(pods.Items)) + " Pods")
	}
}

// setBootstrapped sets what Cluster API sets on a Machine with a bootstrap config, and requires before an in-place update. The Machines of
// these tests have none.
func (s *scene) setBootstrapped(machine string) {
	s.Helper()
	patch := []byte(`{"status":{"initialization":{"bootstrapDataSecretCreated":true}}}`)
	s.Expect(s.fleet.Client.Status().Patch(s.Context(), s.machine(machine), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

// rollInPlace rolls the MachineDeployment pool out to a template whose machines are in another zone.
func (s *scene) rollInPlace(zone string) {
	s.Helper()
	template := &infrav1.KwokMachineTemplate{ObjectMeta: metaNamed("pool-"+zone, "")}
	template.Spec.Template.Spec.Zone = zone
	s.create(s.fleet.Client, template)
	s.roll("pool", template.Name)
}

// expectUpdated waits until the same Machines have been updated in place, each once.
func (s *scene) expectUpdated(zone string, machines []string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		for _, machine := range machines {
			g.Expect(s.node(machine).Annotations).To(HaveKeyWithValue(updateAnnotation, HavePrefix(zone+" ends")), machine)
			g.Expect(s.machine(machine).Annotations).NotTo(HaveKey(clusterv1.UpdateInProgressAnnotation), machine)
		}
	}, eventually, pace).Should(Succeed())
	s.expectRolled("pool", len(machines))
	s.Expect(s.machinesOf("pool")).To(Equal(machines), "no Machine is replaced")
	s.Expect(s.updates().Where(contains("is repeated"))).To(BeEmpty())
}

func (s *scene) updateInPlace(zone string, machines []string) {
	s.Helper()
	s.rollInPlace(zone)
	s.expectUpdated(zone, machines)
}

// updates returns the steps of the updater.
func (s *scene) updates() controlplane.Events {
	s.Helper()
	return s.audited().By("updater").Resource("nodes").Verb("patch").Succeeded()
}

// expectUpdatedWhileCordoned checks that the update of a Node began after the Node was cordoned, and ended before the Node was restored.
func (s *scene) expectUpdatedWhileCordoned(node string) {
	s.Helper()
	s.Eventually(func() controlplane.Events { return s.nodeWrites(node).Where(setsSchedulable) }, soon, pace).ShouldNot(BeEmpty(), "audited after its effect")
	updates, writes := s.updates().Named("", node), s.nodeWrites(node)
	s.expectOrder(s.first(writes.Where(setsUnschedulable)), s.first(updates.Where(contains("begins"))), s.first(updates.Where(contains("ends"))),
		s.first(writes.Where(setsSchedulable)))
}

// updating returns the message of the condition Updating of a Machine.
func (s *scene) updating(machine string) string {
	s.Helper()
	return conditions.GetMessage(s.machine(machine), clusterv1.MachineUpdatingCondition)
}

// withReason returns the Machines of the MachineDeployment pool whose condition has a reason.
func (s *scene) withReason(reason string) []string {
	s.Helper()
	machines := []string{}
	for _, machine := range s.machinesOf("pool") {
		if s.condition(machine).Reason == reason {
			machines = append(machines, machine)
		}
	}
	return machines
}
