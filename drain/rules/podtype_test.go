package rules_test

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestPodTypeOf(t *testing.T) {
	isController := true
	ownedBy := func(apiVersion, kind string, uid types.UID, controller *bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: apiVersion, Kind: kind, Name: "cni", UID: uid, Controller: controller},
		}}}
	}
	mirror := ownedBy("v1", "Node", "n", &isController)
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	// In this cluster the DaemonSet kube-system/cni has the UID "new"; about "unreadable" nothing is known.
	exists := func(namespace, name string, uid types.UID) (bool, bool) {
		return namespace == "kube-system" && name == "cni" && uid == "new", uid != "unreadable"
	}
	for _, test := range []struct {
		name  string
		pod   *corev1.Pod
		want  v1alpha1.PodType
		known bool
	}{
		{"R22: a mirror pod is Static", mirror, "Static", true},
		{"R22: controlled by a DaemonSet that exists", ownedBy("apps/v1", "DaemonSet", "new", &isController), "DaemonSet", true},
		{"R22: owned, but not controlled", ownedBy("apps/v1", "DaemonSet", "new", nil), "Default", true},
		{"R22: another controller", ownedBy("apps/v1", "ReplicaSet", "new", &isController), "Default", true},
		{"R22: another project's DaemonSet", ownedBy("apps.kruise.io/v1alpha1", "DaemonSet", "unreadable", &isController), "Default", true},
		{"R22: no owner", &corev1.Pod{}, "Default", true},
		{"R22: nonsense", ownedBy("a/b/c", "DaemonSet", "new", &isController), "Default", true},
		{"M8: an orphan, though a DaemonSet bears the name again", ownedBy("apps/v1", "DaemonSet", "old", &isController), "Default", true},
		{"M6: the DaemonSet can't be read", ownedBy("apps/v1", "DaemonSet", "unreadable", &isController), "DaemonSet", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, known := rules.PodTypeOf(test.pod, exists); got != test.want || known != test.known {
				t.Errorf("got %s (known: %v), want %s (known: %v)", got, known, test.want, test.known)
			}
		})
	}
}

func TestFinished(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{
		corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false, "": false,
		corev1.PodSucceeded: true, corev1.PodFailed: true,
	} {
		t.Run("M8: a pod that is "+string(phase), func(t *testing.T) {
			if got := rules.Finished(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestDrainLabel(t *testing.T) {
	type result struct {
		behavior v1alpha1.DrainBehavior
		unknown  string
	}
	for value, want := range map[string]result{
		"skip":            {"Skip", ""},
		"SKIP":            {"Skip", ""},
		"wait-completed":  {"WaitCompleted", ""},
		"waitcompleted":   {"WaitCompleted", ""},
		"WaitCompleted":   {"WaitCompleted", ""},
		"WAIT-COMPLETED":  {"WaitCompleted", ""},
		"wait--completed": {"", "wait--completed"},
		"s-kip":           {"", "s-kip"},
		"true":            {"", "true"},
		"":                {"", `""`},
	} {
		t.Run("M2: "+value, func(t *testing.T) {
			behavior, unknown := rules.DrainLabel(labels{clusterv1.PodDrainLabel: value})
			if got := (result{behavior, unknown}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("M2: no label", func(t *testing.T) {
		if behavior, unknown := rules.DrainLabel(nil); behavior != "" || unknown != "" {
			t.Errorf("got %q, %q", behavior, unknown)
		}
	})
}

func TestRequestedGracePeriod(t *testing.T) { // E22
	if period, seconds := rules.RequestedGracePeriod(&corev1.Pod{}, true); period != time.Second || *seconds != 1 {
		t.Errorf("on an unreachable Node: %s", period)
	}
	if period, _ := rules.RequestedGracePeriod(&corev1.Pod{}, false); period != 30*time.Second {
		t.Errorf("by default: %s", period)
	}
	for _, seconds := range []int64{math.MaxInt64, math.MaxInt64/int64(time.Second) + 1} {
		if period, _ := rules.RequestedGracePeriod(&corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &seconds}}, false); period < time.Hour {
			t.Errorf("E22: a Pod that declares %d seconds: %s", seconds, period)
		}
	}
}
