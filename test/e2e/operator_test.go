package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
	"github.com/capnm/cluster-api-node-maintenance/test/guide"
)

const (
	operatorImage = "capnm.dev/capi-operator:e2e"
	// The versions in the guide, and to which the spec upgrades. The second one has the same image.
	installedVersion, upgradedVersion = "v0.1.0", "v0.1.1"
)

var _ = Describe("The Cluster API operator", Label("operator"), func() {
	It("installs, upgrades and removes the provider as the guide says", func(ctx context.Context) {
		m := startManagementCluster(ctx, "operator", "capnm.dev/capi-core:e2e", operatorImage)
		Expect(m.repository.version).To(Equal(installedVersion))
		m.installOperator(ctx)
		steps, err := guide.Section(root, "installation.md", "With the Cluster API operator")
		Expect(err).NotTo(HaveOccurred())
		Expect(steps).To(HaveLen(5))
		variables, configMap, provider, wait, removal := steps[0].Content, steps[1].Content, steps[2].Content, steps[3].Content, steps[4].Content

		By("installing the provider")
		apply(ctx, variables, "--kubeconfig="+m.kubeconfig)
		m.shell(ctx, m.kubeconfig, "cd "+root+"\n"+configMap)
		apply(ctx, provider, "--kubeconfig="+m.kubeconfig)
		m.shell(ctx, m.kubeconfig, wait)
		m.waitVersion(ctx, installedVersion)
		namespace := get(ctx, Default, m.client, &corev1.Namespace{ObjectMeta: named("", ourNamespace)})
		Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: named("default", "all")}
		Expect(m.client.Create(ctx, policy)).To(Succeed())
		uid := policy.UID

		By("upgrading the provider")
		apply(ctx, strings.ReplaceAll(provider, installedVersion, upgradedVersion), "--kubeconfig="+m.kubeconfig)
		m.shell(ctx, m.kubeconfig, "cd "+m.addUpgrade(ctx)+"\n"+strings.ReplaceAll(configMap, installedVersion, upgradedVersion))
		m.shell(ctx, m.kubeconfig, strings.ReplaceAll(wait, installedVersion, upgradedVersion))
		m.waitVersion(ctx, upgradedVersion)
		Expect(get(ctx, Default, m.client, policy).UID).To(Equal(uid))

		By("removing the provider")
		before := removalCommands()
		m.shell(ctx, m.kubeconfig, before[0])
		Eventually(func() string { return m.shell(ctx, m.kubeconfig, before[1]) }, eventually, pace).Should(BeEmpty())
		m.shell(ctx, m.kubeconfig, removal)
		Eventually(func() []string { return m.traces(ctx, m.kubeconfig) }, eventually, pace).Should(BeEmpty())
	})
})

// installOperator installs the operator from its manifests, and lets it install Cluster API.
func (m *managementCluster) installOperator(ctx context.Context) {
	GinkgoHelper()
	By("installing the operator and Cluster API")
	module, err := toolchain.ModuleDir(ctx, "cluster-api-operator", "sigs.k8s.io/cluster-api-operator")
	Expect(err).NotTo(HaveOccurred())
	m.repository.add(ctx, "cluster-api-operator/operator-components.yaml", module, "capi-operator", "")
	m.shell(ctx, m.kubeconfig, `
kubectl apply --server-side -f `+m.repository.dir+`/cluster-api-operator/operator-components.yaml
kubectl rollout status -n capi-operator-system deployment/capi-operator-controller-manager --timeout=10m
cd `+filepath.Join(m.repository.dir, "cluster-api", m.repository.capi)+`
kubectl create namespace capi-system
gzip -c core-components.yaml >core-components.gz # it is larger than a ConfigMap may be
kubectl create configmap `+m.repository.capi+` -n capi-system --from-file=components=core-components.gz --from-file=metadata=metadata.yaml
kubectl annotate configmap `+m.repository.capi+` -n capi-system provider.cluster.x-k8s.io/compressed=true
kubectl label configmap `+m.repository.capi+` -n capi-system provider-components=cluster-api`)
	core := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "operator.cluster.x-k8s.io/v1alpha2", "kind": "CoreProvider", "metadata": map[string]any{"namespace": "capi-system", "name": "cluster-api"},
		"spec": map[string]any{
			"version":     m.repository.capi,
			"fetchConfig": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"provider-components": "cluster-api"}}},
		},
	}}
	// kube-proxy may not have written the rules for the operator's webhook yet.
	Eventually(func() error { return m.client.Create(ctx, core.DeepCopy()) }, eventually, pace).Should(Succeed())
	m.shell(ctx, m.kubeconfig, "kubectl wait -n capi-system coreprovider/cluster-api --for=condition=Ready --timeout=10m")
}

// addUpgrade adds a release that is the present one with another version, and returns the directory that has it in out/release.
func (m *managementCluster) addUpgrade(ctx context.Context) string {
	GinkgoHelper()
	release := filepath.Join(root, "out", "release")
	components := read(filepath.Join(release, "runtime-extension-components.yaml"))
	dir := GinkgoT().TempDir()
	upgrade := filepath.Join(dir, "out", "release")
	Expect(os.MkdirAll(upgrade, 0o755)).To(Succeed())
	for name, content := range map[string]string{
		"runtime-extension-components.yaml": strings.ReplaceAll(components, ":"+installedVersion, ":"+upgradedVersion),
		"metadata.yaml":                     read(filepath.Join(release, "metadata.yaml")),
	} {
		Expect(os.WriteFile(filepath.Join(upgrade, name), []byte(content), 0o600)).To(Succeed())
	}
	nodes, err := m.provider.ListInternalNodes(m.name)
	Expect(err).NotTo(HaveOccurred())
	image := managerImage.FindStringSubmatch(components)
	Expect(image).NotTo(BeEmpty())
	for _, node := range nodes {
		run(ctx, "docker", "exec", node.String(), "ctr", "--namespace=k8s.io", "images", "tag", image[1]+":"+installedVersion, image[1]+":"+upgradedVersion)
	}
	return dir
}
