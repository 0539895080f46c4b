package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// save writes an outcome and a description of the machine to a file with the scenario's name.
func save(dir string, out outcome) error {
	content := out.flat()
	versions, err := versions()
	if err != nil {
		return err
	}
	content["scenario"], content["time"], content["versions"] = out.title(), time.Now().UTC().Truncate(time.Second), versions
	content["machine"] = map[string]any{"cores": runtime.NumCPU(), "os": runtime.GOOS, "arch": runtime.GOARCH, "load_average_at_start": loadAtStart}
	content["failures"] = append([]string{}, out.failures()...)
	encoded, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return errors.Wrap(err, "encoding the results")
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return errors.Wrap(err, "creating the directory of the results")
	}
	file := filepath.Join(dir, out.title()+".json")
	if err := os.WriteFile(file, append(encoded, '\n'), 0o600); err != nil {
		return errors.Wrap(err, "writing the results")
	}
	progress("wrote the results to %s", file)
	return nil
}

func versions() (map[string]string, error) {
	all := map[string]string{}
	for name, program := range map[string]string{"kubernetes": "kube-apiserver", "cluster-api": "capi-core", "kwok": "kwok", "etcd": "etcd"} {
		version, err := toolchain.Version(program)
		if err != nil {
			return nil, errors.Wrapf(err, "looking up the version of %s", program)
		}
		all[name] = version
	}
	return all, nil
}

// loadAtStart is the load average of the machine before this program started.
var loadAtStart = loadAverage()

// loadAverage returns the load average of the last minute, where the system provides it.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	average, _, _ := strings.Cut(string(content), " ")
	return average
}
