package observe

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestConfined(t *testing.T) {
	for name, config := range map[string]*rest.Config{
		"runs a program":      {ExecProvider: &clientcmdapi.ExecConfig{Command: "sh"}},
		"uses an auth plugin": {AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "x"}},
		"reads a token file":  {BearerTokenFile: "/etc/passwd"},
		"reads a key file":    {TLSClientConfig: rest.TLSClientConfig{KeyFile: "/etc/passwd"}},
		"reads a CA file":     {TLSClientConfig: rest.TLSClientConfig{CAFile: "/etc/passwd"}},
		"reads a certificate": {TLSClientConfig: rest.TLSClientConfig{CertFile: "/etc/passwd"}},
	} {
		t.Run("K4: a kubeconfig from a Secret is not used if it "+name, func(t *testing.T) {
			NewWithT(t).Expect(confined(config, types.NamespacedName{})).NotTo(Succeed())
		})
	}
	t.Run("K4: a kubeconfig from a Secret with embedded credentials is used", func(t *testing.T) {
		NewWithT(t).Expect(confined(&rest.Config{BearerToken: "x"}, types.NamespacedName{})).To(Succeed())
	})
}

func TestTolerate(t *testing.T) {
	t.Run("K4: rejected credentials are not reported as a missing right", func(t *testing.T) {
		g := NewWithT(t)
		c := &Cluster{Name: "Cluster default/prod", gaps: &Gaps{}}
		read, err := c.tolerate(apierrors.NewUnauthorized("expired"), "list", "pods")
		g.Expect(read).To(BeFalse())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.gaps.List()).To(ConsistOf("Cluster default/prod rejects the credentials, which may have expired: pods cannot be read"))
	})
}

func TestWorkload(t *testing.T) {
	t.Run("K33: --request-timeout applies to workload clusters, and a failure is not repeated for each Machine", func(t *testing.T) {
		g := NewWithT(t)
		var requests atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			<-r.Context().Done()
		}))
		defer server.Close()
		defer server.CloseClientConnections()
		file := filepath.Join(t.TempDir(), "kubeconfig")
		content, err := clientcmd.Write(clientcmdapi.Config{
			Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
		c := &Connections{
			Current: &Cluster{Config: &rest.Config{Timeout: 50 * time.Millisecond}}, Gaps: &Gaps{}, override: file,
			workloads: map[types.NamespacedName]*Workload{}, failures: map[types.NamespacedName]error{},
		}
		_, first := c.Workload(t.Context(), types.NamespacedName{Namespace: "default", Name: "prod"})
		g.Expect(first).To(MatchError(ContainSubstring("discovering the API of Cluster default/prod")))
		sent := requests.Load()
		_, second := c.Workload(t.Context(), types.NamespacedName{Namespace: "default", Name: "prod"})
		g.Expect(second).To(MatchError(first))
		g.Expect(requests.Load()).To(Equal(sent))
	})
}
