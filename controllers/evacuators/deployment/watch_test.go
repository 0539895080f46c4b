package deployment

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestSurging(t *testing.T) {
	t.Run("E37: keeps less than a kilobyte of each labelled Deployment", func(t *testing.T) {
		g := NewWithT(t)
		kept := 0
		for i := range 200 {
			cached := labelled(fmt.Sprintf("tenant-%d", i))
			cached.Annotations["example.com/large"] = strings.Repeat("x", 1_200_000)
			cached.Annotations[v1alpha1.SurgeAnnotation] = strings.Repeat("x", 100_000)
			cached.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", 100)}}
			kept += size(g, transformed(g, cached))
			g.Expect(surge.Recorded(cached)).To(BeFalse())
		}
		g.Expect(kept).To(BeNumerically("<", 200*1024))
	})
	t.Run("E37: keeps the label where the record is the Deployment's own", func(t *testing.T) {
		g := NewWithT(t)
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-of-web"}}
		surge.SetBaseline(d, &surge.Baseline{Deployment: d.UID, Replicas: 1, Surged: 2, Pods: []surge.PodRef{{Name: "web-0", UID: "web-0"}}})
		own := labelled("web")
		own.Annotations = d.Annotations
		g.Expect(surge.Recorded(transformed(g, own))).To(BeTrue())
		copied := labelled("copy")
		copied.Annotations = d.Annotations
		g.Expect(surge.Recorded(transformed(g, copied))).To(BeFalse())
	})
}

func labelled(name string) *metav1.PartialObjectMetadata {
	m := metadataOf(appsv1.SchemeGroupVersion, "Deployment")
	m.ObjectMeta = metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{v1alpha1.SurgingLabel: ""}, Annotations: map[string]string{},
	}
	return m
}

// transformed returns the metadata of a Deployment that the cache of a connection keeps.
func transformed(g *WithT, m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	var options ctrlcache.ByObject
	for object, each := range Surging() {
		if _, is := object.(*appsv1.Deployment); is {
			options = each
		}
	}
	object, err := options.Transform(m)
	g.Expect(err).NotTo(HaveOccurred())
	return object.(*metav1.PartialObjectMetadata)
}

func size(g *WithT, object any) int {
	encoded, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	return len(encoded)
}
