package toolchain

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// InstalledVariable names an environment variable that, if set, makes Path return programs of this machine instead of built ones: those in
// the directory KUBEBUILDER_ASSETS, where setup-envtest installs them, and in PATH, if they are of the pinned minor release. The demo sets
// it. Tests and benchmarks run the pinned versions only.
const InstalledVariable = "CAPNM_INSTALLED_PROGRAMS"

// versionArguments are those with which a program that may be installed prints its version. Programs of Cluster API are not installed on
// machines: they run in containers.
var versionArguments = map[string][]string{
	"etcd":                    {"--version"},
	"kube-apiserver":          {"--version"},
	"kube-controller-manager": {"--version"},
	"kube-scheduler":          {"--version"},
	"kubectl":                 {"version", "--client"},
	"kwok":                    {"--version"},
}

var installed sync.Map // Program -> path, or "" if none fits

// Installed returns the path of an installed program that is used instead of a built one, or "". See InstalledVariable.
func (p Program) Installed(root string) string {
	if os.Getenv(InstalledVariable) == "" || versionArguments[p.Name] == nil {
		return ""
	}
	if known, ok := installed.Load(p); ok {
		return known.(string)
	}
	found := p.lookFor(root)
	installed.Store(p, found)
	return found
}

func (p Program) lookFor(root string) string {
	pinned, err := p.Version(root)
	if err != nil {
		return ""
	}
	var candidates []string
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		candidates = append(candidates, filepath.Join(assets, p.Name))
	}
	if file, err := exec.LookPath(p.Name); err == nil {
		candidates = append(candidates, file)
	}
	for _, file := range candidates {
		if isMinorRelease(p.versionOf(file), pinned) {
			return file
		}
	}
	return ""
}

// versionOf returns what an installed program says of its version, or "" if it cannot be run.
func (p Program) versionOf(file string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	output, err := exec.CommandContext(ctx, file, versionArguments[p.Name]...).Output()
	if err != nil {
		return ""
	}
	return string(output)
}

var release = regexp.MustCompile(`([0-9]+\.[0-9]+)\.[0-9]+`)

// isMinorRelease reports whether the first version in a text is of the same minor release as a pinned version.
func isMinorRelease(text, pinned string) bool {
	found, wanted := release.FindStringSubmatch(text), release.FindStringSubmatch(pinned)
	return found != nil && wanted != nil && found[1] == wanted[1]
}
