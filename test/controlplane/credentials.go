package controlplane

import (
	"net"
	"net/url"
	"strconv"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// AdminUser is the user of AdminConfig.
	AdminUser = "admin"
	// harnessUser is the user of this package. The audit log omits its requests.
	harnessUser   = "controlplane:harness"
	kwokUser      = "kwok"
	systemMasters = "system:masters"
)

// AdminConfig returns a client configuration with all permissions.
func (c *ControlPlane) AdminConfig() *rest.Config {
	return rest.CopyConfig(c.admin)
}

// ConfigFor returns a client configuration for a user in these groups, identified by a client
// certificate. RBAC decides what the user may do. There is no client-side rate limit.
func (c *ControlPlane) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.authority.signClient(user, groups)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:  c.url(),
		QPS:   -1,
		Burst: -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.authority.pem,
			CertData: cert,
			KeyData:  key,
		},
	}, nil
}

// KubeconfigFor returns a kubeconfig for a user in these groups that connects directly to the API
// server.
func (c *ControlPlane) KubeconfigFor(user string, groups ...string) ([]byte, error) {
	return c.kubeconfig(c.url(), user, groups)
}

// ProxiedKubeconfigFor returns a kubeconfig for a user in these groups that connects over the link
// that CutNetwork cuts.
func (c *ControlPlane) ProxiedKubeconfigFor(user string, groups ...string) ([]byte, error) {
	host, port := c.ProxiedHost()
	return c.kubeconfig("https://"+net.JoinHostPort(host, strconv.Itoa(port)), user, groups)
}

func (c *ControlPlane) kubeconfig(server, user string, groups []string) ([]byte, error) {
	cert, key, err := c.authority.signClient(user, groups)
	if err != nil {
		return nil, err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[c.Name()] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.authority.pem}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	context := clientcmdapi.NewContext()
	context.Cluster, context.AuthInfo = c.Name(), user
	config.Contexts[c.Name()] = context
	config.CurrentContext = c.Name()
	content, err := clientcmd.Write(*config)
	return content, errors.Wrapf(err, "writing a kubeconfig for %s", user)
}

// Host returns the address of the API server.
func (c *ControlPlane) Host() (host string, port int) {
	return "127.0.0.1", c.ports.of(APIServer)
}

// ProxiedHost returns the address of the link to the API server that CutNetwork cuts.
func (c *ControlPlane) ProxiedHost() (host string, port int) {
	return "127.0.0.1", c.link.Port()
}

func (c *ControlPlane) url() string {
	host, port := c.Host()
	return (&url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port))}).String()
}

// CAData returns the certificate, in PEM, that signs all certificates of the cluster.
func (c *ControlPlane) CAData() []byte {
	return append([]byte(nil), c.authority.pem...)
}

// SignServerCert issues a serving certificate, e.g. for a webhook server. Without hosts it is
// valid for localhost and 127.0.0.1.
func (c *ControlPlane) SignServerCert(hosts ...string) (certPEM, keyPEM []byte, err error) {
	if len(hosts) == 0 {
		hosts = []string{"localhost", "127.0.0.1"}
	}
	return c.authority.signServer(hosts)
}
