package command

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// TestPolicyNotDecodable has a Machine whose drain waits for a MachineDrainPolicy that cannot be decoded.
func TestPolicyNotDecodable(t *testing.T) {
	w1 := clusterv1.Machine{TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"}}
	w1.Namespace, w1.Name, w1.UID, w1.Spec.ClusterName = "default", "w1", "w1", "prod"
	now := metav1.Now()
	w1.DeletionTimestamp = &now
	w1.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
	w1.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPolicyNotDecodable,
		Message: "Waiting for MachineDrainPolicy odd, which may select the Machine, to be fixed: it cannot be decoded",
	}}
	cluster := clusterv1.Cluster{TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster"}}
	cluster.Namespace, cluster.Name = "default", "prod"
	odd := map[string]any{"metadata": map[string]any{"namespace": "default", "name": "odd"}, "spec": map[string]any{"surge": 1}}
	ofClusterAPI, ours := "/apis/"+clusterv1.GroupVersion.String(), "/apis/"+v1alpha1.GroupVersion.String()
	address, _ := serving(t, map[string]any{
		ofClusterAPI + "/namespaces/default/machines/w1":   w1,
		ofClusterAPI + "/namespaces/default/machines":      clusterv1.MachineList{Items: []clusterv1.Machine{w1}},
		ofClusterAPI + "/namespaces/default/clusters/prod": cluster,
		ours + "/namespaces/default/machinedrainpolicies": map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "MachineDrainPolicyList", "items": []any{odd},
		},
	}, "Machine", "Cluster", "MachineDrainRule")

	t.Run("K77: why machine explains a Machine that waits for a MachineDrainPolicy that cannot be decoded", func(t *testing.T) {
		g := NewWithT(t)
		stdout, stderr, code := run("why", "machine", "w1", "--server", address, "--kubeconfig", os.DevNull)
		g.Expect(stdout).To(ContainSubstring("Waiting for MachineDrainPolicy odd"), stderr)
		g.Expect(stdout).To(ContainSubstring("Fix or delete the MachineDrainPolicy that is named."))
		g.Expect(stdout).To(ContainSubstring("NOT READ"))
		g.Expect(code).To(BeZero())
	})
	t.Run("K77: plan does not predict a drain with a MachineDrainPolicy that cannot be decoded", func(t *testing.T) {
		g := NewWithT(t)
		_, stderr, code := run("plan", "machine", "w1", "--server", address, "--kubeconfig", os.DevNull)
		g.Expect(code).To(Equal(3))
		g.Expect(stderr).To(ContainSubstring("MachineDrainPolicies"))
	})
}
