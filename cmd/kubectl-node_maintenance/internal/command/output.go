package command

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

// output is the flag -o.
type output string

const (
	outputText output = ""
	outputWide output = "wide"
	outputJSON output = "json"
	outputYAML output = "yaml"
	outputName output = "name"
)

// addOutput adds the flag -o with the formats that the command has.
func addOutput(flags *pflag.FlagSet, target *output, help string) {
	flags.StringVarP((*string)(target), "output", "o", "", help)
}

// check returns an error if the format is not one of those that the command has.
func (f output) check(formats ...output) error {
	if slices.Contains(formats, f) {
		return nil
	}
	return usagef("unknown output format %q", string(f))
}

// write writes an object as JSON or YAML. Characters that would control a terminal are escaped.
func (o *options) write(format output, object any) error {
	content, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return errors.Wrap(err, "writing JSON")
	}
	if format == outputJSON {
		_, err = fmt.Fprintln(o.Out, terminal.Escape(string(content), escapeJSON))
		return errors.Wrap(err, "writing JSON")
	}
	if content, err = yaml.JSONToYAML(content); err != nil {
		return errors.Wrap(err, "writing YAML")
	}
	_, err = fmt.Fprint(o.Out, terminal.Escape(string(content), func(rune) string { return "\uFFFD" }))
	return errors.Wrap(err, "writing YAML")
}

func escapeJSON(r rune) string {
	if r > 0xFFFF {
		r -= 0x10000
		return fmt.Sprintf(`\u%04x\u%04x`, 0xD800+(r>>10), 0xDC00+(r&0x3FF))
	}
	return fmt.Sprintf(`\u%04x`, r)
}
