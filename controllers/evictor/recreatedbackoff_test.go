package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// A tenant deletes and creates the Evacuation of a Pod whose eviction a webhook refuses, again and again.
func TestBackoffOfPodWhoseEvacuationIsRecreated(t *testing.T) {
	t.Run("E18: the Pod has the backoff of the refusal", func(t *testing.T) {
		g, pod, clock := NewWithT(t), podNamed("web", ""), clocktesting.NewFakeClock(now)
		former, present := evacuation.New(pod, nil, 0), evacuation.New(pod, nil, 0)
		former.UID, former.ResourceVersion, former.CreationTimestamp = "former", "1", metav1.NewTime(now.Add(-time.Minute))
		present.UID, present.CreationTimestamp = "present", metav1.NewTime(now)
		p := passOver(t, now, onePod{pod: pod}, present)
		s := p.due([]v1alpha1.Evacuation{*former})[0]
		v := &Evictor{Clock: clock, Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock)}
		v.recordRefusal(t.Context(), p, s, refusal{reason: v1alpha1.ReasonWebhookRefused, message: "denied"}, now)
		g.Expect(p.state.backoffs.of(pod.UID)).To(BeTemporally(">", now), "the next pass evicts the Pod again at once")
	})
}
