package remote_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
)

// observed is an Observation of one Pod.
type observed struct {
	remote.Observation
	pod *corev1.Pod
}

func (o observed) PodByUID(uid types.UID) (*corev1.Pod, bool) { return o.pod, o.pod.UID == uid }

func TestPodOf(t *testing.T) {
	t.Run("E10: the UID of a Pod in another Namespace leads nowhere", func(t *testing.T) {
		g := NewWithT(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", UID: "uid"}}
		e := &v1alpha1.Evacuation{Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{UID: "uid"}}}
		e.Namespace = "mine"
		_, found := remote.PodOf(observed{pod: pod}, e)
		g.Expect(found).To(BeFalse())
		e.Namespace = "theirs"
		mine, found := remote.PodOf(observed{pod: pod}, e)
		g.Expect(found).To(BeTrue())
		g.Expect(mine).To(BeIdenticalTo(pod))
	})
}
