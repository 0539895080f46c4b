package daemonset

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// onePod is an Observation with one Pod.
type onePod struct {
	workload.Observation
	pod *corev1.Pod
}

func (o onePod) PodByUID(uid types.UID) (*corev1.Pod, bool) { return o.pod, o.pod.UID == uid }

func TestPodThatABackupRestores(t *testing.T) {
	t.Run("R73: a deleted Pod of a DaemonSet that the API server has again waits for ten minutes at most", func(t *testing.T) {
		g := NewWithT(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "log", UID: "1", ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
		r := &Reconciler{written: expectations.New[*corev1.Pod](t.Context(), workload.TrimPod)}
		s := &scope{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
		r.written.RecordDeleted(s.cluster, pod)
		g.Expect(r.deletePods(t.Context(), s, onePod{pod: pod}, []v1alpha1.Evacuation{*evacuation.New(pod, nil, 0)})).To(Succeed())
		g.Expect(s.requeue).To(Equal(expectations.TTL))
	})
}
