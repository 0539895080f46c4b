//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

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
		if program.Installed(root) != "" {
			continue
		}
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
	scratch, err := os.MkdirTemp(cache, ".build-"+programs[0].Pin+"-")
	if err != nil {
		return errors.Wrap(err, "creating a directory to build in")
	}
	defer func() { _ = os.RemoveAll(scratch) }()

	for number, together := range batches(programs) {
		dir := filepath.Join(scratch, strconv.Itoa(number))
		if err := buildTogether(root, dir, together); err != nil {
			return err
		}
		for _, program := range together {
			if err := keep(root, filepath.Join(dir, program.Executable()), program); err != nil {
				return err
			}
		}
	}
	return nil
}

// batches divides programs of a module into those that one command can build: with the same build settings, and with different names of
// executables.
func batches(programs []toolchain.Program) [][]toolchain.Program {
	var all [][]toolchain.Program
	for _, program := range programs {
		at := slices.IndexFunc(all, func(batch []toolchain.Program) bool {
			return !slices.ContainsFunc(batch, func(other toolchain.Program) bool {
				return other.Executable() == program.Executable() || other.Tags() != program.Tags() || other.NeedsCompiler() != program.NeedsCompiler()
			})
		})
		if at < 0 {
			all = append(all, []toolchain.Program{program})
		} else {
			all[at] = append(all[at], program)
		}
	}
	return all
}

// buildTogether builds programs with one command, so that packages that they share are compiled once, and one program is linked while
// another one is compiled.
func buildTogether(root, dir string, programs []toolchain.Program) error {
	flags, err := ldflags(root, programs)
	if err != nil {
		return err
	}
	first := programs[0]
	environment := append(os.Environ(), "CGO_ENABLED="+map[bool]string{false: "0", true: "1"}[first.NeedsCompiler()], "GOFLAGS=-buildvcs=false", "GOWORK=off")
	arguments := []string{"build", "-v", "-tags", first.Tags(), "-ldflags", flags, "-o", dir + string(filepath.Separator)}
	names, packages := []string{}, []string{}
	for _, program := range programs {
		names, packages = append(names, program.Name), append(packages, program.Package)
	}
	progress := newProgress(os.Stderr, strings.Join(names, ", "), first.Dir(root), environment, packages)
	command := exec.Command("go", append(arguments, packages...)...)
	command.Dir, command.Env, command.Stderr = first.Dir(root), environment, progress
	err = command.Run()
	progress.end(err == nil)
	return errors.Wrapf(err, "building %s in %s: %s", strings.Join(names, ", "), command.Dir, progress.messages())
}

func keep(root, built string, program toolchain.Program) error {
	file, err := program.Path(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return errors.Wrapf(err, "creating the directory of %s", program.Name)
	}
	return errors.Wrapf(os.Rename(built, file), "moving %s into place", program.Name)
}

// ldflags strips symbols, which halves the size, and sets the versions of Kubernetes and Cluster
// API as their release builds do. Without them they report v0.0.0-master, which other programs
// refuse as too old.
func ldflags(root string, programs []toolchain.Program) (string, error) {
	flags := []string{"-s", "-w"}
	for _, program := range programs {
		version, err := program.Version(root)
		if err != nil {
			return "", err
		}
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
	}
	slices.Sort(flags[2:])
	return strings.Join(slices.Compact(flags), " "), nil
}
