// Package e2e runs the provider on kind, with Cluster API's test framework and its docker infrastructure provider. It needs Docker.
// README.md describes how to run it. It has not been run yet.
package e2e

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/bootstrap"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	ctrl "sigs.k8s.io/controller-runtime"
)

var (
	configPath, artifacts string

	e2eConfig        *clusterctl.E2EConfig
	clusterctlConfig string
	kind             bootstrap.ClusterProvider
	management       framework.ClusterProxy
)

func init() {
	flag.StringVar(&configPath, "e2e.config", "config/docker.yaml", "the configuration of the suite")
	flag.StringVar(&artifacts, "e2e.artifacts", "_artifacts", "directory for logs and the repository of clusterctl")
}

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	ctrl.SetLogger(GinkgoLogr)
	RunSpecs(t, "node-maintenance")
}

var _ = BeforeSuite(func(ctx context.Context) {
	var err error
	artifacts, err = filepath.Abs(artifacts)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(artifacts, 0o750)).To(Succeed())
	e2eConfig = clusterctl.LoadE2EConfig(ctx, clusterctl.LoadE2EConfigInput{ConfigPath: configPath})
	clusterctlConfig = clusterctl.CreateRepository(ctx, clusterctl.CreateRepositoryInput{
		E2EConfig: e2eConfig, RepositoryFolder: filepath.Join(artifacts, "repository"),
	})
	kind = bootstrap.CreateKindBootstrapClusterAndLoadImages(ctx, bootstrap.CreateKindBootstrapClusterAndLoadImagesInput{
		Name: e2eConfig.ManagementClusterName, RequiresDockerSock: e2eConfig.HasDockerProvider(), Images: e2eConfig.Images,
		KubernetesVersion: e2eConfig.MustGetVariable("KUBERNETES_VERSION"), LogFolder: filepath.Join(artifacts, "kind"),
	})
	management = framework.NewClusterProxy("management", kind.GetKubeconfigPath(), newScheme())
	clusterctl.InitManagementClusterAndWatchControllerLogs(ctx, clusterctl.InitManagementClusterAndWatchControllerLogsInput{
		ClusterProxy: management, ClusterctlConfigPath: clusterctlConfig, LogFolder: filepath.Join(artifacts, "management"),
		InfrastructureProviders: e2eConfig.InfrastructureProviders(), RuntimeExtensionProviders: e2eConfig.RuntimeExtensionProviders(),
	}, e2eConfig.GetIntervals("default", "wait-controllers")...)
})

var _ = AfterSuite(func(ctx context.Context) {
	if management != nil {
		management.Dispose(ctx)
	}
	if kind != nil {
		kind.Dispose(ctx)
	}
})

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	framework.TryAddDefaultSchemes(scheme)
	return scheme
}
