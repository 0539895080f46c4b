package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestNewMaintenanceOfAnEmptyName(t *testing.T) {
	t.Run("R8, E76: a NodeMaintenance that names an empty Node ends no pass over the other Pods of the workload cluster", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		e := evacuation.New(pod, nil, 0)
		e.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		draining := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("one"),
		}}
		unnamed := &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: "unnamed", CreationTimestamp: metav1.NewTime(now)},
			Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon, NodeSelector: v1alpha1.SelectNodes("")},
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		p := passOver(t, now, onePod{pod: pod}, e, draining, unnamed, node)
		candidates, err := p.collect(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(candidates).To(HaveLen(1))
	})
}
