package machinedrain_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestDrainStateOf(t *testing.T) {
	for _, tc := range []struct {
		name        string
		status      metav1.ConditionStatus
		observed    int64
		isConfirmed bool
		want        machinedrain.DrainState
		cordoned    string // the reason of the condition Cordoned
		reason      string // of the condition Drained
		hadEnded    bool
	}{
		{"M95: believes a confirmed condition", metav1.ConditionTrue, 2, true, machinedrain.DrainComplete, v1alpha1.ReasonCordoned, "", true},
		{
			"M95: does not believe the condition of another process or connection",
			metav1.ConditionTrue, 2, false, machinedrain.DrainUnconfirmed, v1alpha1.ReasonCordoned, "", true,
		},
		{
			"M95: does not believe the condition of an earlier generation",
			metav1.ConditionTrue, 1, true, machinedrain.DrainUnconfirmed, v1alpha1.ReasonCordoned, "", true,
		},
		{
			"M95: does not wait for a confirmation while Pods must be drained",
			metav1.ConditionFalse, 2, false, machinedrain.DrainInProgress, v1alpha1.ReasonCordoned, "", true,
		},
		{"M110: does not end while the Node cannot be cordoned", metav1.ConditionTrue, 2, true, machinedrain.DrainInProgress, v1alpha1.ReasonCordonFailed, "", true},
		{
			"M94: waits for the first list of the Pods after the drain had ended",
			metav1.ConditionFalse, 2, false, machinedrain.DrainUnconfirmed, v1alpha1.ReasonCordoned, v1alpha1.ReasonPodsNotObserved, true,
		},
		{
			"M94: is in progress during the first list, unless it had ended",
			metav1.ConditionFalse, 2, false, machinedrain.DrainInProgress, v1alpha1.ReasonCordoned, v1alpha1.ReasonPodsNotObserved, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := draining(0)
			m.Generation = 2
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: tc.status, Reason: tc.reason, ObservedGeneration: tc.observed}, {
				Type: v1alpha1.NodeMaintenanceCordoned, Reason: tc.cordoned, Message: "Node one cannot be cordoned",
			}}
			if got := machinedrain.DrainStateOf(m, tc.hadEnded, tc.isConfirmed); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestUnobservedPodsMessage(t *testing.T) {
	pod := func(name string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	}
	for name, tc := range map[string]struct {
		listed   []metav1.PartialObjectMetadata
		observed sets.Set[types.UID]
		want     string
	}{
		"M110: waits for a Pod that the watch has not delivered": {
			[]metav1.PartialObjectMetadata{pod("agent"), pod("web")}, sets.New[types.UID]("agent"), "Waiting for the watch of the Node's Pods to deliver Pod shop/web",
		},
		"M110: waits for all Pods without a confirmation": {
			[]metav1.PartialObjectMetadata{pod("agent"), pod("web")}, nil, "Waiting for the watch of the Node's Pods to deliver Pods shop/agent, shop/web",
		},
		"M110: waits for no Pod that was observed, or that no longer exists": {[]metav1.PartialObjectMetadata{pod("agent")}, sets.New[types.UID]("agent", "web"), ""},
		"M110: waits for nothing on a Node without Pods":                     {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.UnobservedPodsMessage(tc.listed, tc.observed); got != tc.want {
				t.Errorf("got %q", got)
			}
		})
	}
}
