package logind

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestLock(t *testing.T) {
	t.Run("S63: a lock that is not wanted any more is released, also if a shutdown has just begun", func(t *testing.T) {
		g := NewWithT(t)
		lock, err := os.Create(t.TempDir() + "/lock")
		g.Expect(err).NotTo(HaveOccurred())
		keeper := &Keeper{lock: lock, state: State{Preparing: true}}
		keeper.DelayFor(time.Minute, "")
		keeper.applyDelay(t.Context(), nil)
		g.Expect(keeper.Locked()).To(BeTrue())
		keeper.DelayFor(0, "")
		keeper.applyDelay(t.Context(), nil)
		g.Expect(keeper.Locked()).To(BeFalse())
	})
}
