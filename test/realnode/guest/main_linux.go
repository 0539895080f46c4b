// Command guest is the part of a real node of test/realnode other than kubelet, containerd and runc. It is one static program with several
// commands:
//
//	boot   runs on the host: creates the namespaces of the node, which ends when this process is killed
//	init   is process 1 of the node: mounts, services, logind, power
//	pause  is the process of a Pod's sandbox
//	app    is the workload: it records in the journal when it starts, receives SIGTERM and exits
//
// When it is executed as runc, it executes the real runc.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pkg/errors"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "guest: %+v\n", err)
		os.Exit(1)
	}
}

func run() error {
	if filepath.Base(os.Args[0]) == "runc" {
		return execRunc(os.Args[1:])
	}
	if len(os.Args) < 2 {
		return errors.New("no command")
	}
	switch os.Args[1] {
	case "boot":
		return boot(os.Args[2])
	case "init":
		return runNode(os.Args[2])
	case "pause":
		return pause()
	case "app":
		return runApp(os.Args[2:])
	default:
		return errors.Errorf("unknown command %q", os.Args[1])
	}
}
