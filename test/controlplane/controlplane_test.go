package controlplane

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// patience limits every wait for an expected condition.
const patience = 2 * time.Minute

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return client
}

func TestSeveralAtOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var clusters [2]*ControlPlane
	var starting sync.WaitGroup
	for i, options := range []Options{{Name: "management"}, {Name: "workload", Scheduler: true, Kwok: true}} {
		starting.Go(func() {
			begin := time.Now()
			clusters[i] = ForTest(t, options)
			t.Logf("%s started in %s", options.Name, time.Since(begin).Round(time.Millisecond))
		})
	}
	starting.Wait()

	for _, cluster := range clusters {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "of-" + cluster.Name()}}
		_, err := clientFor(t, cluster.AdminConfig()).CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := clientFor(t, clusters[0].AdminConfig()).CoreV1().Namespaces().Get(t.Context(), "of-workload", metav1.GetOptions{})
	g.Expect(err).To(HaveOccurred(), "the clusters share data")

	other := clusters[1].AdminConfig()
	other.Host = clusters[0].AdminConfig().Host
	_, err = clientFor(t, other).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).To(HaveOccurred(), "a cluster accepts another's credentials")

	dir := clusters[0].Dir()
	g.Expect(clusters[0].Stop()).To(Succeed())
	g.Expect(dir).NotTo(BeADirectory())
	g.Expect(clusters[0].Stop()).To(Succeed(), "stopping twice")
}

func TestComponentsStopAndStart(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster := ForTest(t, Options{})
	namespaces := clientFor(t, cluster.AdminConfig()).CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lasting"}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	before, err := cluster.Audit().Mark()
	g.Expect(err).NotTo(HaveOccurred())

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	g.Expect(cluster.StopComponent(ctx, APIServer)).To(Succeed())
	_, err = namespaces.Get(ctx, "lasting", metav1.GetOptions{})
	g.Expect(err).To(HaveOccurred())
	g.Expect(cluster.StopComponent(ctx, APIServer)).NotTo(Succeed(), "it is stopped already")

	g.Expect(cluster.KillComponent(ctx, Etcd)).To(Succeed())
	g.Expect(cluster.StartExited(ctx)).To(BeEmpty(), "both were stopped")
	g.Expect(cluster.StartComponent(ctx, Etcd)).To(Succeed())
	g.Expect(cluster.StartComponent(ctx, APIServer)).To(Succeed())
	g.Expect(cluster.StartComponent(ctx, APIServer)).NotTo(Succeed(), "it is running already")
	g.Expect(cluster.SignalComponent(ControllerManager, syscall.SIGKILL)).To(Succeed())
	g.Eventually(func() ([]Component, error) { return cluster.StartExited(ctx) }).WithContext(ctx).Should(Equal([]Component{ControllerManager}))
	g.Expect(cluster.StartExited(ctx)).To(BeEmpty(), "it runs again")
	_, err = namespaces.Get(ctx, "lasting", metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	events, err := cluster.Audit().Since(before)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(events.By(AdminUser).Verb("get").Resource("namespaces").Named("lasting", "lasting").Succeeded()).To(HaveLen(1), events.String())
}
