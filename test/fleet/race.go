//go:build race

package fleet

// managerBuildFlags has the manager look for data races where the tests do.
var managerBuildFlags = []string{"-race"}
