// Command kubectl-node_maintenance is a kubectl plugin: kubectl node-maintenance shows drains before, while and after they happen.
package main

import (
	"os"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/command"
)

// version is set by the build.
var version = "dev"

func main() {
	os.Exit(command.Run(version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
