package assignment

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestFindWithUnknownPods(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name       string
		finalizers []string
		known      bool
	}{
		{"waits for the Pod of an Evacuation", []string{v1alpha1.NodeMaintenanceInstigatorFinalizer}, false},
		{"does not wait for the Pod of an Evacuation that has ended and has a finalizer of another actor", []string{"example.com/audit"}, true},
	} {
		t.Run("E8: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			_ = v1alpha1.AddToScheme(scheme)
			e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Finalizers: tc.finalizers, DeletionTimestamp: new(metav1.NewTime(now))}}
			e.Status.ActiveEvacuatorClass = new(v1alpha1.EvacuatorClassStatefulSet)
			f := Finder{Watched: fake.NewClientBuilder().WithScheme(scheme).WithObjects(e).Build(), Class: v1alpha1.EvacuatorClassStatefulSet, Now: now}
			found, known, err := f.Find(t.Context(), "default", func(*corev1.Pod) bool { return true })
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(BeEmpty())
			g.Expect(known).To(Equal(tc.known))
		})
	}
}
