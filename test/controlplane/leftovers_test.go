package controlplane

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	parent := t.TempDir()
	owners := map[string]*os.File{}
	for _, name := range []string{"running", "kept", "dead"} {
		dir := filepath.Join(parent, dirPrefix+name)
		g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
		owner, err := own(dir)
		g.Expect(err).NotTo(HaveOccurred())
		owners[name] = owner
	}
	g.Expect(disown(owners["kept"])).To(Succeed())
	g.Expect(owners["dead"].Close()).To(Succeed()) // as the kernel does when a process dies
	left := func() []string {
		var names []string
		entries, err := os.ReadDir(parent)
		g.Expect(err).NotTo(HaveOccurred())
		for _, entry := range entries {
			names = append(names, entry.Name()[len(dirPrefix):])
		}
		return names
	}

	removeLeftovers(parent, time.Now())
	g.Expect(left()).To(ConsistOf("running", "kept", "dead"), "the dead one's logs may still be wanted")
	removeLeftovers(parent, time.Now().Add(2*keepLeftovers))
	g.Expect(left()).To(ConsistOf("running", "kept"))
	g.Expect(owners["running"].Close()).To(Succeed())
}
