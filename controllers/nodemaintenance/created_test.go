package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestCreations(t *testing.T) {
	g := NewWithT(t)
	var created creations
	request := workload.Request{Object: types.NamespacedName{Name: "maintenance"}}
	start := time.Unix(1_000_000, 0)
	awaited := func(pod types.UID, after time.Duration) bool {
		_, waits := created.awaited(request, pod, start.Add(after))
		return waits
	}
	g.Expect(awaited("pod", 0)).To(BeFalse(), "nothing has been created")

	created.recordCreated(request, "pod", start)
	g.Expect(awaited("pod", time.Second)).To(BeTrue())
	g.Expect(awaited("other", time.Second)).To(BeFalse())
	g.Expect(awaited("pod", createdGrace)).To(BeFalse(), "an Evacuation that the watch has not delivered is created again")

	created.recordObserved(request, "pod")
	g.Expect(awaited("pod", time.Second)).To(BeFalse(), "an Evacuation that was observed and deleted is created again at once")

	g.Expect(created.wasObserved(request, "pod")).To(BeTrue())
	g.Expect(created.wasObserved(request, "other")).To(BeFalse())
	created.refusals(request, func(types.UID) bool { return false })
	g.Expect(created.wasObserved(request, "pod")).To(BeFalse(), "nothing is kept of a Pod that does not exist")

	created.recordCreated(request, "pod", start)
	created.remove(request)
	g.Expect(created.last).To(BeEmpty())
}

func TestCreationsThatAreRefused(t *testing.T) {
	g := NewWithT(t)
	var created creations
	request := workload.Request{Object: types.NamespacedName{Name: "maintenance"}}
	now, refusal := time.Unix(1_000_000, 0), errors.New("exceeded quota")
	there := func(types.UID) bool { return true }

	for _, backoff := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
		created.recordRefused(request, "pod", refusal, now)
		refused, retryAt := created.refusals(request, there)
		g.Expect(refused).To(Equal(map[types.UID]error{"pod": refusal}))
		g.Expect(retryAt).To(Equal(now.Add(backoff)))
		until, awaited := created.awaited(request, "pod", now)
		g.Expect(awaited).To(BeTrue())
		g.Expect(until).To(Equal(retryAt))
		now = until
		_, awaited = created.awaited(request, "pod", now)
		g.Expect(awaited).To(BeFalse(), "the creation is retried after the backoff")
	}
	created.recordCreated(request, "pod", now)
	refused, _ := created.refusals(request, there)
	g.Expect(refused).To(BeEmpty(), "a created Evacuation is no longer refused")

	created.recordRefused(request, "gone", refusal, now)
	refused, _ = created.refusals(request, func(types.UID) bool { return false })
	g.Expect(refused).To(BeEmpty(), "the refusal is dropped with the Pod")
}
