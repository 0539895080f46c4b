package main

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/pkg/errors"
)

// values returns a number of each sample of a candidate.
func values(samples []sample, name string, number func(sample) float64) []float64 {
	var all []float64
	for _, s := range samples {
		if s.Candidate == name {
			all = append(all, number(s))
		}
	}
	return all
}

// median returns 0 for no values.
func median(numbers []float64) float64 {
	if len(numbers) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(numbers))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// quantile returns the smallest of the numbers that at least the fraction part of them do not exceed, or 0 for no numbers.
func quantile(numbers []float64, part float64) float64 {
	if len(numbers) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(numbers))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// round rounds to three decimals.
func round(number float64) float64 { return math.Round(number*1000) / 1000 }

// pause waits, unless the context is done.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.Wrap(ctx.Err(), "resting")
	}
}
