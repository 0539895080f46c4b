package fleet

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
)

// clockOffsetVariable is the environment variable that a manager with a wrong clock reads.
const clockOffsetVariable = "CAPNM_TEST_CLOCK_OFFSET"

// BuildManagerWithWrongClock builds the manager that RunManagerWithClock starts. It takes minutes, since the package time is part of
// everything; the Go build cache keeps the result.
func BuildManagerWithWrongClock() error {
	_, err := wrongClockManagerBinary()
	return err
}

// RunManagerWithClock is like RunManager, but the clock of the process is ahead by an offset, or behind if it is negative. Timers and
// monotonic times are right.
func (f *Fleet) RunManagerWithClock(ctx context.Context, offset time.Duration, name, user string, args ...string) (*Manager, error) {
	path, err := wrongClockManagerBinary()
	if err != nil {
		return nil, err
	}
	return f.runManager(ctx, path, []string{clockOffsetVariable + "=" + offset.String()}, name, user, args...)
}

var wrongClockManagerBinary = sync.OnceValues(func() (path string, err error) {
	overlay, err := wrongClockOverlay()
	if err != nil {
		return "", err
	}
	return buildManager("-overlay=" + overlay)
})

// wrongClockOverlay writes an overlay for the Go build that replaces time.Now. Its path and contents are always the same, for the build
// cache.
func wrongClockOverlay() (string, error) {
	const original = "sec, nsec, mono := runtimeNow()\n\tif mono"
	const replacement = "sec, nsec, mono := runtimeNow()\n\tsec += int64(clockOffset / Second)\n\tif mono"
	const declaration = "package time\n\nimport \"syscall\"\n\nvar clockOffset = func() Duration {\n" +
		"\tvalue, _ := syscall.Getenv(\"" + clockOffsetVariable + "\")\n\toffset, _ := ParseDuration(value)\n\treturn offset\n}()\n"
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", errors.Wrap(err, "finding GOROOT")
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	code, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		return "", errors.Wrap(err, "reading the package time")
	}
	if strings.Count(string(code), original) != 1 {
		return "", errors.Errorf("time.Now of %s is not as expected: it has no %q", runtime.Version(), original)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", errors.Wrap(err, "finding the cache directory")
	}
	dir := filepath.Join(cache, "capnm", "wrong-clock")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", errors.Wrap(err, "creating the directory of the overlay")
	}
	replaced := map[string]string{}
	for name, content := range map[string]string{"time.go": strings.Replace(string(code), original, replacement, 1), "clockoffset.go": declaration} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return "", errors.Wrap(err, "writing a file of the overlay")
		}
		replaced[filepath.Join(source, name)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", errors.Wrap(err, "encoding the overlay")
	}
	file := filepath.Join(dir, "overlay.json")
	return file, errors.Wrap(os.WriteFile(file, overlay, 0o600), "writing the overlay")
}
