package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pkg/errors"
)

// execRunc simplifies a container that is being created, and executes runc. It removes the seccomp profile: runc with seccomp needs a C
// library that is not available everywhere, and runc without seccomp refuses containers with a profile, which sandboxes always have. It
// also removes the OOM score and the limits of huge pages, which root of a container or a small VM may not set.
func execRunc(args []string) error {
	for i, arg := range args {
		if arg != "--bundle" || i+1 == len(args) {
			continue
		}
		if err := simplify(filepath.Join(args[i+1], "config.json")); err != nil {
			return err
		}
	}
	// The link by which this program was executed is in the directory of the node's programs, like the one to runc.
	runc, err := os.Readlink(filepath.Join(filepath.Dir(os.Args[0]), "real-runc"))
	if err != nil {
		return errors.Wrap(err, "finding runc")
	}
	return errors.Wrap(syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ()), "executing runc")
}

func simplify(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return errors.Wrap(err, "reading the container's configuration")
	}
	var spec map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	decoder.UseNumber()
	if err := decoder.Decode(&spec); err != nil {
		return errors.Wrap(err, "parsing the container's configuration")
	}
	if linux, ok := spec["linux"].(map[string]any); ok {
		delete(linux, "seccomp")
		if resources, ok := linux["resources"].(map[string]any); ok {
			delete(resources, "hugepageLimits")
		}
	}
	if process, ok := spec["process"].(map[string]any); ok {
		delete(process, "oomScoreAdj")
	}
	if content, err = json.Marshal(spec); err != nil {
		return errors.Wrap(err, "writing the container's configuration")
	}
	return errors.Wrap(os.WriteFile(file, content, 0o600), "writing the container's configuration")
}
