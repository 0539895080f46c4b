//go:build unix

// Command install builds the programs that hack/tools pins into a cache directory.
//
//	go run ./hack/tools/install                   # controlplane, test and dev
//	go run ./hack/tools/install controlplane      # a group: controlplane, dev, e2e, next, node, oldest or test
//	go run ./hack/tools/install kustomize kwok    # single programs
//	go run ./hack/tools/install path kustomize    # build if missing, print the path
//
// Existing programs are not rebuilt. The programs of a module are built by one command, which compiles the packages that they share once.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "install: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	printPath := len(args) > 0 && args[0] == "path"
	if printPath {
		args = args[1:]
		if len(args) != 1 {
			return errors.New("path takes the name of one program")
		}
	}
	programs, err := selection(args)
	if err != nil {
		return err
	}
	root, err := toolchain.Root()
	if err != nil {
		return err
	}
	for _, program := range programs {
		if file := program.Installed(root); file != "" {
			fmt.Fprintf(os.Stderr, "using %s for %s\n", file, program.Name)
		}
	}
	for _, sameModule := range byPin(programs) {
		if err := install(root, sameModule); err != nil {
			return err
		}
	}
	if printPath {
		path, _, err := toolchain.Path(programs[0].Name)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}

// selection resolves names of programs and groups. Without names it returns the groups
// controlplane, test and dev; the others take minutes to build, or need a C compiler.
func selection(names []string) ([]toolchain.Program, error) {
	if len(names) == 0 {
		names = []string{string(toolchain.ControlPlane), string(toolchain.Test), string(toolchain.Dev)}
	}
	var selected []toolchain.Program
	for _, name := range names {
		group := toolchain.Group(name)
		if slices.Contains(toolchain.Groups, group) {
			for _, program := range toolchain.Programs {
				if program.Group == group {
					selected = append(selected, program)
				}
			}
			continue
		}
		program, err := toolchain.Find(name)
		if err != nil {
			return nil, err
		}
		selected = append(selected, program)
	}
	return selected, nil
}

// byPin groups programs by module, in the order of their first appearance.
func byPin(programs []toolchain.Program) [][]toolchain.Program {
	var gathered [][]toolchain.Program
	for _, program := range programs {
		at := slices.IndexFunc(gathered, func(others []toolchain.Program) bool {
			return others[0].Pin == program.Pin
		})
		switch {
		case at < 0:
			gathered = append(gathered, []toolchain.Program{program})
		case !slices.Contains(gathered[at], program):
			gathered[at] = append(gathered[at], program)
		}
	}
	return gathered
}
