# The programs this repository builds for itself; hack/tools/toolchain lists them, and the
# go.mod files beside it pin their versions.
#
# A variable such as $(CONTROLLER_GEN) is the path of the program, and using it builds the
# program if it is missing. It is resolved at its first use only, so that targets that need
# no tool pay nothing for it.

installed = $(or $(shell go run ./hack/tools/install path $(1)),$(error $(1) could not be built))

CONTROLLER_GEN = $(eval CONTROLLER_GEN := $$(call installed,controller-gen))$(CONTROLLER_GEN)
KUSTOMIZE      = $(eval KUSTOMIZE := $$(call installed,kustomize))$(KUSTOMIZE)
GOLANGCI_LINT  = $(eval GOLANGCI_LINT := $$(call installed,golangci-lint))$(GOLANGCI_LINT)
PROMTOOL       = $(eval PROMTOOL := $$(call installed,promtool))$(PROMTOOL)
ACTIONLINT     = $(eval ACTIONLINT := $$(call installed,actionlint))$(ACTIONLINT)
CRD_REF_DOCS   = $(eval CRD_REF_DOCS := $$(call installed,crd-ref-docs))$(CRD_REF_DOCS)
KUBECTL        = $(eval KUBECTL := $$(call installed,kubectl))$(KUBECTL)
CLUSTERCTL     = $(eval CLUSTERCTL := $$(call installed,clusterctl))$(CLUSTERCTL)

.PHONY: tools tools-controlplane tools-test tools-oldest tools-dev tools-node tools-e2e tools-next
tools: ## Build the pinned tools and control plane programs that are missing.
	@go run ./hack/tools/install

tools-controlplane: ## Build the programs of a control plane, kwok and Cluster API: the demo runs them.
	@go run ./hack/tools/install controlplane

tools-test: ## Build the programs that the tests run: those of the demo, clusterctl and Jaeger.
	@go run ./hack/tools/install controlplane test

tools-dev: ## Build the tools that generate and check.
	@go run ./hack/tools/install dev

tools-oldest: ## Build the API server of the oldest workload clusters.
	@go run ./hack/tools/install oldest

tools-node: ## Build the kubelet, containerd and runc of real nodes (needs a C compiler).
	@go run ./hack/tools/install node

tools-e2e: ## Build what makes Debian a Kubernetes node, and the providers of the end-to-end tests.
	@go run ./hack/tools/install e2e kubelet containerd containerd-shim-runc-v2 ctr kustomize

tools-next: ## Build the Kubernetes release to which the end-to-end tests upgrade a Cluster.
	@go run ./hack/tools/install next
