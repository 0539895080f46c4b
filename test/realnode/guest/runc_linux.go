package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pkg/errors"
)

// execRunc removes the seccomp profile from a container that is being created, and executes runc. runc with seccomp needs a C library that
// is not available everywhere. runc without seccomp refuses containers with a profile, which sandboxes always have.
func execRunc(args []string) error {
	for i, arg := range args {
		if arg != "--bundle" || i+1 == len(args) {
			continue
		}
		if err := dropSeccomp(filepath.Join(args[i+1], "config.json")); err != nil {
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

func dropSeccomp(file string) error {
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
	}
	if content, err = json.Marshal(spec); err != nil {
		return errors.Wrap(err, "writing the container's configuration")
	}
	return errors.Wrap(os.WriteFile(file, content, 0o600), "writing the container's configuration")
}
