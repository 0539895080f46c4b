package remote

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/record"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestTellMissing(t *testing.T) {
	t.Run("R9: what a workload cluster is too old for is said on the Cluster", func(t *testing.T) {
		g, recorder := NewWithT(t), record.NewFakeRecorder(1)
		r := &Reconciler{recorder: recorder}
		r.tellMissing(t.Context(), &clusterv1.Cluster{}, nil)
		g.Expect(recorder.Events).To(BeEmpty())
		r.tellMissing(t.Context(), &clusterv1.Cluster{}, []string{"ValidatingAdmissionPolicy one", "ValidatingAdmissionPolicyBinding one"})
		g.Expect(recorder.Events).To(Receive(Equal("Warning AdmissionPoliciesMissing The workload cluster doesn't take these, so that whoever may write " +
			"NodeMaintenances and Evacuations there can drain its Nodes: ValidatingAdmissionPolicy one, ValidatingAdmissionPolicyBinding one")))
	})
}
