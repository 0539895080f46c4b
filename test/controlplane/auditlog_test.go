package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestEventThatAKilledServerCutOff(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), auditLogName)
	event := `{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"create","user":{"username":"%s"},"requestObject":{"kind":"Event","apiVersion":"v1"}}`
	g.Expect(os.WriteFile(path, fmt.Appendf(nil, event+"\n"+event[:65]+event+"\n"+event+"\n", "first", "next", "last"), 0o600)).To(Succeed())
	events, err := (&AuditLog{path}).Since(Mark{})
	g.Expect(err).NotTo(HaveOccurred())
	users := make([]string, 0, len(events))
	for _, event := range events {
		users = append(users, event.User)
	}
	g.Expect(users).To(Equal([]string{"first", "next", "last"}))
}

func TestCutOffRequestIsAudited(t *testing.T) {
	t.Parallel()
	cluster := ForTest(t, Options{})
	config := cluster.AdminConfig()
	tlsConfig, err := rest.TLSConfigFor(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, tc := range []struct{ method, verb, subresource, body string }{
		{http.MethodPost, "create", "eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"app","namespace":"default"}}`},
		{http.MethodDelete, "delete", "", `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"app"}}`},
	} {
		t.Run(tc.verb+" pods/"+tc.subresource, func(t *testing.T) {
			g := NewWithT(t)
			var connection net.Conn
			transport := &http.Transport{
				TLSClientConfig:       tlsConfig,
				ForceAttemptHTTP2:     true,
				ExpectContinueTimeout: patience, // the body is sent after that
				DialContext: func(ctx context.Context, network, address string) (_ net.Conn, err error) {
					connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
					return connection, err
				},
			}
			defer transport.CloseIdleConnections()
			mark, err := cluster.Audit().Mark()
			g.Expect(err).NotTo(HaveOccurred())

			isRead := &httptrace.ClientTrace{Got100Continue: func() { _ = connection.Close() }}
			request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), isRead), tc.method,
				strings.TrimSuffix(config.Host+"/api/v1/namespaces/default/pods/app/"+tc.subresource, "/"), strings.NewReader(tc.body))
			g.Expect(err).NotTo(HaveOccurred())
			request.Header = http.Header{"Content-Type": {"application/json"}, "Expect": {"100-continue"}}
			_, err = transport.RoundTrip(request) //nolint:bodyclose // there is no response
			g.Expect(err).To(HaveOccurred())

			g.Eventually(func(g Gomega) {
				events, err := cluster.Audit().Since(mark)
				g.Expect(err).NotTo(HaveOccurred())
				cutOff := events.Verb(tc.verb).Resource("pods", tc.subresource)
				g.Expect(cutOff).To(HaveLen(1))
				g.Expect(cutOff[0].IsCutOff()).To(BeTrue(), "%+v", cutOff[0])
			}, patience).Should(Succeed())
		})
	}
}

func TestAuditHasNoLag(t *testing.T) {
	t.Parallel()
	cluster := ForTest(t, Options{})
	client := clientFor(t, cluster.AdminConfig())
	for worker := range 8 {
		t.Run(fmt.Sprint(worker), func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			for i := range 25 {
				mark, err := cluster.Audit().Mark()
				g.Expect(err).NotTo(HaveOccurred())
				name := fmt.Sprintf("c-%d-%d", worker, i)
				_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				events, err := cluster.Audit().Since(mark)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(events.Verb("create").Resource("configmaps").Named("default", name)).To(HaveLen(1), "the response is here, its event isn't")
			}
		})
	}
}
