package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pkg/errors"
)

// execRunc takes the seccomp profile out of a container that is created, and becomes runc. A runc with seccomp needs a C
// library that isn't everywhere; without it, it refuses every container that has a profile, and sandboxes always have.
func execRunc(args []string) error {
	for i, arg := range args {
		if arg != "--bundle" || i+1 == len(args) {
			continue
		}
		if err := dropSeccomp(filepath.Join(args[i+1], "config.json")); err != nil {
			return err
		}
	}
	// The name of the link that this is called by is in the directory of the node's programs.
	runc, err := os.Readlink(filepath.Join(filepath.Dir(os.Args[0]), "real-runc"))
	if err != nil {
		return errors.Wrap(err, "finding runc")
	}
	return errors.Wrap(syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ()), "becoming runc")
}

func dropSeccomp(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return errors.Wrap(err, "reading the container")
	}
	var spec map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	decoder.UseNumber()
	if err := decoder.Decode(&spec); err != nil {
		return errors.Wrap(err, "parsing the container")
	}
	if linux, ok := spec["linux"].(map[string]any); ok {
		delete(linux, "seccomp")
	}
	if content, err = json.Marshal(spec); err != nil {
		return errors.Wrap(err, "writing the container")
	}
	return errors.Wrap(os.WriteFile(file, content, 0o600), "writing the container")
}
