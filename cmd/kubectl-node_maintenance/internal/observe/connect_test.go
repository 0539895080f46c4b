package observe

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
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

func TestFindNode(t *testing.T) {
	machine := func() *Machine {
		m := &Machine{Machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}}
		m.Spec.ClusterName, m.Spec.ProviderID, m.Facts = "prod", "cloud://m", machinedrain.Facts{Machine: m.Machine, ControlPlaneMachines: 1}
		return m
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{ProviderID: "cloud://m"}}
	remote := fakes.Client(node)
	for name, tc := range map[string]struct {
		change func(*Machine)
		answer error
		want   machinedrain.SkipReason
		fails  bool
	}{
		"M128: plan finds the Node of a Machine with a provider ID and no nodeRef, as the manager": {func(*Machine) {}, nil, machinedrain.NotSkipped, false},
		"M128: and says that there is none": {func(m *Machine) { m.Spec.ProviderID = "cloud://other" }, nil, machinedrain.SkipNoNode, false},
		"K2: and does not say so if the Nodes cannot be read": {
			func(*Machine) {}, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil), "", true,
		},
		"M128: and reads no Nodes for a Machine that is not drained": {
			func(m *Machine) { m.Facts.ClusterDeleting = true }, errors.New("read"), machinedrain.SkipClusterDeleting, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, m := NewWithT(t), machine()
			w := newWorkload(&Cluster{gaps: &Gaps{}, WithWatch: interceptor.NewClient(remote, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if tc.answer != nil {
						return tc.answer
					}
					return c.List(ctx, list, options...)
				},
			})})
			c := &Connections{workloads: map[types.NamespacedName]func() (*Workload, error){m.ClusterKey(): func() (*Workload, error) { return w, nil }}}
			tc.change(m)
			err := c.FindNode(t.Context(), m)
			if g.Expect(err != nil).To(Equal(tc.fails)); err == nil {
				g.Expect(machinedrain.Skip(m.Facts)).To(Equal(tc.want))
			}
		})
	}
}

func TestOverride(t *testing.T) {
	machine := &Machine{Machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}}
	machine.Spec.ClusterName, machine.Status.NodeRef.Name = "prod", "n"
	for name, tc := range map[string]struct {
		annotations map[string]string // nil: there is no Node
		overridden  bool
		failure     string
	}{
		"a Node of the Cluster is read": {
			map[string]string{clusterv1.ClusterNamespaceAnnotation: "default", clusterv1.ClusterNameAnnotation: "prod"}, true, "",
		},
		"a Node without annotations is read": {map[string]string{}, true, ""},
		"a Node that does not exist may be that of another file": {
			nil, true, "Node n does not exist in the cluster of --workload-kubeconfig: check that this is Cluster default/prod",
		},
		"a Node of another Cluster is not read": {
			map[string]string{clusterv1.ClusterNamespaceAnnotation: "default", clusterv1.ClusterNameAnnotation: "test"}, true,
			"belongs to Cluster default/test, and the Machine to Cluster default/prod",
		},
		"a Node of a Cluster of the same name in another namespace is not": {
			map[string]string{clusterv1.ClusterNamespaceAnnotation: "other", clusterv1.ClusterNameAnnotation: "prod"}, true, "belongs to Cluster other/prod",
		},
		"without the flag, a Node that does not exist is no error": {nil, false, ""},
	} {
		t.Run("K51: with --workload-kubeconfig, "+name, func(t *testing.T) {
			g, objects := NewWithT(t), fakes.Builder()
			if tc.annotations != nil {
				objects = objects.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: tc.annotations}})
			}
			w := newWorkload(&Cluster{WithWatch: objects.Build(), gaps: &Gaps{}})
			w.isOverridden = tc.overridden
			_, err := w.NodeOf(t.Context(), machine)
			if tc.failure == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(tc.failure)))
			}
		})
	}
	t.Run("K51: --workload-kubeconfig is used for one Cluster, with paths relative to the file", func(t *testing.T) {
		g, dir := NewWithT(t), t.TempDir()
		file := filepath.Join(dir, "kubeconfig")
		content, err := clientcmd.Write(clientcmdapi.Config{
			Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: "https://c", CertificateAuthority: "ca.crt"}},
			AuthInfos: map[string]*clientcmdapi.AuthInfo{"c": {TokenFile: "token"}},
			Contexts:  map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "c"}}, CurrentContext: "c",
		})
		g.Expect(err).NotTo(HaveOccurred())
		for name, text := range map[string][]byte{"kubeconfig": content, "token": []byte("x"), "ca.crt": nil} {
			g.Expect(os.WriteFile(filepath.Join(dir, name), text, 0o600)).To(Succeed())
		}
		c := &Connections{override: file}
		config, err := c.workloadConfig(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.CAFile).To(Equal(filepath.Join(dir, "ca.crt")))
		g.Expect(config.BearerTokenFile).To(Equal(filepath.Join(dir, "token")))
		_, err = c.workloadConfig(t.Context(), types.NamespacedName{Namespace: "default", Name: "b"})
		g.Expect(err).To(MatchError("Cluster default/b is not read: --workload-kubeconfig is used for Cluster default/a"))
		_, err = c.workloadConfig(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"})
		g.Expect(err).NotTo(HaveOccurred())
	})
}

func TestWorkload(t *testing.T) {
	t.Run("K7: a workload cluster that does not answer does not delay others", func(t *testing.T) {
		g, hangs, c := NewWithT(t), make(chan struct{}), &Connections{workloads: map[types.NamespacedName]func() (*Workload, error){}}
		entered, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_, _ = c.once(types.NamespacedName{Name: "hangs"}, func() (*Workload, error) {
				close(entered)
				<-hangs
				return nil, nil
			})
		}()
		<-entered
		w, err := c.once(types.NamespacedName{Name: "answers"}, func() (*Workload, error) { return &Workload{}, nil })
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w).NotTo(BeNil())
		close(hangs)
		<-done
	})
	t.Run("K33: --request-timeout applies to workload clusters, and a failure is not repeated for each Machine", func(t *testing.T) {
		g := NewWithT(t)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
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
			workloads: map[types.NamespacedName]func() (*Workload, error){},
		}
		_, first := c.Workload(t.Context(), types.NamespacedName{Namespace: "default", Name: "prod"})
		g.Expect(first).To(MatchError(ContainSubstring("discovering the API of Cluster default/prod")))
		_, second := c.Workload(t.Context(), types.NamespacedName{Namespace: "default", Name: "prod"})
		g.Expect(second).To(BeIdenticalTo(first), "the result of one attempt")
	})
}
