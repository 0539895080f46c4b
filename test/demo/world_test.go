package main

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func pod(app, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: app, Name: name, UID: types.UID(name), Labels: map[string]string{appLabel: app}},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(epoch)) }

func TestReadyWebPodsAreCountedAsTheBudgetDoes(t *testing.T) {
	g := NewWithT(t)
	w := newWorld()
	for i := range webReplicas {
		g.Expect(w.web.complete).To(BeFalse())
		w.sawPod(pod(appWeb, fmt.Sprint("web-", i)), false, epoch)
		w.sawPod(pod(appStorage, fmt.Sprint("storage-", i)), false, epoch)
	}
	g.Expect(w.web).To(Equal(webCount{ready: webReplicas, complete: true, least: webReplicas}))
	w.sawPod(pod(appWeb, "web-0", terminating), false, epoch)
	w.sawPod(pod(appWeb, "web-0", terminating), true, epoch)
	w.sawPod(pod(appWeb, "web-1", func(p *corev1.Pod) { p.Status.Conditions = nil }), false, epoch)
	w.sawPod(pod(appWeb, "web-new"), false, epoch)
	g.Expect(w.web).To(Equal(webCount{ready: webReplicas - 1, complete: true, least: webReplicas - 2}))
}
