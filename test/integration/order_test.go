package integration

import (
	"cmp"
	"flag"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// turns are the tests that run in parallel, as many at once as -parallel says. Go begins them in any order, so that the longest one may
// begin last and remain alone at the end: here, those that take longest begin first.
var turns struct {
	sync.Mutex
	free    int
	waiting []*turn
}

type turn struct {
	takes time.Duration
	begin chan struct{}
}

// parallel is t.Parallel for a test that takes about this time.
func parallel(t *testing.T, takes time.Duration) {
	t.Helper()
	mine := &turn{takes: takes, begin: make(chan struct{})}
	turns.Lock()
	turns.waiting = append(turns.waiting, mine)
	turns.Unlock()
	t.Parallel() // returns after all tests have come to this line
	began := time.Now()
	next(0)
	<-mine.begin
	t.Logf("waited %s for other tests", time.Since(began).Round(time.Second))
	t.Cleanup(func() { next(1) })
}

// next adds a number of free places, and begins tests.
func next(freed int) {
	turns.Lock()
	defer turns.Unlock()
	turns.free += freed
	slices.SortStableFunc(turns.waiting, func(a, b *turn) int { return cmp.Compare(b.takes, a.takes) })
	for turns.free > 0 && len(turns.waiting) > 0 {
		close(turns.waiting[0].begin)
		turns.waiting, turns.free = turns.waiting[1:], turns.free-1
	}
}

// takePlaces takes the places of -parallel, so that Go does not limit the tests.
func takePlaces() error {
	flag.Parse()
	places := flag.Lookup("test.parallel").Value
	var err error
	if turns.free, err = strconv.Atoi(places.String()); err != nil {
		return err
	}
	return places.Set("1000")
}
