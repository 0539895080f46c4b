# Requires Go and make. `make` lists the targets.

.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash -o pipefail

include hack/tools/tools.mk

##@ See it work

.PHONY: demo docs-picture sandbox bench bench-smoke
SCENARIO ?= drain

# Without cgo, as the control plane programs are built: so Go compiles the packages that they share once.
demo sandbox: export CGO_ENABLED := 0
# Programs of setup-envtest and in PATH are used if they are of the pinned minor release.
demo sandbox: export CAPNM_INSTALLED_PROGRAMS := 1

demo: tools-controlplane ## Delete a Machine on local control planes and show how its Node is drained.
	@echo "building the demo …"
	go run ./test/demo

docs-picture: demo ## Rebuild the picture of the guide: the report of the demo (needs chromium).
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,1000 --screenshot=$(CURDIR)/docs/guide/report.png out/demo/report.html

sandbox: tools-controlplane ## Start the clusters of the demo and a shell with kubectl and its plugin to try them.
	@echo "building the demo …"
	go run ./test/demo sandbox

bench: tools-controlplane ## Run the benchmark SCENARIO (default: drain) with BENCH_FLAGS; docs/benchmarks.md lists them.
ifeq ($(SCENARIO),kind)
	@$(MAKE) --no-print-directory test-e2e E2E_LABELS=figures
else
	go run ./test/bench -scenario $(SCENARIO) $(BENCH_FLAGS)
endif

bench-smoke: tools-controlplane ## Fail if calls, writes or memory exceed the recorded values (minutes).
	go run ./test/bench -scenario smoke

##@ Test

# A package of test/ starts several control planes with a few processes each. At most two packages run in parallel, and at most as many
# as there are CPUs, since control planes compete for the CPU.
CPUS          := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
TEST_PACKAGES ?= $(if $(filter 1,$(CPUS)),1,2)
TEST_TIMEOUT  ?= 60m
# Parallel tests of a package. Tests with control planes mostly wait: each takes a quarter of a CPU, and at most three gigabytes. Eight of
# them keep two CPUs busy, where the memory is enough.
TEST_PARALLEL ?= $(if $(wildcard /proc/meminfo),$(shell awk '$$1 == "MemTotal:" {n = int($$2 / 3000000); print (n < 4 ? 4 : (n > 8 ? 8 : n))}' /proc/meminfo),4)
# A number of inputs, not seconds: Go sometimes reports the end of the time as a failure (https://go.dev/issue/56238).
FUZZ_TIME     ?= 1000x

# How often test-stress runs the integration suite, and then each scene of the tests of NodeMaintenances. With STRESS_SINCE=<commit>, it repeats
# only the tests that a change since then touches.
STRESS_SUITES ?= 5
STRESS_SCENES ?= 50
export STRESS_SINCE
SCALE_NODES   ?= 5000

.PHONY: test test-race test-unit test-fuzz test-node test-differential test-oldest test-scale test-stress test-clusterctl test-chaos test-simulation test-peers test-e2e test-report
test: tools-test ## Run unit and property tests, integration tests on real control planes, and short fuzzing; not the tests of the targets below.
	@go run -exec true ./cmd/manager >/dev/null # builds it before tests need it
	@$(MAKE) --no-print-directory --jobs=2 test-packages test-inputs

.PHONY: test-packages test-inputs
# The longest package first, so that the others run beside it. Without go vet, which make verify runs.
test-packages:
	go test -vet=off -p $(TEST_PACKAGES) -parallel $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) ./test/integration ./...
	cd hack/release && go test ./...

# What tries many inputs only computes: with a low priority, it runs while tests on control planes wait.
test-inputs:
	@nice $(MAKE) --no-print-directory test-differential
	@nice $(MAKE) --no-print-directory test-fuzz

test-race: tools-test ## Run the tests of the main module with the race detector, also in the manager. Needs a C compiler, and twice the time.
	@go run -race -exec true ./cmd/manager
	go test -race -p $(TEST_PACKAGES) -timeout $(TEST_TIMEOUT) ./...

test-unit: ## Run the tests of drain/, which need no control plane.
	go test ./drain/...

# With -v, which prints why a test is skipped. Two tests at a time: they mostly wait, but they assert on the order in which real processes end,
# which depends on available CPU.
test-node: ## Run the tests on real nodes, with kubelets and containers (Linux, root).
	@if [ "$$(uname -s)" != Linux ] || [ "$$(id -u)" != 0 ]; then \
		echo "SKIPPED: make test-node needs root on Linux, for real kubelets and containers."; \
	elif ! command -v dbus-daemon >/dev/null || [ "$$(go env CGO_ENABLED)" != 1 ]; then \
		echo "SKIPPED: make test-node needs dbus-daemon and a C compiler."; \
	else \
		$(MAKE) --no-print-directory tools-controlplane tools-node && \
		CAPNM_TEST_NODE=1 go test -count=1 -v -parallel 2 -timeout $(TEST_TIMEOUT) ./test/realnode/...; \
	fi

test-oldest: tools-controlplane tools-oldest ## Run the tests of admission against the oldest supported API server.
	CAPNM_TEST_OLDEST=1 go test -count=1 -run '^TestOldestVersion$$' -v ./test/integration

test-scale: tools-controlplane ## Run the test of a NodeMaintenance with SCALE_NODES Nodes (default: 5000).
	go test -count=1 -timeout 60m -run '^TestManyNodes$$' -v ./test/integration -nodes $(SCALE_NODES)

test-stress: tools-test tools-oldest ## Find flaky tests: STRESS_SUITES (5) runs of the integration suite, STRESS_SCENES (50) of each scene.
	@CAPNM_TEST_OLDEST=1 TEST_PARALLEL=$(TEST_PARALLEL) hack/stress.sh $(STRESS_SUITES) $(STRESS_SCENES)

# The seed of the first run, and how many runs follow; each adds one to the seed.
SEED ?= 1
RUNS ?= 5

test-chaos: tools-test ## Drain under random faults, RUNS (5) times from SEED (1), and check what happened. CHAOS_FLAGS: see test/chaos.
	CAPNM_TEST_CHAOS=1 go test -count=1 -timeout 0 -run '^TestChaos$$' -v ./test/chaos -seed $(SEED) -runs $(RUNS) $(CHAOS_FLAGS)

test-simulation: ## Run the whole manager in a simulation, RUNS times from SEED (1): see docs/development.md.
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && go run ./test/simulation/build -o "$$dir/simulation.test" ./cmd/manager && cd cmd/manager && \
	CAPNM_TEST_SIMULATION=1 "$$dir/simulation.test" -test.timeout 0 -test.run '^TestSimulation$$' -simulation.seed $(SEED) -simulation.runs $(RUNS) $(SIMULATION_FLAGS)

PEER_RUNS ?= 1

test-peers: tools-test ## Compare drains beside other owners with Cluster API's own drain, PEER_RUNS (1) times. Takes half an hour.
	CAPNM_TEST_PEERS=$(PEER_RUNS) go test -count=1 -timeout 0 -run '^TestPeers$$' -v ./test/integration

test-clusterctl: tools-test ## Install, upgrade, move and remove the provider with the real clusterctl and the Cluster API operator.
	@go run ./hack/tools/install kustomize capi-operator
	CAPNM_TEST_CLUSTERCTL=1 go test -count=1 -timeout $(TEST_TIMEOUT) ./test/clusterctl

# A Ginkgo label filter: "short" in continuous integration. Everything is downloaded and built before run.sh, which has no network.
E2E_LABELS ?=
export E2E_NODE_IMAGE
# Specs without one of these labels upgrade the provider and Kubernetes.
export E2E_UPGRADES := $(if $(filter short operator figures agent,$(E2E_LABELS)),,1)

test-e2e: ## Run the end-to-end tests on kind and Cluster API's docker provider (Linux, root, Docker's engine).
	@missing=$$(for program in dockerd docker runc mmdebstrap iptables ip unshare jq; do command -v $$program >/dev/null || echo $$program; done); \
	if [ "$$(uname -s)" != Linux ] || [ "$$(id -u)" != 0 ]; then \
		echo "SKIPPED: make test-e2e needs root on Linux, for Docker's engine."; \
	elif [ -n "$$missing" ]; then \
		echo "SKIPPED: make test-e2e needs the programs" $$missing"; test/e2e/README.md lists the packages."; \
	else \
		$(MAKE) --no-print-directory tools-test tools-e2e release VERSION=v0.1.0 && \
		(cd hack/tools/cert-manager && go mod download github.com/cert-manager/cert-manager) && \
		$(if $(E2E_UPGRADES),$(MAKE) --no-print-directory tools-next release-previous && )\
		cd test/e2e && go test -c -o ../../out/e2e.test . && \
		./run.sh ../../out/e2e.test -test.timeout=2h -ginkgo.v -ginkgo.no-color -ginkgo.label-filter="$(E2E_LABELS)"; \
	fi

test-report: ## Test the report of the kubectl plugin in a browser (needs chromium).
	cd test/browser && go test -count=1 -v ./...

test-fuzz: ## Fuzz each target for FUZZ_TIME inputs or seconds (default: 1000x).
	@hack/fuzz.sh $(FUZZ_TIME)

# Without the race detector, which makes it several times slower: it has no goroutines.
CASES ?= 1000

test-differential: ## Compare our decisions with those of Cluster API's drain in CASES random cases (default: 1000).
	cd test/differential && go test -v -timeout $(TEST_TIMEOUT) ./... -rapid.checks=$(CASES) -rapid.nofailfile

##@ Build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: manager plugin generate
plugin: ## Build the kubectl plugin: bin/kubectl-node_maintenance, and bin/kubectl_complete-node_maintenance. Put them in your PATH.
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/kubectl-node_maintenance ./cmd/kubectl-node_maintenance
	ln -sf kubectl-node_maintenance bin/kubectl_complete-node_maintenance

manager: ## Build the manager: bin/manager.
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/manager ./cmd/manager

# Without VERSION, the version is that of the tag; see hack/release.
RELEASE_VERSION ?= $(if $(filter command line environment,$(origin VERSION)),$(VERSION))
IMAGE           ?= ghcr.io/capnm/cluster-api-node-maintenance

.PHONY: release release-manifests release-previous
release: ## Build a release in out/release: components, binaries, images, the kubectl plugin, bills of materials, checksums.
	cd hack/release && go run . -root ../.. -out ../../out/release -version "$(RELEASE_VERSION)" -image $(IMAGE) -kustomize $(KUSTOMIZE)

release-manifests: ## Build only the manifests of a release in out/release.
	cd hack/release && go run . -manifests -root ../.. -out ../../out/release -version "$(RELEASE_VERSION)" -image $(IMAGE) -kustomize $(KUSTOMIZE)

release-previous: ## Build a release of the previous commit in out/previous/out/release: test-e2e upgrades from it.
	@rm -rf out/previous
	@if previous=$$(git rev-parse --verify --quiet HEAD~1); then \
		git clone --quiet --shared . out/previous && git -C out/previous checkout --quiet $$previous && \
		$(MAKE) --no-print-directory -C out/previous release VERSION=v0.1.0-previous; \
	else \
		echo "SKIPPED: this clone does not have the previous commit."; \
	fi

# The output of `make generate`.
KWOK_PROVIDER := test/infrastructure/kwok
GENERATED := \
	api/v1alpha1/zz_generated.deepcopy.go \
	config/crd/bases \
	config/workload/crd \
	config/rbac/role.yaml \
	config/plugin/role.yaml \
	docs/reference/api.md \
	docs/reference/configuration.md \
	docs/reference/requirements.md \
	$(KWOK_PROVIDER)/config/crd \
	$(wildcard $(KWOK_PROVIDER)/api/*/*/zz_generated.deepcopy.go)

# controller-gen writes all CRDs into one directory, but ours are installed in two kinds of clusters.
generate: ## Generate deepcopy functions, CRDs, roles and reference pages from the sources.
	$(CONTROLLER_GEN) object paths=./api/... paths=./$(KWOK_PROVIDER)/api/...
	@set -e; crds=$$(mktemp -d); trap 'rm -rf "$$crds"' EXIT; \
	echo "$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=$$crds"; \
	"$(CONTROLLER_GEN)" crd paths=./api/... output:crd:dir="$$crds"; \
	mkdir -p config/crd/bases config/workload/crd; \
	mv "$$crds"/*_machinedrainpolicies.yaml config/crd/bases/; \
	mv "$$crds"/*_nodemaintenances.yaml "$$crds"/*_evacuations.yaml config/workload/crd/; \
	if [ -n "$$(ls "$$crds")" ]; then echo "Unknown CRDs: $$(ls "$$crds"). Add them to the Makefile, for management or workload clusters."; exit 1; fi
	$(CONTROLLER_GEN) crd paths=./$(KWOK_PROVIDER)/api/... output:crd:dir=$(KWOK_PROVIDER)/config/crd
	$(CONTROLLER_GEN) rbac:roleName=capnm-manager-role paths=./controllers/... paths=./cmd/manager/... output:rbac:dir=config/rbac
	$(CONTROLLER_GEN) rbac:roleName=capnm-plugin paths=./cmd/kubectl-node_maintenance/... output:rbac:dir=config/plugin
	@mkdir -p docs/reference
	$(CRD_REF_DOCS) --source-path=api --config=hack/docs/crd-ref-docs.yaml --templates-dir=hack/docs/templates \
		--renderer=markdown --output-path=docs/reference/api.md --log-level=WARN
	go run ./hack/docs/configuration
	go run ./hack/docs/requirements

##@ Check

GO_DIRECTORIES := $(wildcard api cmd config controllers drain exp hack test)

.PHONY: verify verify-generated verify-format verify-modules verify-docs verify-prose verify-github verify-monitoring vet lint lint-fix clean
verify: verify-format verify-modules verify-docs verify-prose verify-github verify-monitoring vet verify-generated lint ## Run all checks that need no control plane.

verify-generated: generate ## Check that generated files are up to date.
	@git diff --exit-code --stat -- $(GENERATED) || { echo "Generated files differ from the committed ones: run 'make generate' and commit the result."; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	if [ -n "$$new" ]; then echo "Generated files are not committed: $$new"; exit 1; fi

verify-format: ## Check the formatting of Go files.
	@unformatted=$$(gofmt -l -s $(GO_DIRECTORIES)); \
	if [ -n "$$unformatted" ]; then echo "Not formatted (gofmt -s -w):"; echo "$$unformatted"; exit 1; fi

verify-modules: ## Check that go.mod and go.sum are complete and tidy.
	go mod tidy -diff
	go mod verify
	cd test/differential && go mod tidy -diff
	cd hack/release && go mod tidy -diff
	cd test/e2e && go mod tidy -diff
	cd test/browser && go mod tidy -diff
	@awk '$$1 == "require" {$$1 = ""; $$0 = $$0} $$2 ~ /^v[0-9]/ && $$2 != "v0.0.0" { \
			if (NR == FNR) version[$$1] = $$2; \
			else if ($$1 in version && version[$$1] != $$2) {print $$1 ": " version[$$1] " in go.mod, " $$2 " in " FILENAME; differs = 1}} \
		END {exit differs}' go.mod hack/tools/controlplane/go.mod hack/tools/cluster-api-operator/go.mod || { echo "Go compiles such modules twice: require the same versions."; exit 1; }
	@if grep -q '^replace' go.mod; then echo "go.mod replaces modules: other modules could not require it."; exit 1; fi

# promtool reads files of rules, which are the last field of the object of the Prometheus operator.
verify-monitoring: ## Test the alerts.
	@mkdir -p out/monitoring && cp config/monitoring/rules_test.yaml out/monitoring/ && \
	sed -e '1,/^spec:$$/d' -e 's/^  //' config/monitoring/rules.yaml >out/monitoring/rules.yaml && cd out/monitoring && \
	$(PROMTOOL) check rules --lint-fatal rules.yaml && $(PROMTOOL) test rules rules_test.yaml

verify-docs: ## Check the links in Markdown files, and from YAML files to them.
	go run ./hack/verify/links

verify-prose: ## Check the vocabulary of Markdown, comments and messages.
	go run ./hack/verify/prose

verify-github: ## Check the workflows, and that Dependabot updates every Go module.
	$(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yaml
	@diff <(git ls-files -co --exclude-standard '*go.mod' | sed 's|^|/|; s|/go.mod$$||; s|^$$|/|' | sort) \
		<(sed -n 's|^  - \(/.*\)|\1|p' .github/dependabot.yml | sort) || \
		{ echo ".github/dependabot.yml must list exactly the Go modules of the repository (<: missing, >: does not exist)."; exit 1; }

# Separate modules, so that users of the main module do not get their dependencies.
MODULES := hack/release hack/tools/csi-mock test/e2e test/browser

vet: ## Run go vet.
	go vet ./...
	@set -e; for module in $(MODULES); do echo "go vet ./... in $$module"; (cd $$module && go vet ./...); done

lint: ## Run golangci-lint.
	$(GOLANGCI_LINT) run
	cd test/differential && $(GOLANGCI_LINT) run

lint-fix: ## Run golangci-lint and apply its fixes.
	$(GOLANGCI_LINT) run --fix

clean: ## Remove build output. Built tools stay in their cache.
	rm -rf bin out

##@ Help

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*## "; printf "Usage: make <target>\n"} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-zA-Z0-9_-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' Makefile
	@printf "\nTools (hack/tools pins them)\n"
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' hack/tools/tools.mk
