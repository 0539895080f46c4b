package toolchain

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestInstalled(t *testing.T) {
	root, err := Root()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	program, err := Find("kube-scheduler")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	pinned, err := program.Version(root)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, test := range map[string]struct {
		prints   string
		variable string
		uses     bool
	}{
		"the pinned version":             {prints: "echo Kubernetes " + pinned, variable: "1", uses: true},
		"another patch of the release":   {prints: "echo Kubernetes " + release.ReplaceAllString(pinned, "$1.99"), variable: "1", uses: true},
		"another minor release":          {prints: "echo Kubernetes v1.1.3", variable: "1"},
		"a text without a version":       {prints: "echo unknown", variable: "1"},
		"a program that fails":           {prints: "echo Kubernetes " + pinned + "; exit 1", variable: "1"},
		"tests run pinned programs only": {prints: "echo Kubernetes " + pinned},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			installed.Clear()
			directory := t.TempDir()
			file := filepath.Join(directory, program.Name)
			g.Expect(os.WriteFile(file, []byte("#!/bin/sh\n"+test.prints+"\n"), 0o755)).To(Succeed())
			t.Setenv("KUBEBUILDER_ASSETS", directory)
			t.Setenv("PATH", "/bin:/usr/bin")
			t.Setenv(InstalledVariable, test.variable)
			g.Expect(program.Installed(root)).To(Equal(map[bool]string{true: file}[test.uses]))
		})
	}
}
