// Package choice makes the choices of a Go runtime that test/simulation/build has changed: among the ready cases of a select, among
// timers of the same time, where the iteration over a map begins, and the numbers of math/rand. They follow from a seed, and concern only
// the goroutines of a bubble of testing/synctest. Go's own runtime does not call this package.
package choice

import _ "unsafe" // for go:linkname

// The sources are separate, so that a difference in one of them does not change the choices of the others.
var seed, numbers, cases, timers uint64

var last int64 // the time of the numbers

var asked bool

// Seed determines all later choices.
func Seed(s uint64) {
	seed = s
	seed = next(&seed)
	numbers, cases, timers = seed+1<<60, seed+2<<60, seed+3<<60
}

// Asked returns whether the runtime has called this package.
func Asked() bool { return asked }

// next is SplitMix64.
//
//go:nosplit
func next(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// number returns the next one of the numbers of a time. It does not matter how many were drawn at earlier times: each sync.Map draws one
// when it is first used, so that a change of any code would change all later numbers.
//
//go:linkname number capnm/simulation.number
//go:nosplit
func number(now int64) uint64 {
	asked = true
	if now != last {
		last, numbers = now, (seed+1<<60)^uint64(now)
	}
	return next(&numbers)
}

// order returns the key of the hashes of a map, or where an iteration begins. It does not depend on how many maps there were before.
//
//go:linkname order capnm/simulation.order
//go:nosplit
func order(now int64) uint64 {
	state := seed ^ uint64(now)
	return next(&state)
}

//go:linkname oneOf capnm/simulation.oneOf
//go:nosplit
func oneOf(n uint32) uint32 { return uint32(next(&cases) % uint64(n)) }

//go:linkname timer capnm/simulation.timer
//go:nosplit
func timer() uint32 { return uint32(next(&timers)) }
