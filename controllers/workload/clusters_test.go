package workload

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestObjectsThatCannotExist(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	remote, err := client.New(&rest.Config{Host: "https://example.invalid"}, client.Options{Scheme: fakes.Scheme(), Mapper: mapper})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	cluster := types.NamespacedName{Namespace: "fleet", Name: "c"}
	management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
	clusters := NewClusters(management, clustercache.NewFakeClusterCache(remote, cluster), fakes.Scheme(), Limits{}, clock.RealClock{})
	for name, object := range map[string]string{
		"E76: no claim and no Node can have the name .":            ".",
		"E76: no claim and no Node can have the name a/b":          "a/b", // kube-apiserver v1.36.3 accepts Pods and Deployments with this claimName
		"E76: no claim and no Node can have a name of 300 letters": strings.Repeat("a", 300),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			live, err := clusters.UncachedClient(t.Context(), cluster)
			g.Expect(err).NotTo(HaveOccurred())
			err = live.Get(t.Context(), types.NamespacedName{Namespace: "tenant", Name: object}, &corev1.PersistentVolumeClaim{})
			g.Expect(answers.DoesNotExist(err)).To(BeTrue(), "%v", err)
			cached, err := clusters.Client(t.Context(), cluster)
			g.Expect(err).NotTo(HaveOccurred())
			err = cached.Get(t.Context(), types.NamespacedName{Name: object}, &corev1.Node{})
			g.Expect(answers.DoesNotExist(err)).To(BeTrue(), "%v", err)
		})
	}
}
