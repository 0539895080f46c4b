package e2e

import (
	"context"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const ourNamespace = "capnm-system"

var _ = Describe("The installation", Label("short"), func() {
	It("runs the manager as a Pod of the restricted profile, with a read-only root and probes", func(ctx context.Context) {
		namespace := get(ctx, Default, management.client, &corev1.Namespace{ObjectMeta: named("", ourNamespace)})
		Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
		deployment := get(ctx, Default, management.client, &appsv1.Deployment{ObjectMeta: named(ourNamespace, "capnm-controller-manager")})
		Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
		pod := ourPod(ctx, Default)
		container := pod.Spec.Containers[0]
		Expect(*container.SecurityContext.ReadOnlyRootFilesystem).To(BeTrue())
		Expect(container.LivenessProbe).NotTo(BeNil())
		Expect(container.ReadinessProbe).NotTo(BeNil())
		Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue())
		Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	})
})

// What Cluster API's Tilt setup would do with the file, without Tilt: it builds the manager, watches directories and applies a
// kustomization.
var _ = Describe("tilt-provider.yaml", func() {
	It("names the manager, all directories of its packages, and a kustomization that can be applied", func(ctx context.Context) {
		var provider struct {
			Config struct {
				Image           string   `json:"image"`
				Main            string   `json:"go_main"`
				Dependencies    []string `json:"live_reload_deps"`
				KustomizeFolder string   `json:"kustomize_folder"`
			} `json:"config"`
		}
		Expect(yaml.Unmarshal([]byte(read(filepath.Join(root, "tilt-provider.yaml"))), &provider)).To(Succeed())
		config := provider.Config
		for _, path := range config.Dependencies {
			Expect(filepath.Join(root, path)).To(BeAnExistingFile())
		}
		const module = "github.com/capnm/cluster-api-node-maintenance/"
		for pkg := range strings.FieldsSeq(run(ctx, "go", "list", "-C", root, "-deps", config.Main)) {
			if path, ours := strings.CutPrefix(pkg, module); ours {
				Expect(config.Dependencies).To(ContainElement(strings.Split(path, "/")[0]), pkg)
			}
		}
		file := filepath.Join(GinkgoT().TempDir(), "components.yaml")
		run(ctx, tool("kustomize"), "build", filepath.Join(root, config.KustomizeFolder), "--output="+file)
		Expect(read(file)).To(ContainSubstring("image: " + config.Image + "\n"))
		management.shell(ctx, management.kubeconfig, "clusterctl generate yaml --from="+file+" | kubectl apply --dry-run=server -f -")
	})
})

// ourPod returns the Pod of our manager.
func ourPod(ctx context.Context, g Gomega) *corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(management.client.List(ctx, pods, client.InNamespace(ourNamespace), client.MatchingLabels{"control-plane": "controller-manager"})).To(Succeed())
	g.Expect(pods.Items).To(HaveLen(1))
	return &pods.Items[0]
}
