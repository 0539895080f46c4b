package clusterctl

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const (
	// Our versions before and after the upgrade. The sources are the same; the image's tag differs.
	oldVersion, newVersion = "v0.1.0", "v0.1.1"

	imageName = "registry.example.com/node-maintenance"
)

// repository is a directory of releases with the configuration of clusterctl.
type repository struct {
	*testing.T
	*WithT
	root, dir, config string
	coreVersion       string
	certManager       string // file with the manifests of cert-manager
}

// built is the repository of all tests.
var built struct {
	sync.Mutex
	*repository
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.repository == nil {
		built.repository = buildRepository(t)
	}
	return built.sub(t)
}

func buildRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{T: t, WithT: NewWithT(t), dir: filepath.Join(binaries.dir, "repository")}
	var err error
	r.root, err = toolchain.Root()
	r.Expect(err).NotTo(HaveOccurred())
	for _, version := range []string{oldVersion, newVersion} {
		r.addOurs(version)
		// Before a test waits for it: a busy machine needs minutes.
		_, err := binaryOf(imageName + ":" + version)
		r.Expect(err).NotTo(HaveOccurred())
	}
	r.addCore()
	r.addInfrastructure()
	certManager := r.addCertManager()
	r.config = filepath.Join(r.dir, "clusterctl.yaml")
	r.write(r.config, fmt.Sprintf(`
providers:
- {name: node-maintenance, type: RuntimeExtensionProvider, url: "file://%[1]s/runtime-extension-node-maintenance/%[2]s/runtime-extension-components.yaml"}
- {name: cluster-api, type: CoreProvider, url: "file://%[1]s/cluster-api/%[3]s/core-components.yaml"}
- {name: kwok-test, type: InfrastructureProvider, url: "file://%[1]s/infrastructure-kwok-test/v0.1.0/infrastructure-components.yaml"}
cert-manager:
  url: "file://%[1]s/cert-manager/%[4]s/cert-manager.yaml"
  version: %[4]s
`, r.dir, oldVersion, r.coreVersion, certManager))
	return r
}

func (r *repository) sub(t *testing.T) *repository {
	t.Helper()
	sub := *r
	sub.T, sub.WithT = t, NewWithT(t)
	return &sub
}

// addOurs builds the manifests of a version with hack/release.
func (r *repository) addOurs(version string) {
	r.Helper()
	out := r.versionDir("runtime-extension-node-maintenance", version)
	release := exec.CommandContext(r.Context(), "go", "run", ".", "-manifests",
		"-root", r.root, "-out", out, "-version", version, "-image", imageName, "-kustomize", r.tool("kustomize"))
	release.Dir = filepath.Join(r.root, "hack", "release")
	r.run(release)
}

// addCore builds Cluster API's core components from the module of its manager.
func (r *repository) addCore() {
	r.Helper()
	program, err := toolchain.Find("capi-core")
	r.Expect(err).NotTo(HaveOccurred())
	r.coreVersion, err = program.Version(r.root)
	r.Expect(err).NotTo(HaveOccurred())
	sources, err := toolchain.ModuleDir(r.Context(), program.Pin, program.Module)
	r.Expect(err).NotTo(HaveOccurred())
	dir := r.versionDir("cluster-api", r.coreVersion)
	components := r.run(exec.CommandContext(r.Context(), r.tool("kustomize"), "build", filepath.Join(sources, "core", "config", "default")))
	r.write(filepath.Join(dir, "core-components.yaml"), components)
	r.write(filepath.Join(dir, "metadata.yaml"), r.read(filepath.Join(sources, "metadata.yaml")))
}

// addInfrastructure builds a provider from the CRDs of test/infrastructure/kwok, whose controllers run in the test, and a role that allows
// our manager to read its kinds, as the installation guide describes.
func (r *repository) addInfrastructure() {
	r.Helper()
	dir := r.versionDir("infrastructure-kwok-test", "v0.1.0")
	components := `
apiVersion: v1
kind: Namespace
metadata: {name: kwok-test-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kwok-test-for-node-maintenance
  labels: {maintenance.cluster.x-k8s.io/aggregate-to-manager: "true"}
rules:
- {apiGroups: [infrastructure.test.capnm.dev, controlplane.test.capnm.dev], resources: ["*"], verbs: [get]}
` + r.concatenate(filepath.Join(r.root, "test", "infrastructure", "kwok", "config", "crd"))
	r.write(filepath.Join(dir, "infrastructure-components.yaml"), components)
	r.write(filepath.Join(dir, "metadata.yaml"), `
apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries: [{major: 0, minor: 1, contract: v1beta2}]
`)
}

// addCertManager adds cert-manager's CRDs, which clusterctl requires. No certificates are issued: the webhooks of Cluster API's core
// manager have those of the control plane.
func (r *repository) addCertManager() (version string) {
	r.Helper()
	sources, err := toolchain.ModuleDir(r.Context(), "cert-manager", "github.com/cert-manager/cert-manager")
	r.Expect(err).NotTo(HaveOccurred())
	version = sources[strings.LastIndex(sources, "@")+1:]
	components := "apiVersion: v1\nkind: Namespace\nmetadata: {name: cert-manager}\n" + r.concatenate(filepath.Join(sources, "deploy", "crds"))
	r.certManager = filepath.Join(r.versionDir("cert-manager", version), "cert-manager.yaml")
	r.write(r.certManager, components)
	return version
}

func (r *repository) versionDir(provider, version string) string {
	r.Helper()
	dir := filepath.Join(r.dir, provider, version)
	r.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	return dir
}

func (r *repository) concatenate(dir string) string {
	r.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(files).NotTo(BeEmpty())
	var all strings.Builder
	for _, file := range files {
		all.WriteString("\n---\n" + strings.TrimPrefix(r.read(file), "---\n"))
	}
	return all.String()
}

func (r *repository) tool(name string) string {
	r.Helper()
	path, err := controlplane.Tool(name)
	r.Expect(err).NotTo(HaveOccurred())
	return path
}

func (r *repository) read(file string) string {
	r.Helper()
	content, err := os.ReadFile(file)
	r.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func (r *repository) write(file, content string) {
	r.Helper()
	r.Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed())
}

// run runs a program, and returns its standard output.
func (r *repository) run(command *exec.Cmd) string {
	r.Helper()
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	r.Expect(err).NotTo(HaveOccurred(), "%s\n%s%s", command, output, stderr.String())
	return string(output)
}
