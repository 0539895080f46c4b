package evacuation_test

import (
	"math"
	"testing"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestBackoff(t *testing.T) {
	for _, test := range []struct {
		name   string
		failed int32
		want   time.Duration
	}{
		{"E14: is 0 when no eviction was refused", 0, 0},
		{"E14: is 0 for a negative number", -1, 0},
		{"E14: starts with 1 s", 1, time.Second},
		{"E14: doubles", 2, 2 * time.Second},
		{"E14: keeps doubling", 10, 512 * time.Second},
		{"E14: is 15 minutes at most", 11, 15 * time.Minute},
		{"E14: does not overflow", math.MaxInt32, 15 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := evacuation.Backoff(test.failed); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestWithJitter(t *testing.T) {
	for _, test := range []struct {
		name     string
		d        time.Duration
		fraction float64
		want     time.Duration
	}{
		{"no jitter for fraction 0", 10 * time.Second, 0, 10 * time.Second},
		{"half of the jitter", 10 * time.Second, 0.5, 9 * time.Second},
		{"all of the jitter", 10 * time.Second, 1, 8 * time.Second},
		{"a fraction above 1 counts as 1", 10 * time.Second, 7, 8 * time.Second},
		{"no jitter for a negative fraction", 10 * time.Second, -1, 10 * time.Second},
		{"no jitter for NaN", 10 * time.Second, math.NaN(), 10 * time.Second},
		{"a duration of 0 stays 0", 0, 0.5, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := evacuation.WithJitter(test.d, test.fraction); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
