package controlplane

import (
	"context"
	"testing"
	"time"
)

// startTimeout is long: a start takes a few seconds, but tests of several packages may start
// several control planes concurrently on a small machine.
const startTimeout = 5 * time.Minute

// ForTest starts a control plane that runs as long as the test. If the test fails, the logs are
// kept, and the test's output has their path.
func ForTest(t testing.TB, options Options) *ControlPlane {
	t.Helper()
	if options.Name == "" {
		options.Name = t.Name()
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	c, err := Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.failed = true
			t.Logf("control plane %s: logs are kept in %s", c.Name(), c.path("log"))
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}
