package integration

import (
	"encoding/json"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// edit changes a field of an object in etcd, as no API server would.
func (s *scene) edit(cp *controlplane.ControlPlane, resource string, value any, field ...string) {
	s.Helper()
	key := "/registry/" + v1alpha1.GroupVersion.Group + "/" + resource
	revision, err := cp.StoredRevision(s.Context())
	s.Expect(err).NotTo(HaveOccurred())
	stored, err := cp.StoredAt(s.Context(), revision, func(each string) bool { return each == key })
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(stored).To(HaveLen(1), key)
	object := map[string]any{}
	s.Expect(json.Unmarshal(stored[0].Value, &object)).To(Succeed())
	s.Expect(unstructured.SetNestedField(object, value, field...)).To(Succeed())
	changed, err := json.Marshal(object)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(cp.Store(s.Context(), key, changed)).To(Succeed())
}

// undecodable drains Machines beside an Evacuation and a NodeMaintenance that cannot be decoded, before and after a restart of the manager.
// The second Machine waits for a policy that cannot be decoded. The third is deselected meanwhile, and is not restored until the
// NodeMaintenance is deleted.
func (s *scene) undecodable(tenant client.Client, first, second, third string) {
	oddName, policyName := "odd-"+first, "a-"+first
	pod := bare(oddName, "spare")
	pod.Namespace, pod.Annotations = tenantNamespace, map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + "slow.example.com": "1"}
	s.create(s.workload.Client, pod)
	odd := requestFor(pod)
	s.Expect(tenant.Create(s.Context(), odd)).To(Succeed())
	s.create(s.workload.Client, nm(oddName, v1alpha1.StageIdle, ofNodes("spare")))
	s.expectNodeConditions("spare", v1alpha1.NodeMaintenancePlanned)
	s.relabel(third, "pool", "x")
	s.create(s.workload.Client, nm("pool", v1alpha1.StageCordon, ofNodesLabelled("pool", "x")))
	s.expectNodeConditions(third, v1alpha1.NodeMaintenanceInProgress)
	s.edit(s.workload.ControlPlane, "evacuations/"+tenantNamespace+"/"+odd.Name, "2026-01-01t00:00:00z", "status", "evacuationProgressTimestamp")
	s.edit(s.workload.ControlPlane, "nodemaintenances/"+oddName, int64(3000000000), "spec", "maxParallelNodes")
	s.expectEventIn(s.workload.Client, odd.Name, setaside.EventReason, "cannot be decoded")
	s.expectEventIn(s.workload.Client, oddName, setaside.EventReason, "cannot be decoded")

	s.relabel(third, "pool", "")
	s.runOn(first, "web", 2, deployment("web", 2), budget("web", 1))
	s.expectDisruptionsAllowed("web", 1)
	s.deleteMachine(first)
	s.Eventually(func() bool { return s.isGone(first) }, eventually, pace).Should(BeTrue())
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))

	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: policyName}}
	policy.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"no": "machine"}}
	s.create(s.fleet.Client, policy)
	s.edit(s.fleet.Management, "machinedrainpolicies/"+namespace+"/"+policyName, int64(3000000000), "spec", "maxParallelDrains")
	s.Expect(s.fleet.Manager.Stop()).To(Succeed())
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectEventIn(s.fleet.Client, policyName, setaside.EventReason, "cannot be decoded")
	s.deleteMachine(second)
	s.Eventually(func() string { return s.condition(second).Reason }, eventually, pace).Should(Equal(v1alpha1.ReasonPolicyNotDecodable))
	s.Expect(s.condition(second).Message).To(ContainSubstring("Waiting for MachineDrainPolicy " + namespace + "/" + policyName))
	s.Expect(s.fleet.Client.Delete(s.Context(), policy)).To(Succeed())
	s.Eventually(func() bool { return s.isGone(second) }, eventually, pace).Should(BeTrue())

	s.Expect(s.node(third).Spec.Unschedulable).To(BeTrue())
	s.expectNodeConditions(third, v1alpha1.NodeMaintenanceInProgress)
	s.expectNodeConditions("spare", v1alpha1.NodeMaintenancePlanned)
	s.Expect(s.workload.Client.Delete(s.Context(), nm(oddName, v1alpha1.StageIdle))).To(Succeed())
	s.Eventually(func() bool { return s.node(third).Spec.Unschedulable }, eventually, pace).Should(BeFalse())
	s.Eventually(func() []corev1.NodeCondition {
		return append(s.node("spare").Status.Conditions, s.node(third).Status.Conditions...)
	}, eventually, pace).
		ShouldNot(ContainElement(HaveField("Reason", v1alpha1.ReasonNodeMaintenance)))
	s.Expect(s.workload.Client.Delete(s.Context(), nm("pool", v1alpha1.StageCordon))).To(Succeed())
	s.edit(s.workload.ControlPlane, "evacuations/"+tenantNamespace+"/"+odd.Name, "2026-01-01T00:00:00Z", "status", "evacuationProgressTimestamp")
	s.Expect(s.workload.Client.Delete(s.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
	s.removeWorkloads()
}
