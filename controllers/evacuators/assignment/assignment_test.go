package assignment

import (
	"cmp"
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestFindWithUnknownPods(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	on := func(node string) map[string]string { return map[string]string{v1alpha1.EvacuationNodeAnnotation: node} }
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		finalizer   string
		active      string // the active evacuator, which has completed, and else that of StatefulSets, which has not
		known       bool
	}{
		{"E8: waits for the Pod of an Evacuation", nil, v1alpha1.NodeMaintenanceInstigatorFinalizer, "", false},
		{"E8: does not wait for the Pod of an Evacuation that has ended and has a finalizer of another actor", nil, "example.com/audit", "", true},
		{"E78: waits for a Pod on a Node that exists", on("n"), v1alpha1.NodeMaintenanceInstigatorFinalizer, "", false},
		{"E78: does not wait for a Pod on a Node that does not exist", on("gone"), v1alpha1.NodeMaintenanceInstigatorFinalizer, "", true},
		{
			"E28: waits for a Pod whose eviction may be in progress", nil, v1alpha1.NodeMaintenanceInstigatorFinalizer, v1alpha1.EvacuatorClassStatefulSet, false,
		},
		{"E87: waits for a Pod that a later evacuator may evacuate", nil, v1alpha1.NodeMaintenanceInstigatorFinalizer, "after.example.com", false},
		{"E87: does not wait for a Pod that an earlier evacuator evacuates", nil, v1alpha1.NodeMaintenanceInstigatorFinalizer, "before.example.com", true},
		{"E78: does not wait for a Pod without a Node", on(""), v1alpha1.NodeMaintenanceInstigatorFinalizer, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web", Annotations: tc.annotations, Finalizers: []string{tc.finalizer}, DeletionTimestamp: new(metav1.NewTime(now)),
			}}
			e.Spec.Evacuators = []v1alpha1.Evacuator{
				{EvacuatorClass: "before.example.com", Priority: 20000}, {EvacuatorClass: "after.example.com", Priority: 100},
				{EvacuatorClass: v1alpha1.EvacuatorClassStatefulSet, Priority: v1alpha1.EvacuatorControllerPriority},
			}
			e.Status.ActiveEvacuatorClass = new(cmp.Or(tc.active, v1alpha1.EvacuatorClassStatefulSet))
			e.Status.ActiveEvacuatorCompleted = tc.active != ""
			watched := fakes.Client(e, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			f := Finder{Watched: watched, Class: v1alpha1.EvacuatorClassStatefulSet, Suspension: suspension(false), Now: now}
			found, known, err := f.Find(t.Context(), "default", func(*corev1.Pod) bool { return true })
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(BeEmpty())
			g.Expect(known).To(Equal(tc.known))
		})
	}
}

func TestFindSuspended(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		suspended, completed bool
		want                 Assignment
	}{
		{name: "a Pod that is drained"},
		{name: "a Pod that only a suspended NodeMaintenance drains", suspended: true, want: Assignment{Suspended: true}},
		{name: "a Pod for which the evacuator has completed", completed: true, want: Assignment{Expired: true}},
		{name: "a Pod for which the evacuator has completed before", suspended: true, completed: true, want: Assignment{Expired: true}},
	} {
		t.Run("M16: finds "+tc.name, func(t *testing.T) {
			g, found := NewWithT(t), find(t, suspension(tc.suspended), func(e *v1alpha1.Evacuation) {
				e.Status.ActiveEvacuatorClass, e.Status.ActiveEvacuatorCompleted = new(v1alpha1.EvacuatorClassStatefulSet), tc.completed
			}, v1alpha1.Evacuator{EvacuatorClass: v1alpha1.EvacuatorClassStatefulSet})
			g.Expect(found).To(HaveLen(1))
			g.Expect(Assignment{Suspended: found[0].Suspended, Expired: found[0].Expired}).To(Equal(tc.want))
		})
	}
}

// TestFindPassed: evacuators of other owners are tried before and after the evacuator of StatefulSets.
func TestFindPassed(t *testing.T) {
	const before, after = "before.example.com", "after.example.com"
	for _, tc := range []struct {
		name, active string
		completed    bool
		withdrawn    bool
		want         []Assignment
	}{
		{name: "does not find a Pod whose earlier evacuator is active", active: before},
		{name: "finds a Pod for which it is active", active: v1alpha1.EvacuatorClassStatefulSet, want: []Assignment{{}}},
		{name: "finds a Pod for which it has completed", active: v1alpha1.EvacuatorClassStatefulSet, completed: true, want: []Assignment{{Passed: true}}},
		{name: "finds a Pod whose later evacuator is active", active: after, want: []Assignment{{Passed: true}}},
		{name: "finds a Pod whose later evacuator has completed", active: after, completed: true, want: []Assignment{{Passed: true, Expired: true}}},
		{name: "does not find a Pod whose Evacuation all instigators have withdrawn", active: after, withdrawn: true},
	} {
		t.Run("E87: "+tc.name, func(t *testing.T) {
			var got []Assignment
			for _, each := range find(t, false, func(e *v1alpha1.Evacuation) {
				e.Status.ActiveEvacuatorClass, e.Status.ActiveEvacuatorCompleted = new(tc.active), tc.completed
				if tc.withdrawn {
					e.Finalizers = nil
				}
			}, v1alpha1.Evacuator{EvacuatorClass: after, Priority: 100},
				v1alpha1.Evacuator{EvacuatorClass: v1alpha1.EvacuatorClassStatefulSet, Priority: v1alpha1.EvacuatorControllerPriority},
				v1alpha1.Evacuator{EvacuatorClass: before, Priority: 20000}) {
				got = append(got, Assignment{Passed: each.Passed, Expired: each.Expired})
			}
			NewWithT(t).Expect(got).To(Equal(tc.want))
		})
	}
}

// find returns the Assignments of the evacuator of StatefulSets for an Evacuation with these evacuators, whose Pod is observed.
func find(t *testing.T, suspended suspension, change func(*v1alpha1.Evacuation), evacuators ...v1alpha1.Evacuator) []Assignment {
	t.Helper()
	g, now := NewWithT(t), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n"}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", Controller: new(true)}}
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "pod-web", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer}, CreationTimestamp: metav1.NewTime(now),
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: "web", UID: "pod"}, Evacuators: evacuators},
	}
	change(e)
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("n")},
	}
	f := Finder{
		Watched:     fakes.Client(e, m, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}),
		Observation: onlyPod{pod: pod}, Class: v1alpha1.EvacuatorClassStatefulSet, Suspension: suspended, Now: now,
	}
	found, known, err := f.Find(t.Context(), "default", func(*corev1.Pod) bool { return true })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(known).To(BeTrue())
	return found
}

// onlyPod is the Observation of one Pod.
type onlyPod struct {
	workload.Observation
	pod *corev1.Pod
}

func (o onlyPod) PodByUID(types.UID) (*corev1.Pod, bool)                       { return o.pod, true }
func (onlyPod) DaemonSetExists(string, string, types.UID) (exists, known bool) { return false, true }
func (onlyPod) NamespaceLabels(string) (map[string]string, bool)               { return nil, true }

// suspension suspends all NodeMaintenances or none.
type suspension bool

func (s suspension) Of(*v1alpha1.NodeMaintenance) bool { return bool(s) }
func (suspension) Err() error                          { return nil }

func TestStoreAll(t *testing.T) {
	evacuations := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "evacuations"}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 409, Reason: metav1.StatusReasonConflict, Message: `admission webhook "w" denied the request: no`,
	}}
	for name, tc := range map[string]struct {
		failure        error
		takes          time.Duration
		tried, refused []string
	}{
		"E92: all reports":                          {nil, time.Minute, []string{"a", "b", "c"}, nil},
		"E92: the others if one is refused":         {apierrors.NewForbidden(evacuations, "a", nil), 0, []string{"a", "b", "c"}, []string{"a"}},
		"E92: also by a webhook that says conflict": {webhook, 0, []string{"a", "b", "c"}, []string{"a"}},
		"E92: none after a refusal that took long":  {apierrors.NewForbidden(evacuations, "a", nil), time.Second, []string{"a"}, []string{"a", "b", "c"}},
		"E92: none after a conflict":                {apierrors.NewConflict(evacuations, "a", nil), 0, []string{"a"}, nil},
		"E92: none after a request without answer":  {context.DeadlineExceeded, 0, []string{"a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g, now, tried := NewWithT(t), clocktesting.NewFakeClock(time.Now()), []string{}
			refused, err := StoreAll(t.Context(), now, []string{"a", "b", "c"}, func(report string) error {
				tried = append(tried, report)
				if report != "a" {
					return nil
				}
				now.Step(tc.takes)
				return tc.failure
			})
			g.Expect(tried).To(Equal(tc.tried))
			g.Expect(refused).To(Equal(tc.refused))
			if tc.failure != nil && tc.refused == nil {
				g.Expect(err).To(MatchError(tc.failure))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}
