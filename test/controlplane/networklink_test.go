package controlplane

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// proxied returns the configuration of a client that uses the link.
func proxied(t *testing.T, cluster *ControlPlane) *rest.Config {
	t.Helper()
	g := NewWithT(t)
	kubeconfig, err := cluster.ProxiedKubeconfigFor("remote", "system:masters")
	g.Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	return config
}

func TestNetworkIsCutAndRestored(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster := ForTest(t, Options{})
	config := proxied(t, cluster)
	remote, direct := clientFor(t, config), clientFor(t, cluster.AdminConfig())

	watch, err := remote.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=made-meanwhile"})
	g.Expect(err).NotTo(HaveOccurred())
	defer watch.Stop()

	cluster.CutNetwork()
	_, err = direct.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "made-meanwhile"}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred(), "only the link is cut, not the API server")
	g.Consistently(watch.ResultChan(), time.Second).ShouldNot(Receive(), "neither events nor the end of the stream may arrive")

	// One request uses the open connection, the other a connection made while the link is cut.
	for _, connection := range []string{"open", "new"} {
		client := remote
		if connection == "new" {
			// A separate transport: identical configurations share one.
			config.ServerName = "localhost"
			client = clientFor(t, config)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		cancel()
		g.Expect(err).To(MatchError(context.DeadlineExceeded), "%s connection", connection)
	}

	cluster.RestoreNetwork()
	g.Eventually(watch.ResultChan(), patience).Should(Receive(), "what was on its way arrives late")
	_, err = remote.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
}

func TestResponsesAreCut(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster := ForTest(t, Options{})
	config := proxied(t, cluster)
	remote, direct := clientFor(t, config), clientFor(t, cluster.AdminConfig())
	_, err := remote.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	cluster.CutResponses()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	response := make(chan error, 1)
	go func() {
		_, err := remote.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "unanswered"}}, metav1.CreateOptions{})
		response <- err
	}()
	g.Eventually(func() error {
		_, err := direct.CoreV1().Namespaces().Get(t.Context(), "unanswered", metav1.GetOptions{})
		return err
	}, patience).Should(Succeed(), "the request is carried out")
	g.Consistently(response, time.Second).ShouldNot(Receive())
	cancel()
	g.Eventually(response, patience).Should(Receive(MatchError(context.Canceled)))

	cluster.RestoreNetwork()
	_, err = remote.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
}
