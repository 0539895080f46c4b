package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pkg/errors"
)

// architectures are the released architectures, all for Linux.
var architectures = []string{"amd64", "arm64"}

// program is a released program. Each has its own image.
type program struct {
	// name is the name of the program, of its directory in cmd/, and of the file in its image.
	name string
	// suffix is appended to the image's name.
	suffix string
	// user is the user of the image. It is numeric, since runAsNonRoot requires that.
	user string
}

var programs = []program{
	{name: "manager", user: "65532:65532"},                   // "nonroot" of distroless images
	{name: "node-agent", suffix: "-node-agent", user: "0:0"}, // the DaemonSet restricts it
}

func (p program) binary(architecture string) string { return p.name + "-linux-" + architecture }

func eachBinary(do func(p program, architecture string) error) error {
	for _, p := range programs {
		for _, architecture := range architectures {
			if err := do(p, architecture); err != nil {
				return err
			}
		}
	}
	return nil
}

// buildBinaries builds the programs. They keep their build info, from which the bill of materials is made.
func (r *release) buildBinaries() error {
	return eachBinary(func(p program, architecture string) error {
		command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -buildid= -X main.version="+r.version,
			"-o", filepath.Join(r.out, p.binary(architecture)), "./cmd/"+p.name)
		command.Dir = r.root
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOFLAGS=-buildvcs=false", "GOWORK=off")
		output, err := command.CombinedOutput()
		return errors.Wrapf(err, "building %s for %s: %s", p.name, architecture, output)
	})
}
