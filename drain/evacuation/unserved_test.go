package evacuation_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	builtin "github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

func TestResolvedOnce(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: uid, Annotations: annotated("a.example.com:5")}}
	active := "a.example.com"
	for name, tc := range map[string]struct {
		change   func(*v1alpha1.Evacuation)
		resolved int
	}{
		"E13: evacuators are resolved for a new Evacuation": {func(*v1alpha1.Evacuation) {}, 1},
		"E37: annotations are not parsed again when the spec lists evacuators": {
			func(e *v1alpha1.Evacuation) { e.Spec.Evacuators = evacuators("a.example.com:5") }, 0,
		},
		"E37: annotations are not parsed again when an evacuator is active":        {func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorClass = &active }, 0},
		"E37: annotations are not parsed again when the eviction has been decided": {func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorCompleted = true }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := evacuation.New(pod, nil, 1800)
			tc.change(e)
			if got := builtin.InputOf(e, pod, v1alpha1.PodTypeDefault, evacuation.Terms{}, noon).ResolvedEvacuators; len(got) != tc.resolved {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestUnservedEvacuators(t *testing.T) {
	const deployment, set = v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassStatefulSet
	const daemonSet, kubelet = v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet
	ownedBy := func(kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "web", UID: "owner", Controller: new(true)}}
	}
	ofDaemonSet, ofSet := ownedBy("DaemonSet"), ownedBy("StatefulSet")
	for name, tc := range map[string]struct {
		owners    []metav1.OwnerReference
		podType   v1alpha1.PodType
		annotated map[string]string
		listed    []string
		active    string
		want      string
	}{
		"E24: a bare Pod annotated for a surge is evicted at once":          {annotated: annotated(deployment + ":10000/controller"), want: "Evict NoEvacuator"},
		"E24: a bare Pod whose Evacuation lists a surge is evicted at once": {listed: []string{deployment + ":100"}, want: "Evict NoEvacuator"},
		"E24: the next evacuator is activated":                              {listed: []string{deployment + ":100", "a:5"}, want: "Activate a"},
		"E24: also if the class is active": {
			listed: []string{deployment + ":100", "a:5"}, active: deployment, want: "Activate a NoEvacuator",
		},
		"E24: a bare Pod does not wait for a class that another user activates": {listed: []string{set + ":100"}, active: set, want: "Evict NoEvacuator"},
		"E24: a Pod whose DaemonSet was deleted without its Pods is evicted": {
			owners: ofDaemonSet, listed: []string{daemonSet + ":10000/controller"}, active: daemonSet, want: "Evict NoEvacuator",
		},
		"R38: a Pod of a DaemonSet waits for its evacuator": {
			owners: ofDaemonSet, podType: v1alpha1.PodTypeDaemonSet, listed: []string{daemonSet + ":10000/controller"}, active: daemonSet,
			want: "AwaitEvacuator " + daemonSet,
		},
		"R38: a Pod of a DaemonSet is not evicted": {
			owners: ofDaemonSet, podType: v1alpha1.PodTypeDaemonSet, listed: []string{set + ":5"}, active: set, want: "Activate " + daemonSet + " NoEvacuator",
		},
		"E30: a Pod of a StatefulSet waits for its evacuator": {owners: ofSet, listed: []string{set + ":10000/controller"}, want: "Activate " + set},
		"R41: a static Pod waits for the node agent": {
			podType: v1alpha1.PodTypeStatic, listed: []string{kubelet + ":5"}, active: kubelet, want: "AwaitEvacuator " + kubelet,
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: uid, Annotations: tc.annotated, OwnerReferences: tc.owners}}
			pod.Spec.NodeName = "one"
			e := evacuation.New(pod, nil, 1800)
			e.CreationTimestamp = metav1.NewTime(noon)
			e.Spec.Evacuators = evacuators(tc.listed...)
			if tc.active != "" {
				e.Status.ActiveEvacuatorClass = &tc.active
			}
			if tc.podType == "" {
				tc.podType = v1alpha1.PodTypeDefault
			}
			action := evacuation.Next(builtin.InputOf(e, pod, tc.podType, evacuation.Terms{}, noon.Add(time.Second)))
			got := string(action.Kind)
			for _, word := range []string{action.Class, action.Reason} {
				if word != "" {
					got += " " + word
				}
			}
			if got != tc.want {
				t.Errorf("got %s (%s), want %s", got, action.Message, tc.want)
			}
		})
	}
}
