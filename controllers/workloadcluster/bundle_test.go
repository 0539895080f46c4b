package workloadcluster

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/record"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestTellMissing(t *testing.T) {
	t.Run("R9: records an event on the Cluster about admission policies that the workload cluster does not support", func(t *testing.T) {
		g, recorder := NewWithT(t), record.NewFakeRecorder(1)
		r := &Reconciler{recorder: recorder}
		r.tellMissing(t.Context(), &clusterv1.Cluster{}, nil)
		g.Expect(recorder.Events).To(BeEmpty())
		r.tellMissing(t.Context(), &clusterv1.Cluster{}, []string{"ValidatingAdmissionPolicy one", "ValidatingAdmissionPolicyBinding one"})
		g.Expect(recorder.Events).To(Receive(Equal("Warning AdmissionPoliciesMissing The workload cluster does not support these, so every user who may write " +
			"NodeMaintenances or Evacuations there can drain its Nodes: ValidatingAdmissionPolicy one, ValidatingAdmissionPolicyBinding one")))
	})
}
