package controlplane

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestStored(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := ForTest(t, Options{Name: "stored"})
	maps := func(key string) bool { return key == "/registry/configmaps/default/a" } // the controller-manager creates others
	begin, err := c.StoredRevision(t.Context())
	g.Expect(err).NotTo(HaveOccurred())

	configMaps := kubernetes.NewForConfigOrDie(c.AdminConfig()).CoreV1().ConfigMaps("default")
	created, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(configMaps.Delete(t.Context(), "a", metav1.DeleteOptions{})).To(Succeed())
	g.Expect(c.KillComponent(t.Context(), APIServer)).To(Succeed())

	end, err := c.StoredRevision(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	done := make(chan []Stored)
	go func() {
		versions, err := c.StoredBetween(t.Context(), begin, end, maps)
		if err != nil {
			t.Error(err)
		}
		done <- versions
	}()
	var versions []Stored
	g.Eventually(done, time.Minute).Should(Receive(&versions))
	g.Expect(versions).To(HaveLen(2))
	g.Expect(versions[0].Key).To(Equal("/registry/configmaps/default/a"))
	g.Expect(versions[0].Value).NotTo(BeEmpty())
	g.Expect(created.ResourceVersion).NotTo(BeEmpty())
	g.Expect(versions[1].Value).To(BeNil())
	before, err := c.StoredAt(t.Context(), versions[0].Revision, maps)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(before).To(ContainElement(versions[0]))
}
