package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// testHeldMachines is the part of TestDeletedMachines about failures that delay a drain: each is reported, and none delays a Machine longer
// than its drain timeout.
func (s *scene) testHeldMachines() {
	t, all := s.T, s
	all.withMachines("fast", "cordon", "refused", "quota", "busy", "stuck")

	t.Run("M68: the condition names a Pod that still terminates after its grace period, without another event", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		pod := bare("endless", "stuck", func(pod *corev1.Pod) {
			pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
			pod.Annotations[controlplane.PodDeletionDelayAnnotation] = "1h"
		})
		s.create(s.workload.Client, budgetRequiring("endless", 1))
		s.run(pod)
		s.deleteMachine("stuck")
		s.Eventually(func() string { return s.condition("stuck").Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget default/endless"))
		s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring("endless", 1))).To(Succeed())
		s.Eventually(func() string { return s.condition("stuck").Message }, soon, pace).
			Should(ContainSubstring("default/endless: Still terminating after the grace period"))
		s.Expect(s.workload.Client.Delete(s.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
		s.expectGone("stuck")
	})

	t.Run("M39: reports requests that the API server refuses, releases the Machine at the drain timeout, and drains a Node that is written continuously",
		func(t *testing.T) {
			s := all.sub(t)
			defer s.removeWorkloads()
			s.heldByRefusals()
		})

	t.Run("M40: drains a workload cluster while the API server of another one responds slowly", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		slow := s.slowCluster(300)
		s.runOn("fast", "web", 5, deployment("web", 5), budget("web", 1))
		s.expectDisruptionsAllowed("web", 1)
		s.deleteMachine("fast")
		s.expectGone("fast")
		s.Expect(len(slow.asked)).To(BeNumerically("<", 300), "the drain had to wait until every NodeMaintenance of the slow workload cluster was reconciled")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(5))
		s.expectInvariants()
		close(slow.released)
		s.Eventually(func(g Gomega) {
			list := &v1alpha1.NodeMaintenanceList{}
			g.Expect(s.fleet.Client.List(s.Context(), list)).To(Succeed())
			for _, m := range list.Items {
				g.Expect(m.Status.ObservedGeneration).To(Equal(m.Generation), m.Name)
			}
		}, eventually, time.Second).Should(Succeed())
	})
}

// slowCluster adds a Cluster with n NodeMaintenances whose API server does not respond to writes of their status. Its workload cluster is
// the management cluster.
func (s *scene) slowCluster(n int) *hangingWebhook {
	s.Helper()
	cluster := kwok.NewCluster("slow").WithExternalControlPlane()
	link, err := kwok.Direct(s.fleet.Management)
	s.Expect(err).NotTo(HaveOccurred())
	s.fleet.ConnectOver(cluster, link)
	s.create(s.fleet.Client, cluster.Objects()...)
	s.Eventually(func() error { // the manager applies the bundle when it connects
		return s.fleet.Client.List(s.Context(), &v1alpha1.NodeMaintenanceList{})
	}, eventually, pace).Should(Succeed())
	webhook := s.hang(s.fleet.Client, "slow-", admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"nodemaintenances/status"},
		},
	})
	var group errgroup.Group
	group.SetLimit(20)
	for i := range n {
		group.Go(func() error {
			return s.fleet.Client.Create(s.Context(), nm(fmt.Sprintf("slow-%d", i), idle, ofNodes("none")))
		})
	}
	s.Expect(group.Wait()).To(Succeed())
	s.Eventually(func() int { return len(webhook.asked) }, soon, pace).Should(BeNumerically(">=", 20))
	return webhook
}

// heldByRefusals deletes Machines whose drains cannot continue: admission denies the cordon of one Node and the NodeMaintenance of another,
// and a quota denies an Evacuation on the third. The Node of the fourth is written continuously, which must not delay its drain.
func (s *scene) heldByRefusals() {
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.OnTimeout = v1alpha1.OnTimeoutDelete })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.OnTimeout = "" })
	s.refuse("cordons", `object.metadata.name == "cordon" && has(object.spec.unschedulable) && object.spec.unschedulable`,
		admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
		}, func() error {
			return s.workload.Client.Patch(s.Context(), s.node("cordon"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`)),
				client.DryRunAll)
		})
	s.refuse("maintenances", `object.metadata.name == "probe" || has(object.metadata.annotations) && object.metadata.annotations[?"`+
		v1alpha1.OwnerMachineAnnotation+`"].orValue("") == "default/refused"`, admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"nodemaintenances"},
		},
	}, func() error {
		return s.workload.Client.Create(s.Context(), nm("probe", idle, ofNodes("none")), client.DryRunAll)
	})
	s.withoutEvacuations("full")
	staying, free, kept := bare("staying", "cordon"), bare("free", "quota"), bare("kept", "quota")
	unevictable := bare("unevictable", "quota")
	unevictable.Namespace = "full"
	s.create(s.workload.Client, unevictable, budgetRequiring("kept", 1))
	s.run(staying, free, kept, bare("written", "busy"))
	writes := s.writeWithoutPause("busy")

	timeout := func(seconds int32) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = &seconds }
	}
	for _, name := range []string{"cordon", "refused", "quota", "busy"} {
		s.deleteMachine(name)
	}
	s.expectHeld("cordon", v1alpha1.ReasonCordonFailed, "Node cordon cannot be cordoned: ", "ValidatingAdmissionPolicy 'cordons'")
	s.expectHeld("quota", v1alpha1.ReasonMachineDraining, "full/unevictable: Cannot create the Evacuation: ", "quota: none")
	s.change("quota", timeout(60)) // Pods are deleted after half of it
	s.expectHeld("refused", v1alpha1.ReasonReconcileFailed, "The drain cannot continue: creating NodeMaintenance ", "ValidatingAdmissionPolicy 'maintenances'")
	s.change("cordon", timeout(1))
	s.change("refused", timeout(1))

	s.expectGone("busy")
	s.Expect(writes()).To(BeNumerically(">", 10), "the Node was written during the drain")
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("nodes").Named("", "busy").Failed(409)).To(BeEmpty())
	for name, end := range map[string]string{"busy": "True Drained", "cordon": "False TimedOut", "refused": "False TimedOut", "quota": "True Drained"} {
		s.expectGone(name)
		said := s.said(name)
		s.Expect(said[len(said)-1]).To(Equal(end), name)
	}
	s.Expect(s.evictions().Succeeded().Where(func(e controlplane.Event) bool { return e.Name == "staying" })).To(BeEmpty(), "its Node is not cordoned")
	s.Expect(s.evictions().Succeeded().Where(func(e controlplane.Event) bool { return e.Name == "free" })).To(HaveLen(1))
	released := s.released("quota").Requested
	for _, pod := range []*corev1.Pod{kept, unevictable} {
		deleted := s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods").Named(pod.Namespace, pod.Name).Succeeded()
		s.Expect(deleted).NotTo(BeEmpty(), pod.Name)
		s.Expect(deleted[0].Requested).To(BeTemporally("<", released), pod.Name)
	}
}

// expectHeld waits until the condition of a Machine reports what blocks its drain.
func (s *scene) expectHeld(machine, reason string, messages ...string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		condition := s.condition(machine)
		g.Expect(condition.Reason).To(Equal(reason))
		for _, message := range messages {
			g.Expect(condition.Message).To(ContainSubstring(message))
		}
		g.Expect(condition.Message).To(ContainSubstring("Change the admission policy, webhook, quota or role that refuses the request"))
	}, soon, pace).Should(Succeed())
}

// refuse creates an admission policy that denies requests that match a rule and an expression, and waits until it denies the probe. The
// returned function deletes the policy, as the end of the test does.
func (s *scene) refuse(name, expression string, rule admissionregistrationv1.RuleWithOperations, probe func() error) (permit func()) {
	s.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    ptr.To(admissionregistrationv1.Fail),
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "!(" + expression + ")", Message: "frozen"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	s.create(s.workload.Client, policy, binding)
	permit = func() {
		_ = s.workload.Client.Delete(context.WithoutCancel(s.Context()), binding)
		_ = s.workload.Client.Delete(context.WithoutCancel(s.Context()), policy)
	}
	s.Cleanup(permit)
	s.Eventually(probe, soon, pace).Should(MatchError(ContainSubstring("frozen")))
	return permit
}

// withoutEvacuations creates a namespace whose quota allows no Evacuation, and waits until the quota is enforced.
func (s *scene) withoutEvacuations(namespace string) {
	s.Helper()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourceName("count/evacuations." + v1alpha1.GroupVersion.Group): resource.MustParse("0"),
		}},
	}
	s.withNamespace(namespace)
	s.create(s.workload.Client, quota)
	s.Eventually(func(g Gomega) {
		g.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(quota), quota)).To(Succeed())
		g.Expect(quota.Status.Hard).NotTo(BeEmpty())
	}, soon, pace).Should(Succeed())
}

// writeWithoutPause annotates a Node continuously until it is deleted, and returns a function that counts the writes.
func (s *scene) writeWithoutPause(node string) (writes func() int64) {
	s.Helper()
	var count atomic.Int64
	object := s.node(node)
	for range 3 {
		go func() {
			for s.Context().Err() == nil {
				patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{"example.com/written":"%d"}}}`, object.UID, count.Add(1))
				if err := s.workload.Client.Patch(s.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); apierrors.IsNotFound(err) {
					return
				}
			}
		}()
	}
	return count.Load
}
