package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestCreations(t *testing.T) {
	g := NewWithT(t)
	var created creations
	request := workload.Request{Object: types.NamespacedName{Name: "maintenance"}}
	start := time.Unix(1_000_000, 0)
	sent := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod"}}, nil, 0)
	sent.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "one"}
	awaited := func(pod types.UID, after time.Duration) bool {
		_, waits := created.awaited(request, pod, time.Time{}, start.Add(after))
		return waits
	}
	g.Expect(awaited("pod", 0)).To(BeFalse(), "nothing has been created")

	created.recordCreated(request, sent, start)
	g.Expect(awaited("pod", time.Second)).To(BeTrue())
	g.Expect(awaited("other", time.Second)).To(BeFalse())
	g.Expect(created.unobserved(request, "one")).To(ConsistOf(HaveField("Name", sent.Name)), "E57: the NodeMaintenance withdraws from it, too")
	g.Expect(created.unobserved(request, "two")).To(BeEmpty())
	g.Expect(awaited("pod", createdGrace)).To(BeFalse(), "an Evacuation that the watch has not delivered is created again")

	created.recordObserved(request, "pod", false)
	g.Expect(created.unobserved(request, "one")).To(BeEmpty())
	g.Expect(awaited("pod", time.Second)).To(BeFalse(), "an Evacuation that was observed and deleted is created again at once")

	g.Expect(created.wasObserved(request, "pod")).To(BeTrue())
	g.Expect(created.wasObserved(request, "other")).To(BeFalse())
	created.refusals(request, nil)
	g.Expect(created.wasObserved(request, "pod")).To(BeFalse(), "nothing is kept of a Pod that does not exist")

	timeout := errors.New("context deadline exceeded")
	created.recordUnanswered(request, sent, timeout, start)
	refused, retryAt := created.refusals(request, map[types.UID]bool{"pod": true})
	g.Expect(refused).To(Equal(map[types.UID]error{"pod": timeout}), "E81: the status names the Pod of a request without an answer")
	g.Expect(retryAt).To(Equal(start.Add(minRefusedRetry)))
	refused, retryAt = created.refusals(request, map[types.UID]bool{"pod": false})
	g.Expect(refused).To(BeEmpty())
	g.Expect(retryAt).To(BeZero())
	g.Expect(created.unobserved(request, "one")).To(HaveLen(1), "E57: it may exist, also if the Pod is no longer targeted")
	g.Expect(awaited("pod", minRefusedRetry-1)).To(BeTrue(), "E81: a request without an answer is not repeated for five seconds")
	g.Expect(awaited("pod", minRefusedRetry)).To(BeFalse())
	created.forget(request, "pod")
	g.Expect(created.unobserved(request, "one")).To(BeEmpty())

	created.recordCreated(request, sent, start)
	created.remove(request)
	g.Expect(created.last).To(BeEmpty())
}

func TestCreationsThatAreRefused(t *testing.T) {
	g := NewWithT(t)
	var created creations
	request := workload.Request{Object: types.NamespacedName{Name: "maintenance"}}
	now, refusal := time.Unix(1_000_000, 0), errors.New("exceeded quota")
	there := map[types.UID]bool{"pod": true}

	for _, backoff := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
		created.recordRefused(request, "pod", refusal, now)
		refused, retryAt := created.refusals(request, there)
		g.Expect(refused).To(Equal(map[types.UID]error{"pod": refusal}))
		g.Expect(retryAt).To(Equal(now.Add(backoff)))
		until, awaited := created.awaited(request, "pod", time.Time{}, now)
		g.Expect(awaited).To(BeTrue())
		g.Expect(until).To(Equal(retryAt))
		now = until
		_, awaited = created.awaited(request, "pod", time.Time{}, now)
		g.Expect(awaited).To(BeFalse(), "the creation is retried after the backoff")
	}
	created.recordRefused(request, "pod", refusal, now)
	until, awaited := created.awaited(request, "pod", now.Add(10*time.Second), now)
	g.Expect(awaited).To(BeTrue())
	g.Expect(until).To(Equal(now.Add(10*time.Second)), "E52: the backoff ends at the final eviction attempt of the Pod")
	_, awaited = created.awaited(request, "pod", now, now.Add(20*time.Second))
	g.Expect(awaited).To(BeTrue(), "E52: once")
	created.recordCreated(request, evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod"}}, nil, 0), now)
	refused, _ := created.refusals(request, there)
	g.Expect(refused).To(BeEmpty(), "a created Evacuation is no longer refused")

	created.recordRefused(request, "gone", refusal, now)
	refused, _ = created.refusals(request, nil)
	g.Expect(refused).To(BeEmpty(), "the refusal is dropped with the Pod")

	created.recordRefused(request, "skipped", refusal, now)
	refused, retryAt := created.refusals(request, map[types.UID]bool{"skipped": false})
	g.Expect(refused).To(BeEmpty(), "R65: the Pod is no longer targeted")
	g.Expect(retryAt).To(BeZero(), "R65: no retry is due, now or later")

	created.recordObserved(request, "pod", true)
	created.recordRefused(request, "pod", refusal, now)
	created.recordObserved(request, "pod", true)
	refused, _ = created.refusals(request, there)
	g.Expect(refused).To(HaveKey(types.UID("pod")), "M39: the API server refuses the request for the existing Evacuation")
	g.Expect(created.wasObserved(request, "pod")).To(BeTrue())
	created.recordObserved(request, "pod", false)
	refused, _ = created.refusals(request, there)
	g.Expect(refused).To(BeEmpty(), "M39: NodeMaintenances are an instigator now, or the Evacuation is being deleted")
}
