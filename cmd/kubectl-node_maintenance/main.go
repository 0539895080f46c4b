// Command kubectl-node_maintenance is a kubectl plugin: kubectl node-maintenance shows drains before, while and after they happen, and
// drains Nodes. Under the name kubectl_complete-node_maintenance it completes the arguments of the plugin for kubectl.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/command"
)

// version is set by the build.
var version = "dev"

func main() {
	args := os.Args[1:]
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == command.Completer {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(command.Run(version, args, os.Stdin, os.Stdout, os.Stderr))
}
