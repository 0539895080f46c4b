//go:build !race

package fleet

var managerBuildFlags []string
