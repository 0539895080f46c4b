package realnode

import (
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
)

// Variable is the environment variable that enables tests on real nodes. `make test-node` sets it.
const Variable = "CAPNM_TEST_NODE"

// Skip skips the test where no real node can run, and names the reason.
func Skip(t testing.TB) {
	t.Helper()
	if reason := missing(); reason != "" {
		t.Skip("SKIPPED, no real node: " + reason)
	}
}

// missing returns why no real node can run. Concurrent tests share one probe, which creates cgroups by name.
var missing = sync.OnceValue(func() string {
	if os.Getenv(Variable) == "" {
		return "`make test-node` runs this"
	}
	if os.Getuid() != 0 {
		return "root is required"
	}
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		return "dbus-daemon is not installed"
	}
	if err := probeCgroup(); err != nil {
		return "cannot create cgroups: " + err.Error()
	}
	return ""
})

func probeCgroup() error {
	made, err := makeCgroups("capnm-probe-" + strconv.Itoa(os.Getpid()))
	if removeErr := made.remove(); err == nil {
		err = removeErr
	}
	return err
}
