package progress

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestEvacuated(t *testing.T) {
	t.Run("K24: the evacuated Pods are counted from the start of the drain", func(t *testing.T) {
		g := NewWithT(t)
		var summary v1alpha1.NodeMaintenanceSummary
		for _, step := range []struct{ pending, evacuating, want int32 }{
			{0, 0, 0}, // before the Pods are observed
			{4, 2, 0},
			{4, 2, 0},
			{3, 2, 1},
			{1, 4, 1}, // a Pod that gets an Evacuation is not evacuated yet
			{3, 4, 1}, // Pods are created
			{0, 5, 3},
			{0, 0, 8},
		} {
			now := v1alpha1.NodeMaintenanceSummary{PodsPending: step.pending, PodsEvacuating: step.evacuating}
			now.PodsEvacuated = Evacuated(summary, now)
			g.Expect(now.PodsEvacuated).To(Equal(step.want), "%+v", step)
			summary = now
		}
	})
}

func TestLastProgress(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(1000+second), 0) }
	summary := func(second *int, evacuated int32) (s v1alpha1.NodeMaintenanceSummary) {
		if s.PodsEvacuated = evacuated; second != nil {
			s.LastProgressTime = &metav1.Time{Time: at(*second)}
		}
		return s
	}
	t.Run("R75: counts again when Pods must be drained again", func(t *testing.T) {
		resumed := summary(nil, 3)
		resumed.PodsPending = 1
		if got := LastProgress(summary(ptr.To(10), 3), resumed, Observed{Before: at(10)}, at(100)); !got.Time.Equal(at(100)) {
			t.Errorf("got %s", got)
		}
	})
	for name, tc := range map[string]struct {
		before    *int // the recorded time
		evacuated int32
		observed  Observed
		want      int
	}{
		"R75: counts from the first observation":               {want: 100},
		"R75: continues the record of an earlier manager":      {before: ptr.To(10), want: 10},
		"R75: a Pod has terminated, also while no manager ran": {before: ptr.To(10), evacuated: 1, want: 100},
		"R75: a Pod has completed for which the drain waits": {
			before: ptr.To(10), observed: Observed{Before: at(10), Gone: true}, want: 100,
		},
		"R75: keeps what the status does not have yet":                                      {before: ptr.To(10), observed: Observed{Before: at(40)}, want: 40},
		"R75: an evacuator has reported progress":                                           {before: ptr.To(10), observed: Observed{Reported: at(40)}, want: 40},
		"R75: records no report that is less than 30 s newer":                               {before: ptr.To(10), observed: Observed{Reported: at(39)}, want: 10},
		"R75: believes no report in the future":                                             {before: ptr.To(10), observed: Observed{Reported: at(101)}, want: 10},
		"R75: believes no record in the future, of a manager whose clock was ahead":         {before: ptr.To(5000), want: 100},
		"R75: an old report of another evacuator is no progress after a Pod has terminated": {before: ptr.To(50), observed: Observed{Reported: at(20)}, want: 50},
	} {
		t.Run(name, func(t *testing.T) {
			if got := LastProgress(summary(tc.before, 0), summary(nil, tc.evacuated), tc.observed, at(100)); !got.Time.Equal(at(tc.want)) {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestLeft(t *testing.T) {
	now := time.Unix(1000, 0)
	until := func(second int64) *metav1.Time { return ptr.To(metav1.Unix(second, 0)) }
	for name, tc := range map[string]struct {
		pods []Pod
		left int
		only bool
	}{
		"M143: none is left":                                     {},
		"M143: all have exceeded their grace periods":            {[]Pod{{Deletion: until(990)}, {Deletion: until(900)}, {Stays: true}, {Finished: true}}, 2, true},
		"M143: one is terminating within its grace period":       {[]Pod{{Deletion: until(990)}, {Deletion: until(1010)}}, 2, false},
		"M143: one is not terminating":                           {[]Pod{{Deletion: until(990)}, {}}, 2, false},
		"M143: those that stay on the Node do not have to leave": {[]Pod{{Stays: true}}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if left, only := Left(tc.pods, now); left != tc.left || only != tc.only {
				t.Errorf("got %d, %t", left, only)
			}
		})
	}
}
