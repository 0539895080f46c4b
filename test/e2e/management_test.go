package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/nodeutils"
)

// ownNodeImage is the image that images/build.sh builds.
const ownNodeImage = "capnm.dev/node:e2e"

// nextNodeImage is that of the Kubernetes release to which a spec upgrades a Cluster.
const nextNodeImage = ownNodeImage + "-next"

// nodeImage is the image of all other nodes.
var nodeImage = cmp.Or(os.Getenv("E2E_NODE_IMAGE"), ownNodeImage)

// kindConfiguration is that of the management cluster. Cluster API's docker provider needs the engine's socket.
const kindConfiguration = `
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
  extraMounts:
  - {hostPath: %s, containerPath: /var/run/docker.sock}
`

// managementCluster is a kind cluster in which clusterctl, or the Cluster API operator, has installed Cluster API and this provider.
type managementCluster struct {
	name, kubeconfig string
	provider         *cluster.Provider
	proxy            framework.ClusterProxy
	client           client.Client
	repository       *repository
}

// newManagementCluster creates a kind cluster and installs Cluster API and this provider with clusterctl.
func newManagementCluster(ctx context.Context, name string) *managementCluster {
	GinkgoHelper()
	m := startManagementCluster(ctx, name, slices.Sorted(maps.Keys(images))...)
	By("clusterctl init")
	m.clusterctl(ctx, "init", "--core=cluster-api", "--bootstrap=kubeadm", "--control-plane=kubeadm", "--infrastructure=docker",
		"--runtime-extension=node-maintenance")
	Eventually(func(g Gomega) {
		deployments := &appsv1.DeploymentList{}
		g.Expect(m.client.List(ctx, deployments, client.HasLabels{"cluster.x-k8s.io/provider"})).To(Succeed())
		g.Expect(deployments.Items).To(HaveLen(5))
		for _, deployment := range deployments.Items {
			g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1), deployment.Name)
		}
	}, eventually, pace).Should(Succeed())
	return m
}

// startManagementCluster creates a kind cluster with the image of our manager and other images.
func startManagementCluster(ctx context.Context, name string, images ...string) *managementCluster {
	GinkgoHelper()
	m := &managementCluster{
		name: name, kubeconfig: filepath.Join(artifacts, name+".kubeconfig"), provider: cluster.NewProvider(cluster.ProviderWithDocker()),
		repository: newRepository(ctx),
	}
	By("creating the kind cluster " + name)
	created = append(created, m)
	Expect(m.provider.Create(name, cluster.CreateWithRawConfig(fmt.Appendf(nil, kindConfiguration, strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://"))),
		cluster.CreateWithNodeImage(nodeImage),
		cluster.CreateWithKubeconfigPath(m.kubeconfig), cluster.CreateWithWaitForReady(eventually), cluster.CreateWithDisplayUsage(false),
		cluster.CreateWithRetain(true))).To(Succeed())
	m.proxy = framework.NewClusterProxy(name, m.kubeconfig, scheme())
	m.client = m.proxy.GetClient()

	By("loading the images")
	for _, image := range images {
		m.load(exec.CommandContext(ctx, "docker", "save", image), image)
	}
	m.load(exec.CommandContext(ctx, "cat", filepath.Join(root, "out", "release", "manager-image.oci.tar")), "manager")
	return m
}

// load imports the image that the command writes into the nodes.
func (m *managementCluster) load(command *exec.Cmd, what string) {
	GinkgoHelper()
	nodes, err := m.provider.ListInternalNodes(m.name)
	Expect(err).NotTo(HaveOccurred())
	for _, node := range nodes {
		archive, err := command.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(command.Start()).To(Succeed())
		Expect(nodeutils.LoadImageArchive(node, archive)).To(Succeed(), what)
		Expect(command.Wait()).To(Succeed(), what)
	}
}

// clusterctl runs the real clusterctl.
func (m *managementCluster) clusterctl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	command := exec.CommandContext(ctx, tool("clusterctl"), append(args, "--kubeconfig="+m.kubeconfig)...)
	command.Env = append(os.Environ(), m.environment()...)
	return runCommand(command)
}

// shell runs commands with kubectl and clusterctl in the PATH and with a kubeconfig.
func (m *managementCluster) shell(ctx context.Context, kubeconfig, commands string) string {
	GinkgoHelper()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	command.Env = append(os.Environ(), m.environment()...)
	command.Env = append(command.Env, "KUBECONFIG="+kubeconfig, "PATH="+filepath.Dir(tool("kubectl"))+":"+filepath.Dir(tool("clusterctl"))+":"+os.Getenv("PATH"))
	return runCommand(command)
}

// environment configures clusterctl.
func (m *managementCluster) environment() []string {
	return []string{
		"CLUSTERCTL_DISABLE_VERSIONCHECK=true", "EXP_NODE_AGENT=true", "CLUSTER_TOPOLOGY=true", "EXP_RUNTIME_SDK=true", "EXP_IN_PLACE_UPDATES=true",
		"XDG_CONFIG_HOME=" + m.repository.dir,
	}
}

// apply applies manifests in a Namespace.
func (m *managementCluster) apply(ctx context.Context, namespace, manifests string) {
	GinkgoHelper()
	apply(ctx, manifests, "--kubeconfig="+m.kubeconfig, "--namespace="+namespace)
}

func apply(ctx context.Context, manifests string, args ...string) {
	GinkgoHelper()
	command := exec.CommandContext(ctx, tool("kubectl"), append(args, "apply", "-f", "-")...)
	command.Stdin = strings.NewReader(manifests)
	runCommand(command)
}

// dump writes the objects of the management cluster and the logs of its nodes, which contain those of all managers, to the artifacts.
func (m *managementCluster) dump(ctx context.Context) {
	dir := filepath.Join(artifacts, m.name)
	_ = m.provider.CollectLogs(m.name, dir)
	output, _ := exec.CommandContext(ctx, tool("kubectl"), "--kubeconfig="+m.kubeconfig, "get", "-A", "-o", "yaml",
		"clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,machinedrainpolicies,machinedrainrules,"+
			"machinepools,machinehealthchecks,deployments,pods").CombinedOutput()
	_ = os.WriteFile(filepath.Join(dir, "objects.yaml"), output, 0o600)
}
