//go:build race

package fleet

// managerBuildFlags builds the manager with the race detector if the tests use it.
var managerBuildFlags = []string{"-race"}
