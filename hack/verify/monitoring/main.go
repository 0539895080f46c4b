// Command monitoring tests the alerts of config/monitoring with promtool, whose path is its argument. promtool reads rule files, so
// the rules are extracted from the object of the Prometheus operator first.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pkg/errors"
	"sigs.k8s.io/yaml"
)

const (
	dir   = "config/monitoring"
	rules = "rules.yaml"
	tests = "rules_test.yaml"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: monitoring <path of promtool>")
		os.Exit(2)
	}
	if err := verify(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func verify(promtool string) error {
	scratch, err := os.MkdirTemp("", "capnm-rules-")
	if err != nil {
		return errors.Wrap(err, "creating a directory")
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if err := extract(scratch); err != nil {
		return err
	}
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", rules}, {"test", "rules", tests}} {
		command := exec.Command(promtool, args...)
		command.Dir, command.Stdout, command.Stderr = scratch, os.Stdout, os.Stderr
		if err := command.Run(); err != nil {
			return errors.Wrapf(err, "promtool %s %s", args[0], args[1])
		}
	}
	return nil
}

// extract writes rules and tests in the format of promtool.
func extract(to string) error {
	content, err := os.ReadFile(filepath.Join(dir, rules))
	if err != nil {
		return errors.Wrap(err, "reading the alerts")
	}
	var object struct {
		Spec map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &object); err != nil {
		return errors.Wrap(err, "parsing the alerts")
	}
	if content, err = yaml.Marshal(object.Spec); err != nil {
		return errors.Wrap(err, "writing the alerts")
	}
	if err := os.WriteFile(filepath.Join(to, rules), content, 0o600); err != nil {
		return errors.Wrap(err, "writing the alerts")
	}
	if content, err = os.ReadFile(filepath.Join(dir, tests)); err != nil {
		return errors.Wrap(err, "reading the tests of the alerts")
	}
	return errors.Wrap(os.WriteFile(filepath.Join(to, tests), content, 0o600), "writing the tests of the alerts")
}
