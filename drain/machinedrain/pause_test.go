package machinedrain_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestPauses(t *testing.T) {
	annotated := metav1.ObjectMeta{Annotations: map[string]string{clusterv1.PausedAnnotation: ""}}
	for _, tc := range []struct {
		name                         string
		cluster                      clusterv1.Cluster
		machine                      clusterv1.Machine
		pausesCluster, pausesMachine bool
	}{
		{name: "M102: neither is paused"},
		{name: "M102: spec.paused is false", cluster: clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(false)}}},
		{
			name: "M102: spec.paused pauses the Cluster and its Machines", cluster: clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}},
			pausesCluster: true, pausesMachine: true,
		},
		{name: "M102: the annotation on the Cluster pauses no Machine", cluster: clusterv1.Cluster{ObjectMeta: annotated}},
		{name: "M102: the annotation on the Machine pauses this Machine", machine: clusterv1.Machine{ObjectMeta: annotated}, pausesMachine: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := machinedrain.IsClusterPaused(&tc.cluster); got != tc.pausesCluster {
				t.Errorf("IsClusterPaused: got %t", got)
			}
			if got := machinedrain.IsPaused(&tc.cluster, &tc.machine); got != tc.pausesMachine {
				t.Errorf("IsPaused: got %t", got)
			}
		})
	}
}
