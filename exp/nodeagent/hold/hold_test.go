package hold_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
)

// observed returns a Node N1 whose static Pod default/web is a drain target and has an Evacuation.
func observed(changes ...func(*hold.Observed)) hold.Observed {
	o := hold.Observed{
		Node: "N1", Known: true,
		Targets:   []v1alpha1.DrainTarget{{PodType: v1alpha1.PodTypeStatic, PodPriority: 7000}},
		Manifests: []hold.Manifest{{File: "web.yaml", Namespace: "default", Name: "web", Priority: 7000, GracePeriod: time.Minute}},
		Evacuations: []v1alpha1.Evacuation{{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: "N1"},
				Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
			},
			Spec:   v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: "web-n1"}},
			Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: ptr.To(v1alpha1.EvacuatorClassKubelet)},
		}},
	}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func record(moved bool) func(*hold.Observed) {
	return func(o *hold.Observed) {
		o.Records = []hold.Record{{File: "web.yaml", Namespace: "default", Name: "web", Moved: moved}}
	}
}

func noManifest(o *hold.Observed) { o.Manifests = nil }
func noTargets(o *hold.Observed)  { o.Targets = nil }

func TestDecide(t *testing.T) {
	type counts struct{ hold, finish, release, reappeared int }
	evacuation := func(change func(*v1alpha1.Evacuation)) func(*hold.Observed) {
		return func(o *hold.Observed) { change(&o.Evacuations[0]) }
	}
	for name, test := range map[string]struct {
		o    hold.Observed
		want counts
	}{
		"S9: holds the manifest of a drain target while the agent is the active evacuator": {observed(), counts{hold: 1}},
		"S9: does not hold a manifest without an Evacuation":                               {observed(func(o *hold.Observed) { o.Evacuations = nil }), counts{}},
		"S9: does not hold a Pod with a higher priority than the targets": {
			observed(func(o *hold.Observed) { o.Manifests[0].Priority = 7001 }), counts{},
		},
		"S9: does not hold a manifest while another evacuator is active": {
			observed(evacuation(func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorClass = ptr.To("example.com") })), counts{},
		},
		"S9: does not hold a manifest while no evacuator is active": {
			observed(evacuation(func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorClass = nil })), counts{},
		},
		"S9: ignores the Evacuation of another Node": {
			observed(evacuation(func(e *v1alpha1.Evacuation) { e.Annotations[v1alpha1.EvacuationNodeAnnotation] = "n2" })), counts{},
		},
		"S9: ignores an Evacuation without a NodeMaintenance as instigator": {observed(evacuation(func(e *v1alpha1.Evacuation) { e.Finalizers = nil })), counts{}},
		"S9: ignores the Evacuation of another Pod": {
			observed(evacuation(func(e *v1alpha1.Evacuation) { e.Spec.PodRef.Name = "web-2-n1" })), counts{},
		},
		"S9: ignores the Evacuation of a Pod in another namespace": {observed(evacuation(func(e *v1alpha1.Evacuation) { e.Namespace = "other" })), counts{}},

		"S10: holds the manifest during the maintenance":                  {observed(noManifest, record(true)), counts{}},
		"S10: moves a manifest whose move was interrupted by a power cut": {observed(record(false)), counts{finish: 1}},
		"S10: releases the manifest after the maintenance":                {observed(noTargets, noManifest, record(true)), counts{release: 1}},
		"S10: releases a manifest that has not moved":                     {observed(noTargets, record(false)), counts{release: 1}},
		"S10: releases nothing before the Node has been observed": {
			observed(noTargets, noManifest, record(true), func(o *hold.Observed) { o.Known = false }), counts{},
		},
		"S10: does not move a manifest that reappears": {observed(record(true)), counts{reappeared: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			a := hold.Decide(test.o)
			if got := (counts{len(a.Hold), len(a.Finish), len(a.Release), len(a.Reappeared)}); got != test.want {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestReport(t *testing.T) {
	t.Run("S9: reports progress once, as R39 requires of evacuators", func(t *testing.T) {
		o := observed()
		o.Cause = "NodeMaintenance kernel drains Node N1 (new kernel)"
		now := time.Date(2026, 1, 1, 12, 0, 0, 500, time.UTC)
		h := hold.Decide(o).Hold[0]
		e := h.Evacuation
		if !h.Report(now) || h.Report(now) {
			t.Error("Report does not change the status exactly once")
		}
		if !strings.HasPrefix(e.Status.Message, o.Cause+". The kubelet terminates the static Pod: the node agent holds its manifest web.yaml") {
			t.Errorf("message: %s", e.Status.Message)
		}
		if e.Status.ActiveEvacuatorCompleted || !e.Status.ExpectedEvacuationFinishTime.Time.Equal(now.Truncate(time.Second).Add(time.Minute)) ||
			e.Status.EvacuationProgressTimestamp == nil {
			t.Errorf("%+v", e.Status)
		}
	})
	t.Run("S9: repeats a report that the API server has not received", func(t *testing.T) {
		o := observed()
		for range 2 {
			if !hold.Decide(o).Hold[0].Report(time.Now()) {
				t.Error("the manifest would be held without a report")
			}
		}
	})
}
