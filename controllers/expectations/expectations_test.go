package expectations

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func withoutLabels(object any) (any, error) {
	object.(*corev1.Node).Labels = nil
	return object, nil
}

func TestTrimmedObjects(t *testing.T) {
	t.Run("E37: keeps of a written object only what the cache keeps of a watched one", func(t *testing.T) {
		g := NewWithT(t)
		cluster, nodes := types.NamespacedName{Namespace: "fleet", Name: "a"}, New[*corev1.Node](t.Context(), withoutLabels)
		written := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid", ResourceVersion: "10", Labels: map[string]string{"large": "x"}}}
		nodes.RecordWritten(cluster, written)
		g.Expect(written.Labels).NotTo(BeEmpty())
		observed := written.DeepCopy()
		observed.ResourceVersion = "9"
		latest, _ := nodes.Latest(cluster, observed)
		g.Expect(latest.ResourceVersion).To(Equal("10"))
		g.Expect(latest.Labels).To(BeEmpty())
	})
}

func TestObjects(t *testing.T) {
	node := func(uid types.UID, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: uid, ResourceVersion: version}}
	}
	finalized := func(version string) *corev1.Node {
		n := node("uid", version)
		n.Finalizers = []string{"example.com/instigator"}
		return n
	}
	cluster, other := types.NamespacedName{Namespace: "fleet", Name: "a"}, types.NamespacedName{Namespace: "fleet", Name: "b"}
	for name, tc := range map[string]struct {
		written []string
		deleted bool

		cluster  types.NamespacedName
		observed *corev1.Node
		latest   string
		exists   bool // despite deleted
	}{
		"an object that was not written":        {cluster: cluster, observed: node("uid", "9"), latest: "9"},
		"a written object while the watch lags": {written: []string{"10"}, cluster: cluster, observed: node("uid", "9"), latest: "10"},
		"an object that was written by another actor": {
			written: []string{"10"}, cluster: cluster, observed: node("uid", "11"), latest: "11",
		},
		"the later one of two writes":           {written: []string{"10", "8"}, cluster: cluster, observed: node("uid", "7"), latest: "10"},
		"an object with the same name":          {written: []string{"10"}, cluster: cluster, observed: node("another", "9"), latest: "9"},
		"an object of another workload cluster": {written: []string{"10"}, cluster: other, observed: node("uid", "9"), latest: "9"},
		"a deleted object":                      {deleted: true, written: []string{"10"}, cluster: cluster, observed: node("uid", "9"), latest: "9"},
		"E49: an object whose deletion waits for a finalizer of another actor": {
			deleted: true, cluster: cluster, observed: finalized("9"), latest: "9", exists: true,
		},
		"E49: the next written version of that object": {
			deleted: true, written: []string{"10"}, cluster: cluster, observed: finalized("9"), latest: "10", exists: true,
		},
		"an object whose last finalizer was removed": {deleted: true, cluster: cluster, observed: finalized("8"), latest: "8"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			nodes := New[*corev1.Node](t.Context(), withoutLabels)
			if tc.deleted {
				nodes.RecordDeleted(cluster, node("uid", "8"))
			}
			for _, version := range tc.written {
				written := node("uid", version)
				written.Finalizers = tc.observed.Finalizers
				nodes.RecordWritten(cluster, written)
			}
			latest, deleted := nodes.Latest(tc.cluster, tc.observed)
			g.Expect(latest.ResourceVersion).To(Equal(tc.latest))
			g.Expect(deleted).To(Equal(tc.deleted && !tc.exists))
		})
	}
}
