package workload

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

func TestFailures(t *testing.T) {
	g := NewWithT(t)
	var failures Failures[string]
	start, first, second := time.Unix(1_000_000, 0), errors.New("first"), errors.New("second")

	g.Expect(failures.Get("a").Persists(start)).To(BeFalse())
	failures.Record("a", first, start)
	g.Expect(failures.Get("a").Persists(start.Add(9 * time.Second))).To(BeFalse())
	failures.Record("a", second, start.Add(9*time.Second))
	failure := failures.Get("a")
	g.Expect(failure.Persists(start.Add(10*time.Second))).To(BeTrue(), "another error does not restart the failure")
	g.Expect(failure.Err).To(Equal(second))

	failures.Record("a", nil, start.Add(11*time.Second))
	failures.Record("a", first, start.Add(12*time.Second))
	g.Expect(failures.Get("a").Since).To(Equal(start.Add(12*time.Second)), "a success ends the failure")

	failures.Record("b", first, start)
	failures.Remove(func(key string) bool { return key == "a" })
	g.Expect(failures.Get("a").Err).NotTo(HaveOccurred())
	g.Expect(failures.Get("b").Err).To(Equal(first))
}

func TestRetryAfter(t *testing.T) {
	t.Run("R57: the interval of retries after a conflict doubles up to a second", func(t *testing.T) {
		g := NewWithT(t)
		var failures Failures[string]
		start := time.Unix(1_000_000, 0)
		var intervals []time.Duration
		for now := start; len(intervals) < 8; now = now.Add(intervals[len(intervals)-1]) {
			intervals = append(intervals, failures.Record("a", errors.New("conflict"), now).RetryAfter(now))
		}
		const ms = time.Millisecond
		g.Expect(intervals).To(Equal([]time.Duration{50 * ms, 50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second}))
	})
}
