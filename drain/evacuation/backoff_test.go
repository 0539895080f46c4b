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
		{"E14: nothing failed, nothing to wait for", 0, 0},
		{"E14: nonsense is nothing", -1, 0},
		{"E14: starts with a second", 1, time.Second},
		{"E14: doubles", 2, 2 * time.Second},
		{"E14: doubles on", 10, 512 * time.Second},
		{"E14: to 15 minutes", 11, 15 * time.Minute},
		{"E14: and stays there", math.MaxInt32, 15 * time.Minute},
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
		{"none", 10 * time.Second, 0, 10 * time.Second},
		{"half", 10 * time.Second, 0.5, 9 * time.Second},
		{"all", 10 * time.Second, 1, 8 * time.Second},
		{"too much is all", 10 * time.Second, 7, 8 * time.Second},
		{"negative is none", 10 * time.Second, -1, 10 * time.Second},
		{"not a number is none", 10 * time.Second, math.NaN(), 10 * time.Second},
		{"of nothing", 0, 0.5, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := evacuation.WithJitter(test.d, test.fraction); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
