package writelimit

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestWrites(t *testing.T) {
	g := NewWithT(t)
	var writes Limiter[string]
	start := time.Unix(1_000_000, 0)
	g.Expect(writes.NextWrite("a", start, time.Minute)).To(Equal(start), "an object without a record may be written at once")

	writes.Record("a", start)
	g.Expect(writes.NextWrite("a", start.Add(time.Second), time.Minute)).To(Equal(start.Add(time.Minute)))
	g.Expect([]time.Time{writes.LastWrite("a"), writes.LastWrite("b")}).To(Equal([]time.Time{start, {}}))
	g.Expect(writes.NextWrite("b", start, time.Minute)).To(Equal(start), "the interval applies to each object separately")

	writes.Remove("a")
	g.Expect(writes.NextWrite("a", start.Add(time.Second), time.Minute)).To(Equal(start.Add(time.Second)))
}

func TestShare(t *testing.T) {
	g := NewWithT(t)
	var writes Limiter[int]
	start := time.Unix(1_000_000, 0)
	g.Expect(writes.FairInterval(start, nil)).To(BeZero(), "there is no limit without other writes")
	for i := range 500 {
		writes.Record(i, start)
	}
	g.Expect(writes.FairInterval(start.Add(time.Minute), nil)).To(Equal(50 * time.Second))
	g.Expect(writes.FairInterval(start.Add(time.Minute), func(key int) bool { return key < 20 })).
		To(Equal(2*time.Second), "objects of other API servers do not count")
	g.Expect(writes.FairInterval(start.Add(activeWindow), nil)).To(BeZero(), "old writes do not count")
}

func TestUrgentWrites(t *testing.T) {
	t.Run("R91: an object is written at most ten times in a moment, and then once a second", func(t *testing.T) {
		g, start, last := NewWithT(t), time.Unix(1_000_000, 0), time.Unix(1_000_000, 0)
		var writes Limiter[string]
		written := 0
		for now := start; now.Before(start.Add(time.Minute)); now = now.Add(20 * time.Millisecond) {
			if !now.Before(writes.NextUrgent("a", now)) {
				writes.Record("a", now)
				written, last = written+1, now
			}
			if now.Equal(start.Add(time.Second / 2)) {
				g.Expect(written).To(Equal(10))
				g.Expect(writes.NextUrgent("a", now)).To(Equal(start.Add(time.Second)))
				g.Expect(writes.NextUrgent("b", now)).To(Equal(now), "each object has its own")
			}
		}
		g.Expect(written).To(Equal(10 + 59))
		g.Expect(writes.NextUrgent("a", last.Add(time.Minute))).To(Equal(last.Add(time.Minute)))
		for range 10 { // after a pause, ten writes may follow each other again
			g.Expect(writes.NextUrgent("a", last.Add(time.Minute))).To(Equal(last.Add(time.Minute)))
			writes.Record("a", last.Add(time.Minute))
		}
		g.Expect(writes.NextUrgent("a", last.Add(time.Minute))).To(Equal(last.Add(time.Minute + time.Second)))
		writes.Remove("a")
		g.Expect(writes.NextUrgent("a", start)).To(Equal(start))
	})
	t.Run("R91: writes that are never delayed, however many, delay the next one by a second", func(t *testing.T) {
		g, start := NewWithT(t), time.Unix(1_000_000, 0)
		var writes Limiter[string]
		for range 1000 {
			writes.Record("a", start)
		}
		g.Expect(writes.NextUrgent("a", start)).To(Equal(start.Add(time.Second)))
		writes.Record("a", start.Add(-time.Hour))
		g.Expect(writes.NextUrgent("a", start.Add(-time.Hour))).To(Equal(start.Add(-time.Hour+time.Second)), "the clock was set back")
	})
}
