package command

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersion(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this plugin",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintf(o.Out, "kubectl-node_maintenance %s (%s, %s/%s)\n", o.version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}
