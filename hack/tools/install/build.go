//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// install builds the missing programs. All of them share a module.
func install(root string, programs []toolchain.Program) error {
	if len(missing(root, programs)) == 0 {
		return nil
	}
	cache, err := toolchain.CacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(cache, programs[0].Pin)
	if err != nil {
		return err
	}
	defer unlock()

	// Another process may have built them while this one waited for the lock.
	programs = missing(root, programs)
	if len(programs) == 0 {
		return nil
	}
	return build(root, cache, programs)
}

func missing(root string, programs []toolchain.Program) []toolchain.Program {
	var absent []toolchain.Program
	for _, program := range programs {
		file, err := program.Path(root)
		if err == nil {
			_, err = os.Stat(file)
		}
		if err != nil {
			absent = append(absent, program)
		}
	}
	return absent
}

// lock serializes the builds of one module between processes. The kernel drops the lock when
// its holder dies, so a killed build doesn't block the next one.
func lock(cache, pin string) (unlock func(), err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, errors.Wrap(err, "creating the directory for built tools")
	}
	file, err := os.OpenFile(filepath.Join(cache, "."+pin+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, errors.Wrapf(err, "opening the lock for %s", pin)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Wrapf(err, "waiting for another build of %s", pin)
	}
	return func() { _ = file.Close() }, nil
}

// build builds into a scratch directory and renames the results, so that an interrupted build leaves no incomplete program.
func build(root, cache string, programs []toolchain.Program) error {
	version, err := programs[0].Version(root)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(cache, ".build-"+programs[0].Pin+"-")
	if err != nil {
		return errors.Wrap(err, "creating a directory to build in")
	}
	defer func() { _ = os.RemoveAll(scratch) }()

	for _, program := range programs {
		if err := buildOne(root, filepath.Join(scratch, program.Name), version, program); err != nil {
			return err
		}
	}
	for _, program := range programs {
		if err := keep(root, scratch, program); err != nil {
			return err
		}
	}
	return nil
}

func buildOne(root, to, version string, program toolchain.Program) error {
	fmt.Fprintf(os.Stderr, "building %s %s … ", program.Name, version)
	cgo := "0"
	if program.NeedsCompiler() {
		cgo = "1"
	}
	start := time.Now()
	command := exec.Command("go", "build", "-tags", program.Tags(), "-ldflags", ldflags(program, version), "-o", to, program.Package)
	command.Dir = program.Dir(root)
	command.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		fmt.Fprintln(os.Stderr, "failed")
		return errors.Wrapf(err, "building %s %s in %s: %s", program.Name, version, command.Dir, output)
	}
	fmt.Fprintf(os.Stderr, "%.0fs\n", time.Since(start).Seconds())
	return nil
}

func keep(root, scratch string, program toolchain.Program) error {
	file, err := program.Path(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return errors.Wrapf(err, "creating the directory of %s", program.Name)
	}
	return errors.Wrapf(os.Rename(filepath.Join(scratch, program.Name), file), "moving %s into place", program.Name)
}

// ldflags strips symbols, which halves the size, and sets the versions of Kubernetes and Cluster
// API as their release builds do. Without them they report v0.0.0-master, which other programs
// refuse as too old.
func ldflags(program toolchain.Program, version string) string {
	flags := []string{"-s", "-w"}
	switch program.Module {
	case "k8s.io/kubernetes":
		numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
		flags = append(flags,
			"-X k8s.io/component-base/version.gitVersion="+version,
			"-X k8s.io/component-base/version.gitMajor="+numbers[0],
			"-X k8s.io/component-base/version.gitMinor="+numbers[1])
	case "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/test":
		flags = append(flags, "-X sigs.k8s.io/cluster-api/version.gitVersion="+version)
	}
	return strings.Join(flags, " ")
}
