package main

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/test/chaos"
)

var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// The invariants hold for a history without drains.
func TestOwnChecksFailWithoutDrains(t *testing.T) {
	g := NewWithT(t)
	w := newWorld()
	w.web.least = webReplicas
	for i, c := range checkAll(&chaos.History{Replicas: 1}, w) {
		g.Expect(c.ok()).To(Equal(i > 2), c.Promise)
	}
}

func TestNodeThatIsSchedulableAgain(t *testing.T) {
	g := NewWithT(t)
	h := &chaos.History{}
	for _, unschedulable := range []bool{false, true} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
		h.Workload.Versions = append(h.Workload.Versions, chaos.Version{Object: node})
	}
	g.Expect(checkCordon(h).ok()).To(BeTrue())
	h.Workload.Versions = append(h.Workload.Versions, h.Workload.Versions[0])
	g.Expect(checkCordon(h).Problems).To(ConsistOf(HavePrefix("Node n was schedulable again")))
}
