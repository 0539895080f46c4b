package workload_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// observed is an Observation of one Pod.
type observed struct {
	workload.Observation
	pod *corev1.Pod
}

func (o observed) PodByUID(uid types.UID) (*corev1.Pod, bool) { return o.pod, o.pod.UID == uid }

func TestPodOf(t *testing.T) {
	t.Run("E10: does not find a Pod by its UID in another Namespace", func(t *testing.T) {
		g := NewWithT(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "web", UID: "uid"}}
		e := &v1alpha1.Evacuation{Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: "web", UID: "uid"}}}
		e.Namespace = "mine"
		_, found := workload.PodOf(observed{pod: pod}, e)
		g.Expect(found).To(BeFalse())
		e.Namespace = "theirs"
		mine, found := workload.PodOf(observed{pod: pod}, e)
		g.Expect(found).To(BeTrue())
		g.Expect(mine).To(BeIdenticalTo(pod))
	})
	t.Run("E35: does not find a Pod by its UID if its name is another one", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid"}}
		e := &v1alpha1.Evacuation{Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: "decoy", UID: "uid"}}}
		e.Namespace = "ns"
		_, found := workload.PodOf(observed{pod: pod}, e)
		NewWithT(t).Expect(found).To(BeFalse())
	})
}

func TestTrim(t *testing.T) {
	t.Run("E37: keeps only the metadata of an Evacuation that decisions need", func(t *testing.T) {
		g := NewWithT(t)
		e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
			Name: "e", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
			Labels: map[string]string{"large": "x"},
			Annotations: map[string]string{
				v1alpha1.EvacuationNodeAnnotation: "one", v1alpha1.EvacuatorsPolicyAnnotation: "BuiltIn", v1alpha1.EvacuateAfterAnnotation: "2026-03-01T12:00:00Z",
				v1alpha1.NodeMaintenanceInstigatorFinalizer: "",
				"large": strings.Repeat("x", 200_000),
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}}
		trimmed, err := workload.Trim(e)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(trimmed).To(Equal(&v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
			Name: "e", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
			Annotations: map[string]string{
				v1alpha1.EvacuationNodeAnnotation: "one", v1alpha1.EvacuatorsPolicyAnnotation: "BuiltIn", v1alpha1.EvacuateAfterAnnotation: "2026-03-01T12:00:00Z",
				v1alpha1.NodeMaintenanceInstigatorFinalizer: "",
			},
		}}))
	})
	t.Run("E37: cuts a long value of an annotation that names an evacuator, which stays invalid", func(t *testing.T) {
		g := NewWithT(t)
		long, valid := v1alpha1.EvacuatorPriorityAnnotationPrefix+"long.example.com", v1alpha1.EvacuatorPriorityAnnotationPrefix+"valid.example.com"
		role := "5/" + strings.Repeat("\U0001F40B", 63)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{long: strings.Repeat("0", 200_000), valid: role}}}
		_, err := workload.TrimPod(pod)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(pod.Annotations[long])).To(BeNumerically("<", 300))
		evacuators, problems := evacuation.Resolve(evacuation.Subject{Annotations: pod.Annotations})
		g.Expect(evacuators).To(ConsistOf(HaveField("Role", HaveValue(Equal(strings.TrimPrefix(role, "5/"))))))
		g.Expect(problems).To(ConsistOf(HaveField("Annotation", long)))
	})
	t.Run("E37: drops an annotation that is longer than the name of a Node", func(t *testing.T) {
		g := NewWithT(t)
		e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: strings.Repeat("x", 254)}}}
		_, err := workload.Trim(e)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(e.Annotations).To(BeEmpty())
	})
}
