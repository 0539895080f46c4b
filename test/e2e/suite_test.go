package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/cluster-api/test/framework"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

const (
	// eventually is long: the specs assert on order and counts, never on seconds.
	eventually = 15 * time.Minute
	pace       = 500 * time.Millisecond
)

var (
	root, artifacts string
	// management is the management cluster of the specs, and created are all that were created.
	management *managementCluster
	created    []*managementCluster
)

func TestE2E(t *testing.T) {
	if os.Getenv("DOCKER_HOST") == "" || os.Getenv("E2E_CACHE") == "" {
		t.Skip("make test-e2e runs it, in the Docker engine of run.sh")
	}
	RegisterFailHandler(Fail)
	ctrl.SetLogger(GinkgoLogr)
	RunSpecs(t, "node-maintenance")
}

var _ = BeforeSuite(func(ctx context.Context) {
	var err error
	root, err = toolchain.Root()
	Expect(err).NotTo(HaveOccurred())
	artifacts = filepath.Join(root, "out", "e2e")
	Expect(os.RemoveAll(artifacts)).To(Succeed())
	Expect(os.MkdirAll(artifacts, 0o755)).To(Succeed())
	management = newManagementCluster(ctx, "management")
})

var _ = JustAfterEach(func(ctx context.Context) {
	if CurrentSpecReport().Failed() {
		for _, m := range created {
			m.dump(ctx)
		}
	}
})

var _ = AfterSuite(func(ctx context.Context) {
	for _, m := range created {
		m.dump(ctx)
		Expect(m.provider.Delete(m.name, m.kubeconfig)).To(Succeed())
	}
})

// scheme has the kinds of Kubernetes, Cluster API and this project.
func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	framework.TryAddDefaultSchemes(s)
	Expect(clientgoscheme.AddToScheme(s)).To(Succeed())
	Expect(v1alpha1.AddToScheme(s)).To(Succeed())
	return s
}

// tool returns the path of a program of hack/tools.
func tool(name string) string {
	GinkgoHelper()
	path, built, err := toolchain.Path(name)
	Expect(err).NotTo(HaveOccurred())
	Expect(built).To(BeTrue(), "make test-e2e builds %s", name)
	return path
}

// run runs a program and returns its standard output.
func run(ctx context.Context, name string, args ...string) string {
	GinkgoHelper()
	return runCommand(exec.CommandContext(ctx, name, args...))
}

func runCommand(command *exec.Cmd) string {
	GinkgoHelper()
	output, err := command.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		Fail(fmt.Sprintf("%s: %s\n%s%s", command, err, output, failed.Stderr))
	}
	Expect(err).NotTo(HaveOccurred(), command.String())
	return string(output)
}

// get reads an object again.
func get[T client.Object](ctx context.Context, g Gomega, c client.Client, object T) T {
	g.Expect(c.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	return object
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}
