#!/usr/bin/env bash
# Finds flaky tests: hack/stress.sh <runs of the integration suite> <repetitions of each scene> [regular expression of tests with scenes]
# Everything runs with the race detector if a C compiler is available. RACE=0 disables it, which halves the time.
# TEST_PARALLEL tests run in parallel, and STRESS_FLEETS processes share the repetitions, since a fleet runs one scene after the other and
# mostly waits. The first failure stops the script; the log has the details.
# STRESS_SINCE=<commit> repeats only what has changed since then, also files that are not committed: the tests of changed packages without control
# planes, <repetitions> times; and, <runs> times, the integration tests in changed files, in files that use a function of a changed one, and in files
# that import a changed package. If a package has changed, TestMainJob runs, too.
set -euo pipefail
cd "$(dirname "$0")/../test/integration"
suites=${1:-5} plays=${2:-50}
tests=''
# The tests of NodeMaintenances that consist of scenes, which are repeated in the same fleet.
scenes=${3:-'^(TestStages|TestDaemonSets|TestManyNodes|TestAdmission|TestOldestVersion)$'}
# A test that is one scene.
whole='^TestBundleWithoutAdmissionPolicies$'

work=$(mktemp -d)
trap 'jobs -p | xargs -r kill' EXIT # the other processes, if one has failed
race=$([[ ${RACE:-$(go env CGO_ENABLED)} == 1 ]] && echo -race || true)
if [[ -n ${STRESS_SINCE:-} ]]; then
	changed=$(cd ../.. && git diff --name-only --diff-filter=d "$STRESS_SINCE" && git ls-files --others --exclude-standard)
	mapfile -t packages < <(sed -nE 's#^((api|cmd|config|controllers|drain|exp|test/(clusterapi|controlplane|fleet|infrastructure))(/.*)?)/[^/]*$#\1#p' <<<"$changed" | sort -u)
	mapfile -t own < <(sed -nE 's#^test/integration/([^/]*\.go)$#\1#p' <<<"$changed")
	units=() files=()
	for package in "${packages[@]}"; do
		case $package in
		api* | test/*) ;; # every integration test uses them, for which TestMainJob stands
		*) mapfile -t -O ${#files[@]} files < <(grep -l "/$package\"" -- *_test.go) ;;
		esac
		[[ $package == test/* ]] || ! ls ../../"$package"/*_test.go &>/dev/null || units+=("../../$package")
	done
	if ((${#units[@]})); then
		(set -x; go test $race -count="$plays" "${units[@]}")
	fi
	if ((${#packages[@]})); then files+=(main_job_test.go); fi
	if ((${#own[@]})); then
		functions=$(sed -nE 's/^func (\([^)]*\) )?([A-Za-z0-9_]+).*/\2/p' "${own[@]}" | paste -sd'|')
		[[ -z $functions ]] || mapfile -t -O ${#files[@]} files < <(grep -lwE "$functions" -- *_test.go)
	fi
	if ((${#files[@]})); then tests=$(sed -nE 's/^func (Test[A-Za-z0-9_]*).*/\1/p' "${files[@]}" | sort -u | paste -sd'|'); fi
	if [[ -z $tests ]]; then
		echo "No integration test uses what has changed since $STRESS_SINCE."
		exit 0
	fi
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
