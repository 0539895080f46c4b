package clusterctl

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

const (
	// eventually is long: the tests assert on order and counts, never on seconds.
	eventually = 3 * time.Minute
	pace       = 100 * time.Millisecond
)

// management is a management cluster in which clusterctl or the Cluster API operator has installed everything.
type management struct {
	*controlplane.ControlPlane
	client     client.Client
	kubelet    *fleet.Kubelet
	repository *repository
	kubeconfig string
}

// newManagement starts a management cluster and installs Cluster API's core, an infrastructure provider and ours with clusterctl.
func newManagement(t *testing.T, r *repository, name, version string, links *kwok.Workloads) *management {
	t.Helper()
	m := startManagement(t, r, name)
	m.clusterctl(t, "init", "--bootstrap=-", "--control-plane=-", "--core=cluster-api:"+r.coreVersion,
		"--infrastructure=kwok-test", "--runtime-extension=node-maintenance:"+version)

	core, err := clusterapi.Install(t.Context(), m.ControlPlane, clusterapi.Fast())
	r.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = core.Stop() })
	provider, err := kwok.Start(context.WithoutCancel(t.Context()), kwok.Options{Management: m.AdminConfig(), Workload: links.Find, WithoutCRDs: true})
	r.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = provider.Stop() })
	m.startKubelet(t)
	m.waitAvailable(t, version)
	return m
}

// startManagement starts a management cluster in which nothing is installed.
func startManagement(t *testing.T, r *repository, name string) *management {
	t.Helper()
	m := &management{ControlPlane: controlplane.ForTest(t, controlplane.Options{Name: name}), repository: r}
	m.kubeconfig = filepath.Join(m.Dir(), "admin.kubeconfig")
	var err error
	m.client, err = client.New(m.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	r.Expect(err).NotTo(HaveOccurred())
	return m
}

// startKubelet runs the managers of our Deployment.
func (m *management) startKubelet(t *testing.T) {
	t.Helper()
	m.kubelet = fleet.StartKubelet(m.ControlPlane, m.client, binaryOf)
	t.Cleanup(m.kubelet.Stop)
}

// clusterctl runs the real clusterctl, and returns its standard output.
func (m *management) clusterctl(t *testing.T, args ...string) string {
	t.Helper()
	r := m.repository.sub(t)
	command := exec.CommandContext(t.Context(), r.tool("clusterctl"), append(args, "--kubeconfig="+m.kubeconfig, "--config="+r.config)...)
	command.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "XDG_CONFIG_HOME="+r.dir, "EXP_NODE_AGENT=true")
	return r.run(command)
}

// waitAvailable waits until the Deployment runs only that version.
func (m *management) waitAvailable(t *testing.T, version string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		deployment := &appsv1.Deployment{}
		g.Expect(m.client.Get(t.Context(), deploymentKey, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(imageName + ":" + version))
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
		g.Expect(deployment.Status.Replicas).To(BeEquivalentTo(1))
		running, err := m.kubelet.Running()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(running).To(HaveLen(1))
	}, eventually, pace).Should(Succeed())
}

// scale sets the number of managers, and waits until they are ready.
func (m *management) scale(t *testing.T, replicas int) {
	t.Helper()
	g := NewWithT(t)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: deploymentKey.Namespace, Name: deploymentKey.Name}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	g.Expect(m.client.Patch(t.Context(), deployment, patch)).To(Succeed())
	g.Eventually(m.kubelet.Running, eventually, pace).Should(HaveLen(replicas))
	// A leader releases the lease when it terminates.
	g.Eventually(func(g Gomega) { g.Expect(m.leader(g)).NotTo(BeEmpty()) }, eventually, pace).Should(Succeed())
}

// leader returns the identity that holds the lease.
func (m *management) leader(g Gomega) string {
	lease := &coordinationv1.Lease{}
	key := types.NamespacedName{Namespace: fleet.InstallationNamespace, Name: "controller-leader-election-capnm"}
	g.Expect(m.client.Get(context.Background(), key, lease)).To(Succeed())
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// killLeader kills the leader, which is the only manager that has logged so.
func (m *management) killLeader(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	running, err := m.kubelet.Running()
	g.Expect(err).NotTo(HaveOccurred())
	var leaders []string
	for _, pod := range running {
		if strings.Contains(m.kubelet.Log(pod), "Successfully acquired lease") {
			leaders = append(leaders, pod)
		}
	}
	g.Expect(leaders).To(HaveLen(1))
	m.kubelet.Kill(leaders[0])
}

var deploymentKey = types.NamespacedName{Namespace: fleet.InstallationNamespace, Name: "capnm-controller-manager"}

// binaries are built once for each image. The tag is the version of the program.
var binaries = struct {
	sync.Mutex
	dir string
}{}

func TestMain(m *testing.M) {
	ctrl.SetLogger(klog.Background())
	dir, err := os.MkdirTemp("", "capnm-clusterctl-")
	if err != nil {
		panic(err)
	}
	binaries.dir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func binaryOf(image string) (string, error) {
	binaries.Lock()
	defer binaries.Unlock()
	_, version, _ := strings.Cut(image, ":")
	path := filepath.Join(binaries.dir, "manager-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	output, err := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", path,
		"github.com/capnm/cluster-api-node-maintenance/cmd/manager").CombinedOutput()
	return path, errors.Wrapf(err, "building the manager %s: %s", version, output)
}
