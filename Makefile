# All that is needed is Go and make. `make` lists the targets.

.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash -o pipefail

include hack/tools/tools.mk

##@ See it work

.PHONY: demo bench bench-smoke
SCENARIO ?= drain

demo: tools-controlplane ## Watch a Machine's Node being drained, on real control planes, on this machine.
	go run ./test/demo

bench: tools-controlplane ## Run the benchmark SCENARIO (default: drain) with BENCH_FLAGS; docs/benchmarks.md lists them.
	go run ./test/bench -scenario $(SCENARIO) $(BENCH_FLAGS)

bench-smoke: tools-controlplane ## Fail if calls, writes or memory have grown past what is recorded. Minutes.
	go run ./test/bench -scenario smoke

##@ Test

# A package of test/ starts several control planes, each a handful of processes. Packages run side by side, but no more than
# two, and no more than there are CPUs: with more, the control planes of one test take the CPU from those of the other.
CPUS          := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
TEST_PACKAGES ?= $(if $(filter 1,$(CPUS)),1,2)
TEST_TIMEOUT  ?= 40m
# Tests of a package that run side by side. Those with control planes wait most of their time, so it may be more than CPUs; each
# takes about two gigabytes.
TEST_PARALLEL ?= 4
# Inputs, not seconds: Go sometimes reports the end of the time as a failure (https://go.dev/issue/56238).
FUZZ_TIME     ?= 1000x

# How often test-stress runs the integration suite, and then plays each scene of the tests of NodeMaintenances.
STRESS_SUITES ?= 5
STRESS_SCENES ?= 50
SCALE_NODES   ?= 5000

.PHONY: test test-race test-unit test-fuzz test-node test-differential test-oldest test-scale test-stress test-clusterctl
test: tools-controlplane ## Run all tests: unit, property, integration on real control planes, and short fuzzing.
	@go run -exec true ./cmd/manager >/dev/null # built before a test has to wait for it
	go test -p $(TEST_PACKAGES) -parallel $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) ./...
	@$(MAKE) --no-print-directory test-differential
	@$(MAKE) --no-print-directory test-fuzz

test-race: tools-controlplane ## Run all tests with the race detector, in the manager too. It needs a C compiler, and twice the time.
	@go run -race -exec true ./cmd/manager
	go test -race -p $(TEST_PACKAGES) -timeout $(TEST_TIMEOUT) ./...

test-unit: ## Run the tests of what decides (drain/), which need no control plane.
	go test ./drain/...

# One at a time: what is asserted is in which order real processes end, and they need the CPU to do so.
test-node: ## Test what needs real nodes, with kubelets and containers (Linux, root).
	@if [ "$$(uname -s)" != Linux ] || [ "$$(id -u)" != 0 ]; then \
		echo "SKIPPED: make test-node needs root on Linux, for real kubelets and containers."; \
	elif ! command -v dbus-daemon >/dev/null || [ "$$(go env CGO_ENABLED)" != 1 ]; then \
		echo "SKIPPED: make test-node needs dbus-daemon and a C compiler."; \
	else \
		$(MAKE) --no-print-directory tools-controlplane tools-node && \
		CAPNM_TEST_NODE=1 go test -count=1 -p 1 -timeout $(TEST_TIMEOUT) ./test/realnode/...; \
	fi

test-oldest: tools-controlplane tools-oldest ## Run the tests of admission against the API server of the oldest workload clusters.
	CAPNM_TEST_OLDEST=1 go test -count=1 -run '^TestOldestVersion$$' -v ./test/integration

test-scale: tools-controlplane ## Run the test of a maintenance of many Nodes with SCALE_NODES (default: 5000).
	go test -count=1 -timeout 60m -run '^TestManyNodes$$' -v ./test/integration -nodes $(SCALE_NODES)

test-stress: tools-controlplane tools-oldest ## Hunt flakes: STRESS_SUITES (5) runs of the integration suite, STRESS_SCENES (50) plays of each scene.
	@CAPNM_TEST_OLDEST=1 TEST_PARALLEL=$(TEST_PARALLEL) hack/stress.sh $(STRESS_SUITES) $(STRESS_SCENES)

test-clusterctl: tools-controlplane ## Install, upgrade, move and remove the provider with the real clusterctl.
	@go run ./hack/tools/install kustomize
	CAPNM_TEST_CLUSTERCTL=1 go test -count=1 -timeout $(TEST_TIMEOUT) ./test/clusterctl

test-fuzz: ## Fuzz each target for FUZZ_TIME, inputs or seconds (default: 1000x).
	@hack/fuzz.sh $(FUZZ_TIME)

# It has no goroutines, so it does without the race detector, which makes it several times slower.
CASES ?= 1000

test-differential: ## Hold our decisions against those of Cluster API's own drain in CASES random cases (default: 1000).
	cd test/differential && go test -v -timeout $(TEST_TIMEOUT) ./... -rapid.checks=$(CASES) -rapid.nofailfile

##@ Build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: manager generate
manager: ## Build the manager: bin/manager.
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/manager ./cmd/manager

# Without VERSION, a release has that of the tag; see hack/release.
RELEASE_VERSION ?= $(if $(filter command line environment,$(origin VERSION)),$(VERSION))
IMAGE           ?= ghcr.io/capnm/cluster-api-node-maintenance

.PHONY: release release-manifests
release: ## Make a release in out/release: components, binaries, images, bills of materials, checksums.
	cd hack/release && go run . -root ../.. -out ../../out/release -version "$(RELEASE_VERSION)" -image $(IMAGE) -kustomize $(KUSTOMIZE)

release-manifests: ## Make what clusterctl reads of a release, and nothing else, in out/release.
	cd hack/release && go run . -manifests -root ../.. -out ../../out/release -version "$(RELEASE_VERSION)" -image $(IMAGE) -kustomize $(KUSTOMIZE)

# Where `make generate` writes.
KWOK_PROVIDER := test/infrastructure/kwok
GENERATED := \
	api/v1alpha1/zz_generated.deepcopy.go \
	config/crd/bases \
	config/workload/crd \
	config/rbac/role.yaml \
	docs/reference/api.md \
	docs/reference/configuration.md \
	docs/reference/requirements.md \
	$(KWOK_PROVIDER)/config/crd \
	$(wildcard $(KWOK_PROVIDER)/api/*/*/zz_generated.deepcopy.go)

# controller-gen writes all CRDs into one directory, but ours live in two kinds of clusters.
generate: ## Generate deepcopy functions, CRDs, roles and reference pages from the sources.
	$(CONTROLLER_GEN) object paths=./api/... paths=./$(KWOK_PROVIDER)/api/...
	@set -e; crds=$$(mktemp -d); trap 'rm -rf "$$crds"' EXIT; \
	echo "$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=$$crds"; \
	"$(CONTROLLER_GEN)" crd paths=./api/... output:crd:dir="$$crds"; \
	mkdir -p config/crd/bases config/workload/crd; \
	mv "$$crds"/*_machinedrainpolicies.yaml config/crd/bases/; \
	mv "$$crds"/*_nodemaintenances.yaml "$$crds"/*_evacuations.yaml config/workload/crd/; \
	if [ -n "$$(ls "$$crds")" ]; then echo "No place for $$(ls "$$crds"): say in the Makefile in which clusters it lives."; exit 1; fi
	$(CONTROLLER_GEN) crd paths=./$(KWOK_PROVIDER)/api/... output:crd:dir=$(KWOK_PROVIDER)/config/crd
	$(CONTROLLER_GEN) rbac:roleName=capnm-manager-role paths=./controllers/... paths=./cmd/... output:rbac:dir=config/rbac
	@mkdir -p docs/reference
	$(CRD_REF_DOCS) --source-path=api --config=hack/docs/crd-ref-docs.yaml --templates-dir=hack/docs/templates \
		--renderer=markdown --output-path=docs/reference/api.md --log-level=WARN
	go run ./hack/docs/configuration
	go run ./hack/docs/requirements

##@ Check

GO_DIRECTORIES := $(wildcard api cmd config controllers drain exp hack test)

.PHONY: verify verify-generated verify-format verify-modules verify-docs verify-prose verify-github verify-monitoring vet lint lint-fix clean
verify: verify-format verify-modules verify-docs verify-prose verify-github verify-monitoring vet verify-generated lint ## Check all that can be checked without running anything.

verify-generated: generate ## Check that what is generated is up to date.
	@git diff --exit-code --stat -- $(GENERATED) || { echo "Generated files differ from what is committed: commit what 'make generate' makes."; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	if [ -n "$$new" ]; then echo "Generated files are not committed: $$new"; exit 1; fi

verify-format: ## Check the formatting of Go files.
	@unformatted=$$(gofmt -l -s $(GO_DIRECTORIES)); \
	if [ -n "$$unformatted" ]; then echo "Not formatted (gofmt -s -w):"; echo "$$unformatted"; exit 1; fi

verify-modules: ## Check that go.mod says what is used, and that the modules are what go.sum says.
	go mod tidy -diff
	go mod verify
	cd test/differential && go mod tidy -diff
	cd hack/release && go mod tidy -diff
	@if grep -q '^replace' go.mod; then echo "go.mod replaces modules: nobody could use it as one."; exit 1; fi

verify-monitoring: ## Test the alerts.
	go run ./hack/verify/monitoring $(PROMTOOL)

verify-docs: ## Check the links in Markdown files.
	go run ./hack/verify/links

verify-prose: ## Check the vocabulary of Markdown, comments and messages.
	go run ./hack/verify/prose

verify-github: ## Check the workflows, and that Dependabot knows every Go module.
	$(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yaml
	@diff <(git ls-files -co --exclude-standard '*go.mod' | sed 's|^|/|; s|/go.mod$$||; s|^$$|/|' | sort) \
		<(sed -n 's|^  - \(/.*\)|\1|p' .github/dependabot.yml | sort) || \
		{ echo ".github/dependabot.yml must list exactly the Go modules of the repository (<: missing, >: does not exist)."; exit 1; }

# Modules of their own, so that nobody who uses the main one gets what they need.
MODULES := hack/release test/e2e

vet: ## Run go vet.
	go vet ./...
	@set -e; for module in $(MODULES); do echo "go vet ./... in $$module"; (cd $$module && go vet ./...); done

lint: ## Run golangci-lint.
	$(GOLANGCI_LINT) run
	cd test/differential && $(GOLANGCI_LINT) run

lint-fix: ## Have golangci-lint mend what it can.
	$(GOLANGCI_LINT) run --fix

clean: ## Remove what was built here. Built tools stay; `go run ./hack/tools/install` says where.
	rm -rf bin out

##@ Help

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*## "; printf "Usage: make <target>\n"} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-zA-Z0-9_-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' Makefile
	@printf "\nTools (hack/tools pins them)\n"
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' hack/tools/tools.mk
