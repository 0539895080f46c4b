package clusterctl

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/guide"
)

const coreNamespace = "capi-system"

// ours matches the cluster-wide objects of our release.
var ours = client.MatchingLabels{"cluster.x-k8s.io/provider": "runtime-extension-node-maintenance"}

// TestOperator covers the life of an installation by the Cluster API operator, with the manifests and commands of the guide. The operator
// runs as a process and serves its webhooks. Cluster API's core manager does not run: the Pod of its Deployment is reported as ready. Each
// part continues from the end of the previous one.
func TestOperator(t *testing.T) {
	if os.Getenv("CAPNM_TEST_CLUSTERCTL") == "" {
		t.Skip("SKIPPED: make test-clusterctl runs this test")
	}
	t.Parallel()
	r := newRepository(t)
	m := startManagement(t, r, "operator")
	m.kubectl(t, "kubectl apply --server-side -f "+r.certManager, "")
	r.Expect(clusterapi.InstallOperator(t.Context(), m.ControlPlane)).To(Succeed())
	m.startKubelet(t)
	steps, err := guide.Section(r.root, "installation.md", "With the Cluster API operator")
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(steps).To(HaveLen(5))
	variables, configMap, provider, wait := steps[0].Content, steps[1].Content, steps[2].Content, steps[3].Content
	removal, removalOfRest, _ := strings.Cut(steps[4].Content, "\n")
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "machinedrainpolicies.maintenance.cluster.x-k8s.io"}}

	t.Run("installs the provider from a ConfigMap when the CoreProvider is ready", func(t *testing.T) {
		g := NewWithT(t)
		m.apply(t, variables)
		m.createConfigMap(t, configMap, oldVersion, withOldDescription)
		m.apply(t, provider)
		g.Eventually(func(g Gomega) {
			g.Expect(m.conditions(t, g, "RuntimeExtensionProvider", fleet.InstallationNamespace, "node-maintenance")).To(
				HaveKeyWithValue("PreflightCheckPassed", "False WaitingForCoreProviderReady"))
		}, eventually, pace).Should(Succeed())
		m.installCore(t)
		m.kubectl(t, wait, "")

		m.waitAvailable(t, oldVersion)
		m.expectInstalled(t, oldVersion)
		deployment := &appsv1.Deployment{}
		g.Expect(m.client.Get(t.Context(), deploymentKey, deployment)).To(Succeed())
		container := deployment.Spec.Template.Spec.Containers[0]
		g.Expect(container.Args).To(ContainElements("--logging-format=json", "--v=2"), "a variable of the Secret, and the default of another one")
		g.Expect(container.Resources.Requests.Memory().String()).To(Equal("512Mi"))
		g.Expect(m.client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		g.Expect(description(crd)).To(Equal(oldDescription))
		g.Expect(m.client.Create(t.Context(), policy)).To(Succeed())
	})

	t.Run("upgrades the provider and its CRD, and keeps its objects", func(t *testing.T) {
		g := NewWithT(t)
		m.createConfigMap(t, configMap, newVersion, nil)
		m.apply(t, strings.ReplaceAll(provider, oldVersion, newVersion))
		m.waitAvailable(t, newVersion)
		m.expectInstalled(t, newVersion)
		before := crd.UID
		g.Expect(m.client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		g.Expect(crd.UID).To(Equal(before))
		g.Expect(description(crd)).NotTo(Equal(oldDescription))
		m.expectKept(t, policy)
	})

	t.Run("installs an older version, and keeps objects, when the RuntimeExtensionProvider is deleted and created again", func(t *testing.T) {
		m.kubectl(t, removal, "")
		m.apply(t, provider)
		m.waitAvailable(t, oldVersion)
		m.expectInstalled(t, oldVersion)
		m.expectKept(t, policy)
	})

	t.Run("removes the manager, and keeps what the guide says", func(t *testing.T) {
		g := NewWithT(t)
		m.kubectl(t, removal, "")
		g.Eventually(func() error { return m.client.Get(t.Context(), deploymentKey, &appsv1.Deployment{}) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		g.Eventually(m.kubelet.Running, eventually, pace).Should(BeEmpty())
		account := client.ObjectKey{Namespace: fleet.InstallationNamespace, Name: "capnm-manager"}
		g.Eventually(func() error { return m.client.Get(t.Context(), account, &corev1.ServiceAccount{}) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		m.expectKept(t, policy)
		g.Expect(m.client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		configMaps := &corev1.ConfigMapList{}
		ofVersions := client.HasLabels{"provider.cluster.x-k8s.io/version"}
		g.Expect(m.client.List(t.Context(), configMaps, client.InNamespace(fleet.InstallationNamespace), ofVersions)).To(Succeed())
		g.Expect(configMaps.Items).To(HaveLen(2))
		g.Expect(m.clusterRoles(t, g)).NotTo(BeEmpty())

		m.kubectl(t, removalOfRest, "")
		g.Eventually(func() error { return m.client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		g.Expect(m.clusterRoles(t, g)).To(BeEmpty())
		g.Expect(m.client.Get(t.Context(), types.NamespacedName{Name: fleet.InstallationNamespace}, &corev1.Namespace{})).To(Satisfy(apierrors.IsNotFound))
	})
}

// installCore lets the operator install Cluster API's core components, and reports that their Pod is ready.
func (m *management) installCore(t *testing.T) {
	t.Helper()
	g, r := NewWithT(t), m.repository.sub(t)
	dir := filepath.Join(r.dir, "cluster-api", r.coreVersion)
	// Cluster API's components are larger than a ConfigMap may be.
	var components bytes.Buffer
	compressor := gzip.NewWriter(&components)
	_, err := compressor.Write([]byte(r.read(filepath.Join(dir, "core-components.yaml"))))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(compressor.Close()).To(Succeed())
	g.Expect(m.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: coreNamespace}})).To(Succeed())
	g.Expect(m.client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: coreNamespace, Name: r.coreVersion, Labels: map[string]string{"provider-components": "cluster-api"},
			Annotations: map[string]string{"provider.cluster.x-k8s.io/compressed": "true"},
		},
		Data:       map[string]string{"metadata": r.read(filepath.Join(dir, "metadata.yaml"))},
		BinaryData: map[string][]byte{"components": components.Bytes()},
	})).To(Succeed())
	m.apply(t, fmt.Sprintf(`
apiVersion: operator.cluster.x-k8s.io/v1alpha2
kind: CoreProvider
metadata: {name: cluster-api, namespace: %s}
spec:
  version: %s
  fetchConfig: {selector: {matchLabels: {provider-components: cluster-api}}}
`, coreNamespace, r.coreVersion))
	g.Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(m.client.List(t.Context(), pods, client.InNamespace(coreNamespace))).To(Succeed())
		for i := range pods.Items {
			pod := &pods.Items[i]
			before := pod.DeepCopy()
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			g.Expect(m.client.Status().Patch(t.Context(), pod, client.MergeFrom(before))).To(Succeed())
		}
		g.Expect(m.conditions(t, g, "CoreProvider", coreNamespace, "cluster-api")).To(HaveKeyWithValue("Ready", HavePrefix("True ")))
	}, eventually, pace).Should(Succeed())
}

// createConfigMap runs the commands of the guide that create the ConfigMap of a version, in a directory with its release. If change is not
// nil, it modifies the components.
func (m *management) createConfigMap(t *testing.T, commands, version string, change func(string) string) {
	t.Helper()
	g, r := NewWithT(t), m.repository.sub(t)
	release := filepath.Join(t.TempDir(), "out", "release")
	g.Expect(os.MkdirAll(release, 0o755)).To(Succeed())
	for _, name := range []string{"runtime-extension-components.yaml", "metadata.yaml"} {
		content := r.read(filepath.Join(r.dir, "runtime-extension-node-maintenance", version, name))
		if change != nil {
			content = change(content)
		}
		r.write(filepath.Join(release, name), content)
	}
	m.kubectl(t, "cd "+filepath.Dir(filepath.Dir(release))+"\n"+strings.ReplaceAll(commands, oldVersion, version), "")
}

// oldDescription is the description of MachineDrainPolicy in the CRD of the old version.
const oldDescription = "The old description."

func withOldDescription(components string) string {
	const field = "\n      openAPIV3Schema:\n        description:"
	return strings.Replace(components, field, field+" "+oldDescription+"\n        title:", 1)
}

func description(crd *apiextensionsv1.CustomResourceDefinition) string {
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Description
}

func (m *management) expectInstalled(t *testing.T, version string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		provider := m.provider(t, g, "RuntimeExtensionProvider", fleet.InstallationNamespace, "node-maintenance")
		installed, _, _ := unstructured.NestedString(provider.Object, "status", "installedVersion")
		g.Expect(installed).To(Equal(version))
		contract, _, _ := unstructured.NestedString(provider.Object, "status", "contract")
		g.Expect(contract).To(Equal("v1beta2"))
		g.Expect(m.conditions(t, g, "RuntimeExtensionProvider", fleet.InstallationNamespace, "node-maintenance")).To(And(
			HaveKeyWithValue("ProviderInstalled", HavePrefix("True ")), HaveKeyWithValue("Ready", HavePrefix("True "))))
	}, eventually, pace).Should(Succeed())
}

// expectKept checks that a policy is the one that was created.
func (m *management) expectKept(t *testing.T, policy *v1alpha1.MachineDrainPolicy) {
	t.Helper()
	g := NewWithT(t)
	present := &v1alpha1.MachineDrainPolicy{}
	g.Expect(m.client.Get(t.Context(), client.ObjectKeyFromObject(policy), present)).To(Succeed())
	g.Expect(present.UID).To(Equal(policy.UID))
	g.Expect(present.DeletionTimestamp).To(BeNil())
}

func (m *management) clusterRoles(t *testing.T, g Gomega) []rbacv1.ClusterRole {
	t.Helper()
	roles := &rbacv1.ClusterRoleList{}
	g.Expect(m.client.List(t.Context(), roles, ours)).To(Succeed())
	return roles.Items
}

// provider returns an object of the operator.
func (m *management) provider(t *testing.T, g Gomega, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	provider := &unstructured.Unstructured{}
	provider.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.cluster.x-k8s.io", Version: "v1alpha2", Kind: kind})
	g.Expect(m.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, provider)).To(Succeed())
	return provider
}

// conditions returns the status and the reason of each condition of an object of the operator.
func (m *management) conditions(t *testing.T, g Gomega, kind, namespace, name string) map[string]string {
	t.Helper()
	list, _, _ := unstructured.NestedSlice(m.provider(t, g, kind, namespace, name).Object, "status", "conditions")
	conditions := map[string]string{}
	for _, each := range list {
		condition := each.(map[string]any)
		conditions[condition["type"].(string)] = fmt.Sprintf("%s %s", condition["status"], condition["reason"])
	}
	return conditions
}

func (m *management) apply(t *testing.T, manifests string) {
	t.Helper()
	m.kubectl(t, "kubectl apply --validate=strict -f -", manifests)
}

// kubectl runs commands with kubectl as an administrator.
func (m *management) kubectl(t *testing.T, commands, input string) {
	t.Helper()
	r := m.repository.sub(t)
	command := exec.CommandContext(t.Context(), "sh", "-euc", commands)
	command.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig, "PATH="+filepath.Dir(r.tool("kubectl"))+string(os.PathListSeparator)+os.Getenv("PATH"))
	command.Stdin = strings.NewReader(input)
	r.run(command)
}
