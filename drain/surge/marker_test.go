package surge

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestTrimDeployment(t *testing.T) {
	for name, tc := range map[string]struct {
		label string
		keeps bool
	}{
		"keeps the label that says to which number a Deployment is scaled back": {newID("uid", time.Now()) + ".1.2", true},
		"drops the label of another Deployment":                                 {newID("another", time.Now()) + ".1.2", false},
		"drops a label without numbers":                                         {newID("uid", time.Now()), false},
		"drops a label with too many replicas":                                  {newID("uid", time.Now()) + ".1.2000", false},
	} {
		t.Run("E63: "+name, func(t *testing.T) {
			m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid", Labels: map[string]string{v1alpha1.SurgingLabel: tc.label}}}
			if TrimDeployment(m); Recorded(m) != tc.keeps {
				t.Errorf("recorded is %t", Recorded(m))
			}
		})
	}
}

func TestBaselineWithoutNames(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Baseline)
		valid  bool
	}{
		"a baseline":                                     {func(*Baseline) {}, true},
		"a Pod without a name cannot be read":            {func(b *Baseline) { b.Pods[0].Name = "" }, false},
		"an autoscaler without a name cannot be read":    {func(b *Baseline) { b.Autoscaler.Name = "" }, false},
		"a baseline that scales the Deployment has none": {func(b *Baseline) { b.Autoscaler = nil }, true},
	} {
		t.Run("E76: "+name, func(t *testing.T) {
			b := &Baseline{
				ID: newID("uid", time.Now()), Deployment: "uid", Replicas: 1, Surged: 2, Pods: []PodRef{{Name: "web-1", UID: "1"}},
				Autoscaler: &AutoscalerBaseline{Name: "web", UID: "2"},
			}
			tc.change(b)
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}}
			SetBaseline(d, b)
			if got, err := BaselineOf(d); (err == nil && got != nil) != tc.valid {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestTrimAutoscaler(t *testing.T) {
	raised := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}}
	markObject(raised, note{Autoscaler: "uid", Deployment: "deployment", Name: "web", Raised: 2}, "")
	for _, tc := range []struct {
		name   string
		change func(*metav1.PartialObjectMetadata)
		target string
	}{
		{name: "keeps its own note", change: func(*metav1.PartialObjectMetadata) {}, target: "web"},
		{name: "drops all other metadata, and unknown fields of the note", target: "web", change: func(m *metav1.PartialObjectMetadata) {
			m.Labels["large"], m.Annotations["large"] = strings.Repeat("x", 1000), strings.Repeat("x", 1000)
			m.Annotations[v1alpha1.SurgeAnnotation] = strings.Replace(m.Annotations[v1alpha1.SurgeAnnotation], "{", `{"large":"`+strings.Repeat("x", 1000)+`",`, 1)
		}},
		{name: "drops the note of another object", change: func(m *metav1.PartialObjectMetadata) { m.UID = "another" }},
		{name: "drops an invalid note", change: func(m *metav1.PartialObjectMetadata) { m.Annotations[v1alpha1.SurgeAnnotation] = "?" }},
		{name: "drops a note with a name that is too long", change: func(m *metav1.PartialObjectMetadata) {
			m.Annotations[v1alpha1.SurgeAnnotation] = strings.Replace(m.Annotations[v1alpha1.SurgeAnnotation], `"web"`, `"`+strings.Repeat("x", 1000)+`"`, 1)
		}},
	} {
		t.Run("E37: "+tc.name, func(t *testing.T) {
			m := &metav1.PartialObjectMetadata{ObjectMeta: *raised.ObjectMeta.DeepCopy()}
			tc.change(m)
			TrimAutoscaler(m)
			if TargetOf(m) != tc.target || Recorded(m) != (tc.target != "") {
				t.Errorf("recorded is %t, for Deployment %q", Recorded(m), TargetOf(m))
			}
			if kept := len(toJSON(m)); kept > 500 {
				t.Errorf("%d bytes are kept", kept)
			}
		})
	}
}
