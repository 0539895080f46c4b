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

// smokeSize is what fits into a few minutes of continuous integration.
var smokeSize = crowdSize{clusters: 12, hosts: 1, drained: 3, pods: 6, rest: 20 * time.Second}

// smokeScenario looks at counts and sizes only, which don't depend on how busy the machine is.
var smokeScenario = scenario{
	name: "smoke", about: "counts and sizes against what is recorded",
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
			for _, phase := range []phase{measureMemory, measureRest, measureDrains} {
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

// smokeLimits has the most that each figure may be. When a change brings one down, or there is a good reason for more, the file
// is changed with it.
//
//go:embed smoke.json
var smokeLimits []byte

func recordedLimits() (map[string]float64, error) {
	limits := map[string]float64{}
	return limits, errors.Wrap(json.Unmarshal(smokeLimits, &limits), "reading what is recorded")
}

// holdTo compares figures with what they may be at most. One that isn't measured any more must not pass for one that is low.
func (f *figures) holdTo(limits map[string]float64) {
	for _, key := range slices.Sorted(maps.Keys(limits)) {
		value, measured := f.number(key)
		f.promise(measured, "%s was not measured", key)
		f.promise(value <= limits[key], "%s is %g, more than the recorded %g", key, value, limits[key])
	}
}
