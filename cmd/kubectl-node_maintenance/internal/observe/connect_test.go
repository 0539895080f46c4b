package observe

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
