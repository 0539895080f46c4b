package workload

import (
	"testing"

	"k8s.io/client-go/rest"
)

func TestEvictionsAreLimited(t *testing.T) {
	t.Run("E23: limits evictions separately from other requests", func(t *testing.T) {
		evictions, err := newEvictionClient(&rest.Config{Host: "https://example.com", QPS: 1, Burst: 1}, Limits{QPS: 100, Burst: 3})
		if err != nil {
			t.Fatal(err)
		}
		limiter := evictions.GetRateLimiter()
		if limiter.QPS() != 100 {
			t.Errorf("got %f a second", limiter.QPS())
		}
		for i := range 4 {
			if got, want := limiter.TryAccept(), i < 3; got != want {
				t.Errorf("eviction %d of a burst of 3: accepted %v", i+1, got)
			}
		}
	})
}
