package memory

import (
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
)

type reconciler struct {
	failures map[string]int
	Shared   *shared
	wrapped  any
	followed sync.Map
	states   []state
	again    *reconciler
	Other    sync.WaitGroup // of another package
}

type shared struct{ seen sets.Set[string] }

type state struct{ pods map[int]state }

func TestOf(t *testing.T) {
	g := NewWithT(t)
	r := &reconciler{
		failures: map[string]int{"a": 1, "b": 2}, Shared: &shared{}, wrapped: state{}, states: []state{{}, {map[int]state{3: {map[int]state{4: {}}}}}},
	}
	r.again = r
	r.followed.Store("c", &shared{seen: sets.New("d")})
	found := map[string][][]any{}
	for _, m := range Of([]any{r, r.Shared}, "github.com/capnm/cluster-api-node-maintenance/test/simulation/memory") {
		found[m.Path] = append(found[m.Path], m.Keys)
	}
	g.Expect(found).To(HaveLen(8))
	g.Expect(found).To(HaveKeyWithValue("memory.reconciler.failures", ConsistOf(ConsistOf("a", "b"))))
	g.Expect(found).To(HaveKeyWithValue("memory.reconciler.Shared.seen", ConsistOf(BeEmpty())))
	g.Expect(found).To(HaveKeyWithValue("memory.state.pods", ConsistOf(BeEmpty())))
	g.Expect(found).To(HaveKeyWithValue("memory.reconciler.followed", ConsistOf(ConsistOf("c"))))
	g.Expect(found).To(HaveKeyWithValue("memory.reconciler.followed[].seen", ConsistOf(ConsistOf("d"))))
	g.Expect(found).To(HaveKeyWithValue("memory.reconciler.states[].pods", ConsistOf(BeEmpty(), ConsistOf(3))))
	g.Expect(found).To(HaveKeyWithValue("memory.reconciler.states[].pods[].pods", ConsistOf(ConsistOf(4))))
}
