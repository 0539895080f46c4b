package evictor

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testingclock "k8s.io/utils/clock/testing"
)

func TestShutdownGate(t *testing.T) {
	for _, tc := range []struct {
		name    string
		proceed func(*shutdownGate, *testingclock.FakeClock)
	}{
		{"the shutdown of the manager waits for an eviction", func(l *shutdownGate, _ *testingclock.FakeClock) { l.end() }},
		{"the shutdown waits no longer than MaxShutdownWait", func(_ *shutdownGate, now *testingclock.FakeClock) { now.Step(MaxShutdownWait) }},
	} {
		t.Run("E18: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			now := testingclock.NewFakeClock(now)
			l := &shutdownGate{clock: now}
			g.Expect(l.begin()).To(BeTrue())
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- l.Start(ctx) }()
			stop()
			g.Eventually(now.HasWaiters).WithTimeout(time.Minute).Should(BeTrue(), "it waits")
			g.Expect(l.begin()).To(BeFalse(), "no eviction may start")
			g.Expect(ended).NotTo(Receive())
			tc.proceed(l, now)
			g.Eventually(ended).WithTimeout(time.Minute).Should(Receive(BeNil()))
		})
	}
}
