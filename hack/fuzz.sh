#!/usr/bin/env bash
# Runs every fuzz target of this module for a limited time: hack/fuzz.sh [-fuzztime of each target; default 1000x]
# Inputs that fail are kept as regression tests in testdata/fuzz beside the target.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-1000x}

# Two at the same time: a target is compiled and linked for longer than it runs.
grep --recursive --include='*_test.go' --only-matching --extended-regexp '^func Fuzz[A-Za-z0-9_]*' . | sort |
	sed -E 's|^(.*)/[^/]*:func (.*)$|\1 \2|' |
	xargs -P 2 -L 1 bash -c 'go test -run "^$" -fuzz "^$2\$" -fuzztime "$0" "$1" </dev/null' "$time"
