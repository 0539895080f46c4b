package evacuation_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	builtin "github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

// limited allows only these evacuators, and bounds their progress deadline if deadline is not 0.
func (g *given) limited(deadline time.Duration, list ...string) *given {
	g.Limits = &evacuation.Limits{BuiltIn: evacuators(list...), ProgressDeadline: deadline}
	return g
}

func TestNextLimitsEvacuators(t *testing.T) {
	const statefulSet, daemonset = v1alpha1.EvacuatorClassStatefulSet, v1alpha1.EvacuatorClassDaemonSet
	runNext(t, []nextTest{
		{"E39: evicts the Pod when no evacuator is built in", anEvacuation("a:2", "b:1").limited(0), "Evict EvacuatorNotAllowed"},
		{
			"E39: replaces an active evacuator that is not built in, regardless of its progress",
			anEvacuation("a:2", "b:1").turnOf("a", time.Minute).at(time.Minute).limited(0), "Evict EvacuatorNotAllowed",
		},
		{
			"E39: activates the built-in evacuator first",
			anEvacuation("a:2", statefulSet+":1", "b:0").limited(0, statefulSet+":1"), "Activate " + statefulSet + " until 30m0s",
		},
		{
			"E39: activates the built-in evacuator after the one that it interrupts",
			anEvacuation("a:2", statefulSet+":1").turnOf("a", 0).limited(0, statefulSet+":1"), "Activate " + statefulSet + " until 30m0s EvacuatorNotAllowed",
		},
		{
			"E39: does not activate a built-in evacuator again",
			anEvacuation(statefulSet+":2", "a:1").turnOf("a", 0).limited(0, statefulSet+":2"), "Evict EvacuatorNotAllowed",
		},
		{
			"E39: evicts the Pod when the built-in evacuator has completed, although others are left",
			anEvacuation(statefulSet+":2", "a:1").turnOf(statefulSet, 0).completed().limited(0, statefulSet+":2"), "Evict EvacuatorCompleted",
		},
		{"E39: does not activate a built-in evacuator that does not serve the Pod", anEvacuation(statefulSet + ":2").limited(0), "Evict EvacuatorNotAllowed"},
		{
			"E39: the progress deadline of the NodeMaintenance bounds that of the Evacuation",
			withDeadline(21600, anEvacuation(statefulSet+":1").turnOf(statefulSet, 0).limited(10*time.Minute, statefulSet+":1")),
			"AwaitEvacuator " + statefulSet + " until 10m0s",
		},
		{
			"E39: the progress deadline of the NodeMaintenance does not prolong that of the Evacuation",
			withDeadline(600, anEvacuation(statefulSet+":1").limited(time.Hour, statefulSet+":1")), "Activate " + statefulSet + " until 10m0s",
		},
		{
			"E39: activates the evacuator of a DaemonSet although the spec does not list it",
			anEvacuation("a:2").of(daemonSet).limited(0, daemonset+":1"), "Activate " + daemonset + " until 30m0s",
		},
		{
			"E39: activates the evacuator of a DaemonSet after another evacuator",
			anEvacuation("a:2").turnOf("a", 0).of(daemonSet).limited(0, daemonset+":1"), "Activate " + daemonset + " until 30m0s EvacuatorNotAllowed",
		},
		{
			"E39: waits for the evacuator of a DaemonSet",
			anEvacuation("a:2").turnOf(daemonset, 0).of(daemonSet).limited(0, daemonset+":1"), "AwaitEvacuator " + daemonset + " until 30m0s",
		},
		{
			"E39: waits for an interrupted evacuator again when the limit is removed",
			anEvacuation("a:2").turnOf("a", 0).evicting("EvacuatorNotAllowed", "x").at(time.Minute), "AwaitEvacuator a until 30m0s",
		},
	})
}

func TestLimits(t *testing.T) {
	ofStatefulSet := podNamed("db-0")
	ofStatefulSet.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", Controller: ptr.To(true)}}
	builtInOnly := evacuation.Terms{BuiltInOnly: true, ProgressDeadline: time.Hour}
	for _, test := range []struct {
		name    string
		terms   evacuation.Terms
		askedBy string
		pod     *corev1.Pod
		podType v1alpha1.PodType
		want    string
	}{
		{"E39: no limit without BuiltIn", evacuation.Terms{}, ours, podNamed("a"), v1alpha1.PodTypeDefault, "none"},
		{"E39: no limit for an Evacuation without a NodeMaintenance as instigator", builtInOnly, theirs, podNamed("a"), v1alpha1.PodTypeDefault, "none"},
		{"E39: a Pod without a controller has no built-in evacuator", builtInOnly, ours, podNamed("a"), v1alpha1.PodTypeDefault, "[] 1h0m0s"},
		{"E39: a Pod of a StatefulSet has a built-in evacuator", builtInOnly, ours, ofStatefulSet, v1alpha1.PodTypeDefault, "[statefulset.apps.k8s.io] 1h0m0s"},
		{"E39: a Pod of a DaemonSet has a built-in evacuator", builtInOnly, ours, podNamed("a"), daemonSet, "[daemonset.apps.k8s.io] 1h0m0s"},
		{"E39: the evacuator of a static Pod is the agent on its Node", builtInOnly, ours, podNamed("a"), static, "[kubelet.k8s.io] 1h0m0s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, got := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{test.askedBy}}}, "none"
			if limits := builtin.InputOf(e, test.pod, test.podType, test.terms, noon).Limits; limits != nil {
				classes := []string{}
				for _, evacuator := range limits.BuiltIn {
					classes = append(classes, evacuator.EvacuatorClass)
				}
				got = fmt.Sprint(classes, " ", limits.ProgressDeadline)
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestTermsLimitEvacuators(t *testing.T) {
	builtIn := func(seconds int32) func(*v1alpha1.NodeMaintenance) {
		return func(m *v1alpha1.NodeMaintenance) {
			m.Spec.Evacuation.Evacuators, m.Spec.Evacuation.ProgressDeadlineSeconds = v1alpha1.EvacuatorsBuiltIn, seconds
		}
	}
	anyFor := func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.ProgressDeadlineSeconds = 600 }
	all := []v1alpha1.NodeMaintenance{drain(anyFor, "one"), drain(builtIn(3600), "one"), drain(builtIn(1800), "one"), drain(builtIn(1200), "two")}
	one := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	for range 4 { // in any order
		all = slices.Concat(all[1:], all[:1])
		terms := evacuation.DrainersOf(all, nil).On(one).Combined()
		if !terms.BuiltInOnly || terms.ProgressDeadline != 30*time.Minute {
			t.Errorf("E39: BuiltIn takes precedence, with the shortest deadline: got %+v", terms)
		}
	}
	if terms := evacuation.DrainersOf(all[:0], nil).On(one).Combined(); terms.BuiltInOnly {
		t.Errorf("E39: a limit without a drain: got %+v", terms)
	}
}
