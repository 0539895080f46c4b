package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pkg/errors"
)

// architectures are the architectures of images, all for Linux.
var architectures = []string{"amd64", "arm64"}

// program is a released program that has its own image.
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
		return r.build(p.name, platform{"linux", architecture}, filepath.Join(r.out, p.binary(architecture)))
	})
}

// build builds the program of a directory in cmd/.
func (r *release) build(name string, p platform, file string) error {
	command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -buildid= -X main.version="+r.version, "-o", file, "./cmd/"+name)
	command.Dir = r.root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.architecture, "GOFLAGS=-buildvcs=false", "GOWORK=off")
	output, err := command.CombinedOutput()
	return errors.Wrapf(err, "building %s for %s/%s: %s", name, p.os, p.architecture, output)
}
