package command

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// versionInfo is the result of the command version.
type versionInfo struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

func newVersion(o *options) *cobra.Command {
	var format output
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this plugin",
		Example: `  kubectl node-maintenance version
  kubectl node-maintenance version -o json`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			info := versionInfo{o.version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if format != outputText {
				return o.write(format, info)
			}
			fmt.Fprintf(o.Out, "kubectl-node_maintenance %s (%s, %s)\n", info.Version, info.GoVersion, info.Platform)
			return nil
		},
	}
	addOutput(command, &format, outputJSON, outputYAML)
	return command
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}
