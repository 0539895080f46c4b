package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pkg/errors"
)

// architectures that are released, all for Linux.
var architectures = []string{"amd64", "arm64"}

func binaryName(architecture string) string { return "manager-linux-" + architecture }

// buildBinaries builds the manager. The binaries keep their build info, which says what they are made of.
func (r *release) buildBinaries() error {
	for _, architecture := range architectures {
		command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -buildid= -X main.version="+r.version,
			"-o", filepath.Join(r.out, binaryName(architecture)), "./cmd/manager")
		command.Dir = r.root
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOFLAGS=-buildvcs=false", "GOWORK=off")
		if output, err := command.CombinedOutput(); err != nil {
			return errors.Wrapf(err, "building the manager for %s: %s", architecture, output)
		}
	}
	return nil
}
