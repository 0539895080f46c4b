package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"
)

// smokeSize takes a few minutes in continuous integration.
var smokeSize = crowdSize{clusters: 12, hosts: 1, drained: 3, pods: 6, rest: 20 * time.Second}

// smokeScenario measures only counts and sizes, which do not depend on the load of the machine.
var smokeScenario = scenario{
	name: "smoke", about: "counts and sizes compared with the recorded values",
	measure: func(ctx context.Context, s scenario, o options) ([]outcome, error) {
		size, err := smokeSize.scaled(o)
		if err != nil {
			return nil, err
		}
		limits, err := recordedLimits()
		if err != nil {
			return nil, err
		}
		f := &figures{name: s.name, about: s.about + "; " + size.String()}
		progress("%s: %s", f.name, f.about)
		err = onCrowd(ctx, size, o, func(c *crowd) error {
			for _, phase := range []phase{measureMemory, measureRest, measureDrains, measurePlain} {
				if err := phase(ctx, c, f); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			f.holdTo(limits)
		}
		return []outcome{f}, err
	},
}

// smokeLimits has the maximum of each figure. A change that reduces a figure, or has a good reason to increase it, updates the file.
//
//go:embed smoke.json
var smokeLimits []byte

func recordedLimits() (map[string]float64, error) {
	limits := map[string]float64{}
	return limits, errors.Wrap(json.Unmarshal(smokeLimits, &limits), "reading the recorded values")
}

// holdTo compares figures with their maximum. A figure that was not measured is a failure.
func (f *figures) holdTo(limits map[string]float64) {
	for _, key := range slices.Sorted(maps.Keys(limits)) {
		value, measured := f.number(key)
		f.promise(measured, "%s was not measured", key)
		f.promise(value <= limits[key], "%s is %g, more than the recorded %g", key, value, limits[key])
	}
}
