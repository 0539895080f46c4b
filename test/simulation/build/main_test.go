package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPatched(t *testing.T) {
	g := NewWithT(t)
	source, err := goOutput("list", "-f", "{{.Dir}}", "runtime")
	g.Expect(err).NotTo(HaveOccurred())
	files, err := patched(source)
	g.Expect(err).NotTo(HaveOccurred(), "the installed Go has all texts")

	other := t.TempDir()
	for name := range files {
		content, err := os.ReadFile(filepath.Join(source, name))
		g.Expect(err).NotTo(HaveOccurred())
		content = bytes.ReplaceAll(content, []byte("t.rand = cheaprand()"), []byte("t.rand = anotherrand()"))
		g.Expect(os.WriteFile(filepath.Join(other, name), content, 0o600)).To(Succeed())
	}
	_, err = patched(other)
	g.Expect(err).To(MatchError(ContainSubstring(`has the text "\t\t\tt.rand = cheaprand()\n" 0 times`)), "another Go is an error")
}
