#!/usr/bin/env bash
# Runs every fuzz target of this module for a short while: hack/fuzz.sh [of each, as of go test -fuzztime; default 1000x]
# What a target finds stays as a regression test in testdata/fuzz beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-1000x}

grep --recursive --include='*_test.go' --only-matching --extended-regexp '^func Fuzz[A-Za-z0-9_]*' . | sort |
while IFS=: read -r file function; do
	go test -run '^$' -fuzz "^${function#func }\$" -fuzztime "$time" "$(dirname "$file")" </dev/null
done
