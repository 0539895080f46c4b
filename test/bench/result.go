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

// result is what a scenario has come to.
type result struct {
	Scenario string
	About    string
	Time     time.Time
	Options  options
	// Candidates in the order of the scenario, those included that didn't run.
	Candidates []candidate
	Samples    []sample
	Ratio      float64
	Failures   []string
	Versions   map[string]string
}

func newResult(s scenario, o options, samples []sample) (*result, error) {
	r := &result{
		Scenario: s.name, About: s.about, Time: time.Now().UTC().Truncate(time.Second), Options: o, Candidates: s.candidates,
		Samples: samples, Ratio: ratioOf(samples), Failures: s.judge(o, samples), Versions: map[string]string{},
	}
	for name, program := range map[string]string{"kubernetes": "kube-apiserver", "cluster-api": "capi-core", "kwok": "kwok", "etcd": "etcd"} {
		version, err := toolchain.Version(program)
		if err != nil {
			return nil, errors.Wrapf(err, "looking up the version of %s", program)
		}
		r.Versions[name] = version
	}
	return r, nil
}

// flat has a key for each number, so that other programs needn't know the structure. What wasn't measured has no key; absent
// names those candidates.
func (r *result) flat() map[string]any {
	content := map[string]any{
		"scenario": r.Scenario, "about": r.About, "time": r.Time, "runs": r.Options.runs, "samples": r.Samples, "failures": append([]string{}, r.Failures...),
		"machine":  map[string]any{"cores": runtime.NumCPU(), "os": runtime.GOOS, "arch": runtime.GOARCH},
		"versions": r.Versions,
	}
	if r.Ratio > 0 {
		content["ratio"] = round(r.Ratio)
	}
	absent := []string{}
	for _, c := range r.Candidates {
		seconds := values(r.Samples, c.name, func(s sample) float64 { return s.Seconds })
		if len(seconds) == 0 {
			absent = append(absent, c.name)
			continue
		}
		content[c.name+"_runs"] = len(seconds)
		content[c.name+"_seconds"] = round(median(seconds))
		content[c.name+"_evictions"] = median(values(r.Samples, c.name, func(s sample) float64 { return float64(s.Evictions) }))
		content[c.name+"_refused"] = median(values(r.Samples, c.name, func(s sample) float64 { return float64(s.Refused) }))
		content[c.name+"_writes_per_pod"] = round(median(values(r.Samples, c.name, func(s sample) float64 { return s.WritesPerPod })))
		content[c.name+"_breakdown"] = r.breakdownOf(c.name)
	}
	content["absent"] = absent
	return content
}

// breakdownOf has the median of each number.
func (r *result) breakdownOf(name string) breakdown {
	of := func(number func(breakdown) float64) float64 {
		return round(median(values(r.Samples, name, func(s sample) float64 { return number(s.Breakdown) })))
	}
	return breakdown{
		Start:       of(func(b breakdown) float64 { return b.Start }),
		Rounds:      int(of(func(b breakdown) float64 { return float64(b.Rounds) })),
		RoundMedian: of(func(b breakdown) float64 { return b.RoundMedian }),
		RoundMax:    of(func(b breakdown) float64 { return b.RoundMax }),
		Idle:        of(func(b breakdown) float64 { return b.Idle }),
		Calls:       of(func(b breakdown) float64 { return b.Calls }),
		End:         of(func(b breakdown) float64 { return b.End }),
		Own:         of(func(b breakdown) float64 { return b.Own }),
	}
}

// save writes the result to a file of the scenario's name.
func (r *result) save(dir string) error {
	content, err := json.MarshalIndent(r.flat(), "", "  ")
	if err != nil {
		return errors.Wrap(err, "encoding the results")
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return errors.Wrap(err, "creating the directory of the results")
	}
	file := filepath.Join(dir, r.Scenario+".json")
	if err := os.WriteFile(file, append(content, '\n'), 0o600); err != nil {
		return errors.Wrap(err, "writing the results")
	}
	progress("the results are in %s", file)
	return nil
}

// loadAverage is that of the last minute, as far as the system tells.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	average, _, _ := strings.Cut(string(content), " ")
	return average
}
