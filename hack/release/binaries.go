package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pkg/errors"
)

// architectures that are released, all for Linux.
var architectures = []string{"amd64", "arm64"}

// program is one that is released, with an image of its own.
type program struct {
	// name of the program, its directory in cmd/, and the file in its image.
	name string
	// suffix of the image's name.
	suffix string
	// user of the image: a number, as Kubernetes wants to see it.
	user string
}

var programs = []program{
	{name: "manager", user: "65532:65532"},                   // the number that distroless images call nonroot
	{name: "node-agent", suffix: "-node-agent", user: "0:0"}, // the DaemonSet says what it may do
}

func (p program) binary(architecture string) string { return p.name + "-linux-" + architecture }

// eachBinary does something for each program and architecture.
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

// buildBinaries builds the programs. They keep their build info, which says what they are made of.
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
