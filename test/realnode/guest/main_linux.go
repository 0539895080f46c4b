// Command guest is what a real node of test/realnode consists of beside kubelet, containerd and runc. One static program
// plays all of it, told apart by its first argument:
//
//	boot   makes the namespaces of the node, and ends the node when it is killed (on the host)
//	init   is process 1 of the node: mounts, services, logind, power
//	pause  holds the sandboxes of Pods
//	app    is the workload: it writes down when it starts, when it is asked to end, and when it does
//
// Called as runc, it hands on to the real one.
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
		return errors.New("what shall I be?")
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
		return errors.Errorf("I can't be %q", os.Args[1])
	}
}
