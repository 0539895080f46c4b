package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
)

func TestCreations(t *testing.T) {
	g := NewWithT(t)
	var created creations
	request := remote.Request{Object: types.NamespacedName{Name: "maintenance"}}
	start := time.Unix(1_000_000, 0)
	awaited := func(pod types.UID, after time.Duration) bool {
		_, waits := created.awaited(request, pod, start.Add(after))
		return waits
	}
	g.Expect(awaited("pod", 0)).To(BeFalse(), "nothing was created yet")

	created.note(request, "pod", start)
	g.Expect(awaited("pod", time.Second)).To(BeTrue())
	g.Expect(awaited("other", time.Second)).To(BeFalse())
	g.Expect(awaited("pod", createdGrace)).To(BeFalse(), "what doesn't come back is created again")

	created.back(request, "pod")
	g.Expect(awaited("pod", time.Second)).To(BeFalse(), "what was back and has gone is created again at once")

	created.note(request, "pod", start)
	created.forget(request)
	g.Expect(created.at).To(BeEmpty())
}
