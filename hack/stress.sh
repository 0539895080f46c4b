#!/usr/bin/env bash
# Finds flaky tests: hack/stress.sh <runs of the integration suite> <repetitions of each scene> [regular expression of tests with scenes]
# Everything runs with the race detector if a C compiler is available. RACE=0 disables it, which halves the time.
# TEST_PARALLEL tests run in parallel, and STRESS_FLEETS processes share the repetitions, since a fleet runs one scene after the other and
# mostly waits. The first failure stops the script; the log has the details.
# STRESS_SINCE=<commit> repeats only what has changed since then: the tests of changed packages without control planes, <repetitions> times, and
# the integration tests in changed files, or in files that use a function of a changed one, <runs> times.
set -euo pipefail
cd "$(dirname "$0")/../test/integration"
suites=${1:-5} plays=${2:-50}
tests=''
# The tests of NodeMaintenances that consist of scenes, which are repeated in the same fleet.
scenes=${3:-'^(TestStages|TestDaemonSets|TestManyNodes|TestAdmission|TestOldestVersion|TestNodeMaintenanceValidation)$'}
# A test that is one scene.
whole='^TestBundleWithoutAdmissionPolicies$'

work=$(mktemp -d)
trap 'jobs -p | xargs -r kill' EXIT # the other processes, if one has failed
race=$([[ ${RACE:-$(go env CGO_ENABLED)} == 1 ]] && echo -race || true)
if [[ -n ${STRESS_SINCE:-} ]]; then
	mapfile -t packages < <(git diff --name-only --diff-filter=d "$STRESS_SINCE" -- ../../{api,cmd,config,controllers,drain,exp} |
		sed -nE 's|/[^/]*\.go$||p' | sort -u | while read -r each; do ls ../../"$each"/*_test.go &>/dev/null && echo "../../$each"; done)
	if ((${#packages[@]})); then
		(set -x; go test $race -count="$plays" "${packages[@]}")
	fi
	mapfile -t changed < <(git diff --name-only --relative --diff-filter=d "$STRESS_SINCE" -- '*.go')
	if ((!${#changed[@]})); then
		echo "No integration test has changed since $STRESS_SINCE."
		exit 0
	fi
	functions=$(sed -nE 's/^func (\([^)]*\) )?([A-Za-z0-9_]+).*/\2/p' "${changed[@]}" | paste -sd'|')
	tests=$(grep -lwE "$functions" -- *_test.go | xargs sed -nE 's/^func (Test[A-Za-z0-9_]*).*/\1/p' | paste -sd'|')
	tests="^($tests)\$" plays=0
	echo "Integration tests that use what has changed since $STRESS_SINCE: $tests"
fi
echo "Building the tests${race:+ with the race detector} … (logs are in $work)"
go test $race -c -o "$work/integration.test" .
go run -exec true $race ../../cmd/manager >/dev/null

# run <description> <log> <flags...>
run() {
	local what=$1 log=$work/$2 begin=$SECONDS
	shift 2
	if ! "$work/integration.test" -test.v -test.timeout 24h -test.parallel "${TEST_PARALLEL:-4}" "$@" >"$log" 2>&1; then
		grep -E '^\s*--- FAIL' "$log" || tail -20 "$log"
		echo "FAILED: $what, after $((SECONDS - begin)) s. The log is $log"
		exit 1
	fi
	echo "ok: $what: $(grep -cE '^\s*--- PASS' "$log") tests passed, $(grep -cE '^\s*--- SKIP' "$log" || true) skipped, in $((SECONDS - begin)) s"
}

for ((i = 1; i <= suites; i++)); do
	run "run $i of $suites of the integration suite" "suite-$i.log" -test.run "$tests"
done
if ((plays > 0)); then
	fleets=${STRESS_FLEETS:-3}
	share=$(((plays + fleets - 1) / fleets))
	players=()
	for ((i = 1; i <= fleets; i++)); do
		# A hundred Nodes are enough to find a flaky test.
		run "$share repetitions of each scene of $scenes, $i of $fleets" "scenes-$i.log" -test.run "$scenes" -repeat "$share" -nodes 100 &
		players+=($!)
	done
	run "$plays runs of $whole" whole.log -test.run "$whole" -test.count "$plays" &
	players+=($!)
	for player in "${players[@]}"; do wait "$player"; done
	echo "Scenes and their repetitions:"
	sed -nE 's/^ *--- PASS: ([^ ]*) .*/\1/; T; s/#[0-9]+(\/|$)/\1/g; p' "$work"/scenes-*.log "$work/whole.log" | tr _ ' ' | sort | uniq -c
fi
rm -rf "$work"
