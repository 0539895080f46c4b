package observe

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

func TestVolumes(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	claim.Spec.VolumeName = "pv"
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "1"}}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "vol-1"}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data"}
	skipped := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{clusterv1.PodDrainLabel: "skip"}}}
	skipped.Spec.Volumes = []corev1.Volume{{
		Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/csi.example.com^vol-1"}}
	workload := func(funcs interceptor.Funcs) *Workload {
		w := newWorkload(&Cluster{WithWatch: fake.NewClientBuilder().WithObjects(claim, volume).WithInterceptorFuncs(funcs).Build(), gaps: &Gaps{}})
		w.pods["n"] = []corev1.Pod{skipped}
		return w
	}

	t.Run("K1: volumes of skipped Pods need not detach", func(t *testing.T) {
		g := NewWithT(t)
		got, err := workload(interceptor.Funcs{}).Volumes(t.Context(), node, &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.Waiting).To(BeEmpty())
		g.Expect(got.Ignored).To(HaveLen(1))
	})

	t.Run("K1: a volume of an in-tree cloud plugin is matched by the name of its CSI driver", func(t *testing.T) {
		g := NewWithT(t)
		inTree := volume.DeepCopy()
		inTree.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
			AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1"},
		}
		attached := node.DeepCopy()
		attached.Status.VolumesAttached[0].Name = "kubernetes.io/csi/ebs.csi.aws.com^vol-1"
		w := newWorkload(&Cluster{WithWatch: fake.NewClientBuilder().WithObjects(claim, inTree).Build(), gaps: &Gaps{}})
		w.pods["n"] = []corev1.Pod{skipped}
		got, err := w.Volumes(t.Context(), attached, &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.Waiting).To(BeEmpty())
		g.Expect(got.Ignored).To(HaveLen(1))
	})

	t.Run("E76: a claim with a name that no claim can have does not exist", func(t *testing.T) {
		g := NewWithT(t)
		w := workload(interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return errors.Errorf("invalid resource name %q", key.Name) // as client-go
		}})
		w.pods["n"][0].Spec.Volumes = []corev1.Volume{{
			Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a/b"}},
		}}
		got, err := w.Volumes(t.Context(), node, &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.Waiting).To(HaveLen(1))
	})

	t.Run("K73: a Pod with tens of thousands of claims adds few requests, and hides no volume of another Pod", func(t *testing.T) {
		g, reads := NewWithT(t), 0
		w := workload(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			reads++
			return c.Get(ctx, key, o)
		}})
		hostile := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hostile", Labels: skipped.Labels}}
		for i := range 30_000 {
			hostile.Spec.Volumes = append(hostile.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", i)},
			}})
		}
		w.pods["n"] = []corev1.Pod{hostile, skipped}
		got, err := w.Volumes(t.Context(), node, &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.Missing.None()).To(BeTrue())
		g.Expect(got.Ignored).To(HaveLen(1))
		g.Expect(reads).To(BeNumerically("<=", volumes.MaxClaims+1))
	})

	t.Run("K4: nothing is predicted without the right to read volumes", func(t *testing.T) {
		g := NewWithT(t)
		w := workload(interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, key.Name, nil)
		}})
		got, err := w.Volumes(t.Context(), node, &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(BeNil())
		g.Expect(w.gaps.List()).NotTo(BeEmpty())
	})
}
