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
