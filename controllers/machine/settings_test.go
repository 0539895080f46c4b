package machine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func TestSharedReadWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, began := NewWithT(t), time.Now()
		var reads shared[int]
		requests, errs := 0, make(chan error)
		hangs := func(ctx context.Context) (int, error) {
			requests++
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}
		for range 3 {
			go func() {
				_, _, err := reads.read(t.Context(), types.NamespacedName{Namespace: "a"}, time.Now, hangs)
				errs <- err
			}()
		}
		for range 3 {
			g.Expect(<-errs).To(MatchError("no answer for 5s"))
		}
		g.Expect(requests).To(Equal(1), "M161: workers share a request, and none waits for longer")
		g.Expect(time.Since(began)).To(Equal(sharedTimeout))
	})
}
