package workload

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

func TestLateEventsOfAStoppedWatch(t *testing.T) {
	g := NewWithT(t)
	informer := func() cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	}
	former, present := informer(), informer()
	w := &drainWatch{notify: func(Change) {}, nodes: map[string]*nodePods{"one": {informer: present}}, byUID: map[types.UID]*corev1.Pod{}}
	deleted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "deleted", UID: "deleted"}}
	w.podChanged(PodChanged, "one", former, deleted)
	g.Expect(w.byUID).To(BeEmpty(), "no event of the present watch would remove the Pod")
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "running", UID: "running"}}
	w.podChanged(PodChanged, "one", present, running)
	w.podChanged(PodDeleted, "one", former, running)
	g.Expect(w.byUID).To(HaveKey(running.UID))
}
