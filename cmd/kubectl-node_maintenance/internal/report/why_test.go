package report_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestMachineWhy(t *testing.T) {
	for name, test := range map[string]struct {
		deleted, paused, clusterPaused bool
		want                           []string
	}{
		"says that a deleted Machine is paused":            {true, true, false, []string{"The Machine is paused"}},
		"says that the Cluster of the Machine is paused":   {true, false, true, []string{"The Cluster is paused"}},
		"says nothing of a paused Machine without a drain": {false, true, true, nil},
	} {
		t.Run("K5: why "+name, func(t *testing.T) {
			w1 := machine("w1", nil)
			m := &observe.Machine{Machine: &w1, Cluster: &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: &test.clusterPaused}}}
			if test.deleted {
				w1.DeletionTimestamp = ptr.To(metav1.NewTime(now))
			}
			if test.paused {
				w1.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			var messages []string
			for _, problem := range report.MachineWhy(m, nil, nil, nil, nil, machinedrain.NotSkipped).Problems {
				messages = append(messages, problem.Message)
			}
			NewWithT(t).Expect(messages).To(Equal(test.want))
		})
	}
}
