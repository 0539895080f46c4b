// Build builds the test binary of a package for a deterministic simulation:
//
//	go run ./test/simulation/build -o simulation.test ./cmd/manager
//
// It links the binary with a Go runtime that lets package choice choose where Go's own one chooses at random, and that does not interrupt
// a goroutine that computes or makes a system call. This needs GOMAXPROCS=1, and concerns only goroutines of a bubble of
// testing/synctest.
//
// The runtime is the one of the installed Go with the replacements of this program. Only package runtime is compiled again. Its symbols
// keep their numbers, which the linker checks, so that it is linked with the other packages as the build cache has them. With a Go whose
// runtime has another text, the build fails.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pkg/errors"
)

// replacement replaces a text that a file of the runtime has once. The compiler sorts functions by how many statements they have, and
// numbers them: a replacement adds no function with a body, and no statement to the outermost block of one. Nor does it add a line before
// an exported declaration.
type replacement struct {
	file, present, replaced string
}

var replacements = []replacement{
	// The keys of the hash functions, and so the orders of maps.
	{"rand.go", "	globalRand.state.Init(*seed)\n", "	globalRand.state.Init([32]byte{})\n"},
	{"rand.go", "	for {\n		// Note: c.Next is marked", "	for {\n		if b := getg().bubble; b != nil { return simulatedNumber(b.now) }\n		// Note: c.Next is marked"},
	{
		"rand.go", "func maps_rand() uint64 {\n	return rand()\n",
		"func maps_rand() uint64 {\n	if b := getg().bubble; b == nil { return rand() } else { return simulatedOrder(b.now) }\n",
	},
	{
		"select.go", "		j := cheaprandn(uint32(norder + 1))\n",
		"		var j uint32; if gp.bubble == nil { j = cheaprandn(uint32(norder + 1)) } else { j = simulatedOneOf(uint32(norder + 1)) }\n",
	},
	{"time.go", "			t.rand = cheaprand()\n", "			t.rand = simulatedTimer()\n"},
	// A mutex that was awaited for some time is handed over to the one that waits: for some time of the bubble.
	{
		"sema.go", "func internal_sync_nanotime() int64 {\n	return nanotime()\n",
		"func internal_sync_nanotime() int64 {\n	if b := getg().bubble; b == nil { return nanotime() } else { return b.now }\n",
	},
	// Most stacks would grow to this size, and be copied twice.
	{"proc.go", "		newg = malg(stackMin)\n", "		newg = malg(4 * stackMin)\n"},
	{"stack.go", "var startingStackSize uint32 = fixedStack\n", "var startingStackSize uint32 = 4 * fixedStack\n"},
	// Neither a long computation nor a system call makes another goroutine run.
	{"proc.go", "	for i := 0; i < len(allp); i++ {\n		// Quickly filter", "	for i := 0; i < len(allp) && gomaxprocs > 1; i++ {\n		// Quickly filter"},
}

// declarations are appended to rand.go.
const declarations = `
//go:linkname simulatedNumber capnm/simulation.number
func simulatedNumber(now int64) uint64

//go:linkname simulatedOrder capnm/simulation.order
func simulatedOrder(now int64) uint64

//go:linkname simulatedOneOf capnm/simulation.oneOf
func simulatedOneOf(n uint32) uint32

//go:linkname simulatedTimer capnm/simulation.timer
func simulatedTimer() uint32
`

func main() {
	if runtimeArchive := os.Getenv(archiveVariable); runtimeArchive != "" {
		check(runTool(runtimeArchive, os.Args[1], os.Args[2:]))
		return
	}
	output := flag.String("o", "", "the test binary")
	flag.Parse()
	check(build(*output, flag.Args()))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "building the simulation:", err)
		os.Exit(1)
	}
}

// archiveVariable tells the program, which go calls instead of each tool, where the compiled runtime is.
const archiveVariable = "CAPNM_SIMULATION_RUNTIME"

func build(output string, arguments []string) error {
	archive, err := compileRuntime()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return errors.WithStack(err)
	}
	if err := os.RemoveAll(output); err != nil { // go would not link it again
		return errors.WithStack(err)
	}
	command := exec.Command("go", append([]string{"test", "-c", "-vet=off", "-toolexec", self, "-o", output}, arguments...)...)
	command.Env = append(os.Environ(), archiveVariable+"="+archive)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return errors.Wrap(command.Run(), "go test -c")
}

// compileRuntime compiles the runtime with the replacements, and returns the file.
func compileRuntime() (archive string, err error) {
	source, err := goOutput("list", "-f", "{{.Dir}}", "runtime")
	if err != nil {
		return "", err
	}
	files, err := patched(source)
	if err != nil {
		return "", err
	}
	return compilePatched(source, files)
}

// patched returns the files of the runtime that have replacements, with these.
func patched(source string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, r := range replacements {
		if files[r.file] == nil {
			var err error
			if files[r.file], err = os.ReadFile(filepath.Join(source, r.file)); err != nil {
				return nil, errors.WithStack(err)
			}
		}
		if n := bytes.Count(files[r.file], []byte(r.present)); n != 1 {
			return nil, errors.Errorf("%s/%s has the text %q %d times, instead of once: adapt test/simulation/build to this version of Go", source, r.file, r.present, n)
		}
		files[r.file] = bytes.Replace(files[r.file], []byte(r.present), []byte(r.replaced), 1)
	}
	files["rand.go"] = append(files["rand.go"], declarations...)
	return files, nil
}

// compilePatched compiles the runtime with other contents of some files. Their directory has always the same name, so that the build
// cache has the result.
func compilePatched(source string, files map[string][]byte) (archive string, err error) {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_, _ = hash.Write(files[name]) // Write of a hash never fails.
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("capnm-simulation-runtime-%x", hash.Sum(nil)[:8]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", errors.WithStack(err)
	}
	// The names of the files are those of Go: the positions of exported declarations have them.
	var names []string
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return "", errors.WithStack(err)
		}
		overlay.Replace[filepath.Join(source, name)] = file
		names = append(names, file+"=>$GOROOT/src/runtime/"+name)
	}
	slices.Sort(names)
	content, err := json.Marshal(overlay)
	if err != nil {
		return "", errors.WithStack(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return "", errors.WithStack(err)
	}
	return goOutput("list", "-export", "-overlay", file, "-gcflags", "runtime=-trimpath="+strings.Join(names, ";"), "-f", "{{.Export}}", "runtime")
}

func goOutput(arguments ...string) (string, error) {
	command := exec.Command("go", arguments...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	return strings.TrimSpace(string(output)), errors.Wrapf(err, "go %s", strings.Join(arguments, " "))
}

// runTool runs a tool for go. It lets the linker use the compiled runtime.
func runTool(archive, tool string, arguments []string) error {
	if strings.TrimSuffix(filepath.Base(tool), ".exe") == "link" {
		for i, argument := range arguments {
			if argument == "-importcfg" && i+1 < len(arguments) {
				if err := replaceRuntime(arguments[i+1], archive); err != nil {
					return err
				}
			}
		}
	}
	command := exec.Command(tool, arguments...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return errors.Wrap(command.Run(), tool)
}

// replaceRuntime changes which file has the runtime.
func replaceRuntime(file, archive string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return errors.WithStack(err)
	}
	lines, replaced := strings.Split(string(content), "\n"), 0
	for i, line := range lines {
		if strings.HasPrefix(line, "packagefile runtime=") {
			lines[i], replaced = "packagefile runtime="+archive, replaced+1
		}
	}
	if replaced != 1 {
		return errors.Errorf("the configuration of the linker has %d runtime packages, not one", replaced)
	}
	return errors.WithStack(os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
}
