// Package toolchain lists every program that this repository builds for development and tests:
// development tools (controller-gen, kustomize, …) and the control plane of the tests
// (etcd, kube-apiserver, kwok, the Cluster API core manager, …).
//
// Each program belongs to a small Go module under hack/tools that pins its version, and in some
// cases has its main package. This package reads the version from that go.mod and derives the path
// of the built program:
//
//	<cache>/<name>-<version>-<hash of go.mod, go.sum and *.go>/<name>
//
// Because of the hash, any change of a pin, a dependency, a checksum or a main package results in
// another path, so a stale binary is never used. hack/tools/install builds missing programs;
// test/controlplane only looks up the paths.
package toolchain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pkg/errors"
)

// Group is a set of programs that are built together.
type Group string

const (
	// ControlPlane programs are a control plane, simulated kubelets and Cluster API: the demo needs nothing else.
	ControlPlane Group = "controlplane"
	// Test programs are what the tests need besides a control plane.
	Test Group = "test"
	// Dev programs generate, check and render what is in the repository.
	Dev Group = "dev"
	// Node programs are a kubelet and its container runtime. Only the tests of the node agent need
	// them.
	Node Group = "node"
	// E2E programs make Debian a Kubernetes node and Docker an infrastructure, attach volumes, and install providers. Only the end-to-end
	// tests need them, besides those of a Node and of a control plane. The tests of installations need the Cluster API operator, too.
	E2E Group = "e2e"
	// Oldest is the API server of the oldest workload clusters that the tests of admission run against.
	Oldest Group = "oldest"
	// Next are the programs of the Kubernetes release to which the end-to-end tests upgrade a Cluster. Their names have the suffix -next.
	Next Group = "next"
)

// Groups lists all groups.
var Groups = []Group{ControlPlane, Dev, E2E, Next, Node, Oldest, Test}

// Program is one executable built from a pinned Go module.
type Program struct {
	// Name of the executable.
	Name string
	// Pin is the directory under hack/tools whose go.mod pins the program.
	Pin string
	// Module whose version is the version of the program.
	Module string
	// Package is the main package, as `go build` takes it.
	Package string
	Group   Group
}

// Programs lists all programs.
var Programs = []Program{
	{"etcd", "controlplane", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", ControlPlane},
	{"kube-apiserver", "controlplane", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", ControlPlane},
	{"kube-controller-manager", "controlplane", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", ControlPlane},
	{"kube-scheduler", "controlplane", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", ControlPlane},
	{"kubectl", "controlplane", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubectl", ControlPlane},
	{"kwok", "controlplane", "sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok", ControlPlane},
	{"capi-core", "controlplane", "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/core", ControlPlane},
	{"clusterctl", "controlplane", "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/cmd/clusterctl", Test},
	{"jaeger", "jaeger", "github.com/jaegertracing/jaeger", "github.com/jaegertracing/jaeger/cmd/all-in-one", Test},
	{"kube-apiserver-oldest", "kubernetes-oldest", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", Oldest},
	{"kubelet", "kubelet", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubelet", Node},
	{"containerd", "containerd", "github.com/containerd/containerd/v2", "github.com/containerd/containerd/v2/cmd/containerd", Node},
	{"containerd-shim-runc-v2", "containerd", "github.com/containerd/containerd/v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", Node},
	{"ctr", "containerd", "github.com/containerd/containerd/v2", "github.com/containerd/containerd/v2/cmd/ctr", Node},
	{"runc", "runc", "github.com/opencontainers/runc", "github.com/opencontainers/runc", Node},
	{"kubeadm", "kubelet", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubeadm", E2E},
	{"kube-proxy", "kubelet", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", E2E},
	{"crictl", "cri-tools", "sigs.k8s.io/cri-tools", "sigs.k8s.io/cri-tools/cmd/crictl", E2E},
	{"coredns", "coredns", "github.com/coredns/coredns", "github.com/capnm/cluster-api-node-maintenance/hack/tools/coredns", E2E},
	{"capi-kubeadm-bootstrap", "controlplane", "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/bootstrap/kubeadm", E2E},
	{"capi-kubeadm-control-plane", "controlplane", "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/controlplane/kubeadm", E2E},
	{"kube-apiserver-next", "kubernetes-next", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", Next},
	{"kube-controller-manager-next", "kubernetes-next", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", Next},
	{"kube-scheduler-next", "kubernetes-next", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", Next},
	{"kube-proxy-next", "kubernetes-next", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", Next},
	{"kubeadm-next", "kubernetes-next", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubeadm", Next},
	{"kubelet-next", "kubernetes-next", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubelet", Next},
	{"capi-operator", "cluster-api-operator", "sigs.k8s.io/cluster-api-operator", "sigs.k8s.io/cluster-api-operator/cmd", E2E},
	{
		"csi-attacher", "external-attacher", "github.com/kubernetes-csi/external-attacher/v4", "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher", E2E,
	},
	{"csi-mock", "csi-mock", "k8s.io/kubernetes", "github.com/capnm/cluster-api-node-maintenance/hack/tools/csi-mock", E2E},
	{"capd", "capd", "sigs.k8s.io/cluster-api/test", "sigs.k8s.io/cluster-api/test/infrastructure/docker", E2E},
	{"controller-gen", "controller-tools", "sigs.k8s.io/controller-tools", "sigs.k8s.io/controller-tools/cmd/controller-gen", Dev},
	{"kustomize", "kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "sigs.k8s.io/kustomize/kustomize/v5", Dev},
	{"golangci-lint", "golangci-lint", "github.com/golangci/golangci-lint/v2", "github.com/golangci/golangci-lint/v2/cmd/golangci-lint", Dev},
	{"promtool", "prometheus", "github.com/prometheus/prometheus", "github.com/prometheus/prometheus/cmd/promtool", Dev},
	{"actionlint", "actionlint", "github.com/rhysd/actionlint", "github.com/rhysd/actionlint/cmd/actionlint", Dev},
	{"crd-ref-docs", "crd-ref-docs", "github.com/elastic/crd-ref-docs", "github.com/elastic/crd-ref-docs", Dev},
}

// Find returns the program of that name.
func Find(name string) (Program, error) {
	for _, p := range Programs {
		if p.Name == name {
			return p, nil
		}
	}
	return Program{}, errors.Errorf("%q is not a program of hack/tools", name)
}

func findWithRoot(name string) (program Program, root string, err error) {
	if program, err = Find(name); err == nil {
		root, err = Root()
	}
	return program, root, err
}

// Path returns where the named program of the pinned version is kept, and whether it has
// been built. It returns an installed program instead if there is one, see InstalledVariable.
func Path(name string) (file string, built bool, err error) {
	program, root, err := findWithRoot(name)
	if err != nil {
		return "", false, err
	}
	if file := program.Installed(root); file != "" {
		return file, true, nil
	}
	file, err = program.Path(root)
	if err != nil {
		return "", false, err
	}
	info, err := os.Stat(file)
	return file, err == nil && info.Mode().IsRegular(), nil
}

// Version returns the pinned version of the named program, such as "v1.36.3".
func Version(name string) (string, error) {
	program, root, err := findWithRoot(name)
	if err != nil {
		return "", err
	}
	return program.Version(root)
}

// Dir returns the directory of the module that pins the program.
func (p Program) Dir(root string) string {
	return filepath.Join(root, "hack", "tools", p.Pin)
}

// Version returns the version in the go.mod that pins the program.
func (p Program) Version(root string) (string, error) {
	file := filepath.Join(p.Dir(root), "go.mod")
	content, err := os.ReadFile(file)
	if err != nil {
		return "", errors.Wrapf(err, "reading the pinned version of %s", p.Name)
	}
	// A requirement is a separate line, with or without the leading keyword.
	requirement := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(p.Module) + `\s+(v\S+)`)
	found := requirement.FindSubmatch(content)
	if found == nil {
		return "", errors.Errorf("%s doesn't require %s, which provides %s", file, p.Module, p.Name)
	}
	return string(found[1]), nil
}

// Path returns where the program is kept once it is built.
func (p Program) Path(root string) (string, error) {
	version, err := p.Version(root)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	dir := p.Dir(root)
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", errors.Wrapf(err, "looking for the sources of %s", p.Name)
	}
	for _, file := range append(sources, filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", errors.Wrapf(err, "reading the module of %s", p.Name)
		}
		hash.Write(content)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	key := hex.EncodeToString(hash.Sum(nil))[:10]
	return filepath.Join(cache, p.Name+"-"+version+"-"+key, p.Name), nil
}

// Executable returns the name that `go build` gives the program.
func (p Program) Executable() string {
	name := path.Base(p.Package)
	if majorVersion.MatchString(name) {
		name = path.Base(path.Dir(p.Package))
	}
	return name
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// NeedsCompiler reports whether the program is built with a C compiler. runc enters namespaces in C.
func (p Program) NeedsCompiler() bool {
	return p.Name == "runc"
}

// Tags returns the build tags of the program. They exclude service discovery from promtool, which is most of it and not needed to
// test rules.
func (p Program) Tags() string {
	if p.Name == "promtool" {
		return "remove_all_sd"
	}
	return ""
}

// ModuleDir returns the directory with the sources of a module that hack/tools/<pin> requires, in the required version.
func ModuleDir(ctx context.Context, pin, module string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	command.Dir = filepath.Join(root, "hack", "tools", pin)
	output, err := command.Output()
	if err != nil {
		return "", errors.Wrapf(err, "looking for the module %s in %s", module, command.Dir)
	}
	var downloaded struct{ Dir string }
	err = json.Unmarshal(output, &downloaded)
	return downloaded.Dir, errors.Wrapf(err, "looking for the module %s in %s", module, command.Dir)
}

// CacheDir returns the directory of built programs. CAPNM_TOOLS_DIR overrides it, for example
// with a directory that a CI system caches.
func CacheDir() (string, error) {
	if dir := os.Getenv("CAPNM_TOOLS_DIR"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "capnm", "tools"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.Wrap(err, "looking for a place to keep built tools; set CAPNM_TOOLS_DIR to name one")
	}
	return filepath.Join(home, ".cache", "capnm", "tools"), nil
}

const mainModule = "module github.com/capnm/cluster-api-node-maintenance\n"

// Root returns the top directory of the checkout, found from the working directory upwards:
// `go test` and `go run` both work from inside the checkout.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", errors.Wrap(err, "looking for the checkout")
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), mainModule) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.Errorf("%s is not inside a checkout of this repository", start)
		}
	}
}
