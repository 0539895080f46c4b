#!/usr/bin/env bash
# Runs every fuzz target of this module for a limited time: hack/fuzz.sh [-fuzztime of each target; default 1000x]
# Inputs that fail are kept as regression tests in testdata/fuzz beside the target.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-1000x}

grep --recursive --include='*_test.go' --only-matching --extended-regexp '^func Fuzz[A-Za-z0-9_]*' . | sort |
while IFS=: read -r file function; do
	go test -run '^$' -fuzz "^${function#func }\$" -fuzztime "$time" "$(dirname "$file")" </dev/null
done
