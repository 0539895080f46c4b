package controlplane

import (
	_ "embed"
	"os"
	"path/filepath"

	"github.com/pkg/errors"
	"k8s.io/client-go/util/keyutil"
)

// auditPolicy is the API server's audit policy.
//
//go:embed audit-policy.yaml
var auditPolicy []byte

// schedulerConfig is the configuration of the scheduler.
//
//go:embed scheduler.yaml
var schedulerConfig []byte

// The address range of Services, and the address of the API server in it.
const (
	serviceCIDR      = "10.96.0.0/16"
	apiServerService = "10.96.0.1"
)

// path returns a file in the control plane's directory.
func (c *ControlPlane) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

func (c *ControlPlane) logFile(name string) string { return c.path("log", name+".log") }

// writeFiles writes the files that the components read: certificates, keys, kubeconfigs, the audit
// policy, the scheduler's configuration and kwok's stages.
func (c *ControlPlane) writeFiles() error {
	for _, dir := range []string{"pki", "log", "etcd", "run", "volume-plugins"} {
		if err := os.MkdirAll(c.path(dir), 0o700); err != nil {
			return errors.Wrap(err, "creating a directory of the control plane")
		}
	}
	files := map[string][]byte{
		c.path("pki", "ca.crt"):     c.authority.pem,
		c.path("audit-policy.yaml"): auditPolicy,
		c.path("scheduler.yaml"):    schedulerConfig,
	}
	for _, add := range []func(map[string][]byte) error{c.addKeys, c.addKubeconfigs, c.addStages} {
		if err := add(files); err != nil {
			return err
		}
	}
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return errors.Wrap(err, "writing a file of the control plane")
		}
	}
	return nil
}

func (c *ControlPlane) addKeys(files map[string][]byte) error {
	caKey, err := keyutil.MarshalPrivateKeyToPEM(c.authority.key)
	if err != nil {
		return err
	}
	files[c.path("pki", "ca.key")] = caKey

	// All components share one serving certificate, since they run on this host.
	cert, key, err := c.authority.signServer([]string{
		"127.0.0.1", "localhost", apiServerService,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc",
	})
	if err != nil {
		return err
	}
	files[c.path("pki", "server.crt")], files[c.path("pki", "server.key")] = cert, key

	serviceAccounts, err := newKey()
	if err != nil {
		return err
	}
	if files[c.path("pki", "service-accounts.key")], err = keyutil.MarshalPrivateKeyToPEM(serviceAccounts); err != nil {
		return err
	}
	files[c.path("pki", "service-accounts.pub")], err = encodePublicKey(serviceAccounts)
	return err
}

// addKubeconfigs gives each component the identity for which Kubernetes' default RBAC has roles. kwok
// needs more permissions than a kubelet, since it simulates all Nodes. The administrator's
// kubeconfig is for people; a failed test keeps it beside the logs.
func (c *ControlPlane) addKubeconfigs(files map[string][]byte) error {
	for name, identity := range map[string]struct {
		user   string
		groups []string
	}{
		"admin":                   {AdminUser, []string{systemMasters}},
		string(ControllerManager): {"system:kube-controller-manager", nil},
		string(Scheduler):         {"system:kube-scheduler", nil},
		string(Kwok):              {kwokUser, []string{systemMasters}},
	} {
		content, err := c.KubeconfigFor(identity.user, identity.groups...)
		if err != nil {
			return err
		}
		files[c.path(name+".kubeconfig")] = content
	}
	return nil
}
