package e2e

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// workloadCluster is a Cluster of the docker provider, in a separate Namespace of the management cluster.
type workloadCluster struct {
	client.Client        // of the workload cluster
	name          string // of the Cluster, its Namespace, its control plane and its MachineDeployment
	config        *rest.Config
	audit         string // the directory of the audit logs
}

// newWorkloadCluster creates a Cluster and waits until it is available with all Machines.
func newWorkloadCluster(ctx context.Context, name string, controlPlanes, workers int) *workloadCluster {
	GinkgoHelper()
	return newWorkloadClusterOf(ctx, "testdata/cluster.yaml", name, controlPlanes, workers)
}

// newWorkloadClusterOf creates a Cluster of a template, whose nodes have these images in addition to those of the node image.
func newWorkloadClusterOf(ctx context.Context, file, name string, controlPlanes, workers int, preloaded ...string) *workloadCluster {
	GinkgoHelper()
	w := &workloadCluster{name: name, audit: filepath.Join(artifacts, name, "audit")}
	Expect(os.MkdirAll(w.audit, 0o755)).To(Succeed())
	if nodeImage != ownNodeImage {
		preloaded = append(preloaded, "capnm.dev/app:e2e", "capnm.dev/netd:e2e")
	}
	policy := read(filepath.Join(root, "test", "controlplane", "audit-policy.yaml"))
	values := map[string]string{
		"NAME": name, "NAMESPACE": name, "VERSION": kubernetesVersion(ctx, nodeImage), "NODE_IMAGE": nodeImage, "NEXT_NODE_IMAGE": nextNodeImage,
		"PRELOADED": strings.Join(preloaded, ", "), "CONTROL_PLANES": strconv.Itoa(controlPlanes), "WORKERS": strconv.Itoa(workers),
		"AUDIT": w.audit, "AUDIT_POLICY": base64.StdEncoding.EncodeToString([]byte(policy)),
	}
	template := os.Expand(read(file), func(key string) string { return values[key] })
	By("creating the Cluster " + name)
	Expect(management.client.Create(ctx, &corev1.Namespace{ObjectMeta: named("", name)})).To(Succeed())
	Expect(management.proxy.CreateOrUpdate(ctx, []byte(template))).To(Succeed())

	var secret []byte
	Eventually(func() (err error) {
		secret, err = kubeconfig.FromSecret(ctx, management.client, client.ObjectKey{Namespace: name, Name: name})
		return err
	}, eventually, pace).Should(Succeed())
	Expect(os.WriteFile(w.kubeconfig(), secret, 0o600)).To(Succeed())
	var err error
	w.config, err = clientcmd.RESTConfigFromKubeConfig(secret)
	Expect(err).NotTo(HaveOccurred())
	w.config.QPS, w.config.Burst = 100, 200
	Eventually(func() (err error) {
		w.Client, err = client.New(w.config, client.Options{Scheme: scheme()})
		return err
	}, eventually, pace).Should(Succeed())
	Eventually(func(g Gomega) { get(ctx, g, w.Client, &corev1.Namespace{ObjectMeta: named("", "kube-system")}) }, eventually, pace).Should(Succeed())
	w.apply(ctx, strings.ReplaceAll(read("images/manifests/default-cni.yaml"), "{{ .PodSubnet }}", "10.245.0.0/16"))
	w.waitAvailable(ctx, controlPlanes, workers)
	return w
}

// kubernetesVersion returns the version of Kubernetes in the image of a node.
func kubernetesVersion(ctx context.Context, image string) string {
	GinkgoHelper()
	return strings.TrimSpace(run(ctx, "docker", "run", "--rm", "--entrypoint=cat", image, "/kind/version"))
}

// apply applies manifests in the workload cluster.
func (w *workloadCluster) apply(ctx context.Context, manifests string) {
	GinkgoHelper()
	apply(ctx, manifests, "--kubeconfig="+w.kubeconfig())
}

func (w *workloadCluster) kubeconfig() string { return filepath.Join(artifacts, w.name, "kubeconfig") }

// waitHooks waits until a policy has selected all Machines.
func (w *workloadCluster) waitHooks(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, machine := range w.machines(ctx, g) {
			g.Expect(machine.Annotations).To(HaveKey(hook))
		}
	}, eventually, pace).Should(Succeed())
}

// waitAvailable waits until the Cluster is available, with that many Machines and no others.
func (w *workloadCluster) waitAvailable(ctx context.Context, controlPlanes, workers int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(w.cluster(ctx, g).Status.Conditions).To(ContainElement(And(HaveField("Type", clusterv1.ClusterAvailableCondition),
			HaveField("Status", metav1.ConditionTrue))))
		g.Expect(w.controlPlanes(ctx, g)).To(HaveLen(controlPlanes))
		g.Expect(w.workers(ctx, g)).To(HaveLen(workers))
		for _, machine := range w.machines(ctx, g) {
			expectAvailable(g, machine)
		}
	}, eventually, pace).Should(Succeed())
}

func (w *workloadCluster) cluster(ctx context.Context, g Gomega) *clusterv1.Cluster {
	return get(ctx, g, management.client, &clusterv1.Cluster{ObjectMeta: named(w.name, w.name)})
}

func expectAvailable(g Gomega, machine clusterv1.Machine) {
	g.Expect(machine.Status.Conditions).To(ContainElement(And(HaveField("Type", clusterv1.MachineAvailableCondition), HaveField("Status", metav1.ConditionTrue))),
		machine.Name)
}

func (w *workloadCluster) machines(ctx context.Context, g Gomega) []clusterv1.Machine {
	machines := &clusterv1.MachineList{}
	g.Expect(management.client.List(ctx, machines, client.InNamespace(w.name))).To(Succeed())
	return machines.Items
}

func (w *workloadCluster) workers(ctx context.Context, g Gomega) []clusterv1.Machine {
	return slices.DeleteFunc(w.machines(ctx, g), isControlPlane)
}

func (w *workloadCluster) controlPlanes(ctx context.Context, g Gomega) []clusterv1.Machine {
	return slices.DeleteFunc(w.machines(ctx, g), func(m clusterv1.Machine) bool { return !isControlPlane(m) })
}

func isControlPlane(machine clusterv1.Machine) bool {
	_, labelled := machine.Labels[clusterv1.MachineControlPlaneLabel]
	return labelled
}

func (w *workloadCluster) machineDeployment(ctx context.Context) *clusterv1.MachineDeployment {
	return get(ctx, Default, management.client, &clusterv1.MachineDeployment{ObjectMeta: named(w.name, w.name)})
}

func (w *workloadCluster) controlPlane(ctx context.Context) *controlplanev1.KubeadmControlPlane {
	return get(ctx, Default, management.client, &controlplanev1.KubeadmControlPlane{ObjectMeta: named(w.name, w.name)})
}

// events returns the requests that all API servers of the cluster have answered, in the order of their answers.
func (w *workloadCluster) events() controlplane.Events {
	GinkgoHelper()
	logs, err := filepath.Glob(filepath.Join(w.audit, "*", "audit*.log"))
	Expect(err).NotTo(HaveOccurred())
	Expect(logs).NotTo(BeEmpty())
	var all controlplane.Events
	for _, log := range logs {
		events, err := controlplane.OpenAuditLog(log).Since(controlplane.Mark{})
		Expect(err).NotTo(HaveOccurred())
		all = append(all, events...)
	}
	slices.SortStableFunc(all, func(a, b controlplane.Event) int { return a.Answered.Compare(b.Answered) })
	return all
}

// delete deletes the Cluster and waits until it is gone.
func (w *workloadCluster) delete(ctx context.Context) {
	GinkgoHelper()
	cluster := &clusterv1.Cluster{ObjectMeta: named(w.name, w.name)}
	Expect(management.client.Delete(ctx, cluster)).To(Succeed())
	expectGone(ctx, management.client, cluster)
}
