package command

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
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

// addOutput adds the flag -o with the formats that the command has besides text.
func addOutput(command *cobra.Command, target *output, formats ...output) {
	var names []string
	for _, format := range formats {
		names = append(names, string(format))
	}
	command.Flags().VarP(&outputFlag{target, names}, "output", "o", "Output format: "+strings.Join(names, ", ")+".")
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// outputFlag is the flag -o of one command.
type outputFlag struct {
	target  *output
	formats []string
}

// String implements pflag.Value.
func (f *outputFlag) String() string {
	if f.target == nil {
		return ""
	}
	return string(*f.target)
}

// Set implements pflag.Value.
func (f *outputFlag) Set(value string) error {
	if !slices.Contains(f.formats, value) {
		return errors.Errorf("unknown output format %q; use one of %s", value, strings.Join(f.formats, ", "))
	}
	*f.target = output(value)
	return nil
}

// Type implements pflag.Value.
func (*outputFlag) Type() string { return "string" }

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

// writeNames writes a line for each name.
func (o *options) writeNames(names []string) {
	for _, name := range names {
		fmt.Fprintln(o.Out, terminal.Clean(name, maxMessage))
	}
}

func escapeJSON(r rune) string {
	if r > 0xFFFF {
		r -= 0x10000
		return fmt.Sprintf(`\u%04x\u%04x`, 0xD800+(r>>10), 0xDC00+(r&0x3FF))
	}
	return fmt.Sprintf(`\u%04x`, r)
}
