package machinedrain_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestStageOfUnread(t *testing.T) {
	now := ptr.To(metav1.Now())
	cluster := &clusterv1.Cluster{}
	hooked := map[string]string{v1alpha1.PreDrainHookAnnotation: ""}
	for _, tc := range []struct {
		name    string
		machine metav1.ObjectMeta
		cluster *clusterv1.Cluster
		want    v1alpha1.NodeMaintenanceStage
	}{
		{
			"M98: while the policy of a Machine cannot be read, its NodeMaintenance may be wanted, and nothing is restored",
			metav1.ObjectMeta{}, cluster, v1alpha1.StageCordon,
		},
		{
			"M98: a deleted Machine with the hook is drained, whatever its policy",
			metav1.ObjectMeta{DeletionTimestamp: now, Annotations: hooked}, cluster, v1alpha1.StageDrain,
		},
		{"M98: a deleted Machine without the hook is not drained", metav1.ObjectMeta{DeletionTimestamp: now}, cluster, ""},
		{"M98: without a Cluster, no NodeMaintenance is wanted", metav1.ObjectMeta{}, nil, ""},
		{
			"M98: in a Cluster that is being deleted, no NodeMaintenance is wanted",
			metav1.ObjectMeta{}, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: now}}, "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(machinedrain.StageOfUnread(&clusterv1.Machine{ObjectMeta: tc.machine}, tc.cluster)).To(Equal(tc.want))
		})
	}
}
