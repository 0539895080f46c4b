package main

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

func TestCrowdSize(t *testing.T) {
	g := NewWithT(t)
	size, err := fleetSize.scaled(options{clusters: 50, drained: 10, unreachable: -1, rest: time.Second})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(size).To(Equal(crowdSize{clusters: 50, hosts: 3, drained: 10, pods: 20, unreachable: 10, rest: time.Second}))
	size, err = fleetSize.scaled(options{clusters: 50, drained: 10, unreachable: 0})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(size.unreachable).To(BeZero())
	_, err = fleetSize.scaled(options{clusters: 150})
	g.Expect(err).To(MatchError(ContainSubstring("too few")))
}

// The name of a process may contain spaces and brackets.
func TestProcessFigures(t *testing.T) {
	g := NewWithT(t)
	used, err := cpuTime("42 (a (b) c) S 1 42 42 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 7 0 1000 0 0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(used).To(Equal(2 * time.Second))
	_, err = cpuTime("42")
	g.Expect(err).To(HaveOccurred())

	resident, err := residentMemory("Name:\tmanager\nVmPeak:\t  9000 kB\nVmRSS:\t  2048 kB\n")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resident).To(Equal(2.0))
	_, err = residentMemory("Name:\tmanager\n")
	g.Expect(err).To(HaveOccurred())
}

func TestHoldTo(t *testing.T) {
	g := NewWithT(t)
	f := &figures{}
	f.add("writes", 0, "")
	f.add("calls_per_pod", 9.5, "")
	f.holdTo(map[string]float64{"writes": 0, "calls_per_pod": 10})
	g.Expect(f.failures()).To(BeEmpty())
	f.holdTo(map[string]float64{"calls_per_pod": 9})
	g.Expect(f.failures()).To(ConsistOf(ContainSubstring("9.5, more than the recorded 9")))
}

// A figure that was not measured is a failure.
func TestHoldToWhatIsMissing(t *testing.T) {
	g := NewWithT(t)
	f := &figures{}
	f.holdTo(map[string]float64{"refused": 0})
	g.Expect(f.failures()).To(ConsistOf("refused was not measured"))
}

func TestEveryRecordedLimitIsRead(t *testing.T) {
	g := NewWithT(t)
	limits, err := recordedLimits()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(limits).To(And(HaveKey("calls_per_pod"), HaveKeyWithValue("writes", 0.0)))
}

func TestJudgeScale(t *testing.T) {
	g := NewWithT(t)
	f := &figures{}
	f.add("rss_mb_per_idle_cluster", 0.9, "")
	f.add("p99_room_to_eviction_ms", 301.0, "")
	f.judgeScale()
	g.Expect(f.flat()).To(HaveKeyWithValue("goals_missed", []string{"p99_room_to_eviction_ms"}))
	g.Expect(f.failures()).To(BeEmpty(), "goals that depend on the machine are no failures")
}

func TestRates(t *testing.T) {
	g := NewWithT(t)
	g.Expect(evictionRate(nil)).To(BeZero())
	g.Expect(evictionRate(controlplane.Events{call(0, 100), call(100, 500), call(50, 1000)})).To(Equal(3.0))
	g.Expect(peakRate(nil)).To(BeZero())
	g.Expect(peakRate(controlplane.Events{call(0, 1), call(999, 1001), call(1000, 1001)})).To(Equal(2))
}
