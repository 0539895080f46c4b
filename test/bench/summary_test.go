package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestSummary(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		g.Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed())
		return file
	}
	write("drain.json", `{"samples": [], "limit_seconds": 10.49, "capnm_seconds": 10.76, "capi_seconds": 203, "capnm_refused": 0}`)
	write("fleet.json", `{"rss_mb_per_idle_cluster": 0.9, "capi_rss_mb_per_idle_cluster": 1.1}`)
	page := write("page.md", "# Page\n\n"+beginMark+"old\n"+endMark+"\nThe end.\n")
	all := &summary{dir: dir, docs: page}
	g.Expect(all.print(&strings.Builder{})).To(Succeed())

	table, err := os.ReadFile(filepath.Join(dir, "all.md"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Split(string(table), "\n")).To(ContainElements(
		"| drain | seconds | 10.49 | 10.76 |  | 203 |",
		"|  | of them refused |  | 0 |  |  |",
		"| fleet | resident MB for each idle Cluster |  | 0.9 |  | 1.1 |",
	))
	replaced, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(replaced)).To(Equal("# Page\n\n" + beginMark + "\n" + string(table) + "\n" + endMark + "\nThe end.\n"))

	_, err = replaceTable([]byte("# Page\n"), "")
	g.Expect(err).To(HaveOccurred())
}
