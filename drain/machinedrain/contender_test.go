package machinedrain_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestContenders(t *testing.T) {
	now := time.Now()
	stuck := machinedrain.Progress{Last: now.Add(-time.Minute), Observed: now.Add(-time.Minute), OnlyTerminates: true}
	for _, test := range []struct {
		name                                                string
		draining, recorded, gone, paused, invalid, held, is bool
		unreachable                                         time.Duration
		notReady                                            bool
		progress                                            machinedrain.Progress
	}{
		{name: "M143: its Node is not ready, and all Pods that are left fail to terminate", draining: true, notReady: true, progress: stuck},
		{name: "M143: its Node is ready", draining: true, progress: stuck, is: true},
		{name: "M143: other Pods are left", draining: true, notReady: true, progress: machinedrain.Progress{Last: stuck.Last, Observed: stuck.Observed}, is: true},
		{name: "M143: one of them has terminated a moment ago", draining: true, notReady: true, progress: machinedrain.Progress{Last: now, Observed: stuck.Observed, OnlyTerminates: true}, is: true},
		{name: "waits", is: true},
		{name: "drains", draining: true, is: true},
		{name: "M26: its Node has been unreachable for five minutes", draining: true, unreachable: 5 * time.Minute},
		{name: "M26: its Node is unreachable, maybe for a moment", draining: true, unreachable: 299 * time.Second, is: true},
		{name: "its Node does not exist", draining: true, gone: true},
		{name: "is paused", paused: true},
		{name: "drains, and was paused then", draining: true, paused: true, is: true},
		{name: "waits for its rules to be fixed", invalid: true, is: true},
		{name: "drains, and its rules are invalid since", draining: true, invalid: true, is: true},
		{name: "M37: is held", held: true},
		{name: "M37: drains, and is held since", draining: true, held: true, is: true},
		{name: "M37: has begun, is held since, and its NodeMaintenance is recreated", recorded: true, held: true, is: true},
		{name: "M37: has begun, was paused then, and its NodeMaintenance is recreated", recorded: true, paused: true, is: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := inDeletion("one")
			m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			if test.paused {
				m.Annotations[clusterv1.PausedAnnotation] = ""
			}
			observed := machinedrain.ObservedDrain{Node: unreachableSince(now, test.unreachable), HasInvalidRules: test.invalid, IsHeld: test.held}
			if test.recorded {
				m.Annotations[v1alpha1.DrainStartedAnnotation] = m.DeletionTimestamp.UTC().Format(time.RFC3339)
			}
			if observed.Progress = test.progress; test.notReady {
				observed.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
			}
			if test.gone {
				observed.Node = nil
			}
			if test.draining {
				observed.Maintenance = &v1alpha1.NodeMaintenance{}
			}
			contenders, _, err := machinedrain.Contenders([]clusterv1.Machine{m}, now, func(*clusterv1.Machine) (machinedrain.ObservedDrain, error) { return observed, nil })
			if err != nil || len(contenders) == 1 != test.is {
				t.Fatalf("Contenders() = %v, %v", contenders, err)
			}
			if test.is && (contenders[0].Draining != (test.draining || test.recorded) || contenders[0].Obstacle == machinedrain.AwaitsRules != test.invalid) {
				t.Errorf("Contenders() = %v", contenders)
			}
		})
	}

	t.Run("M26: all workers count for a percentage, and only those that drain or wait are observed", func(t *testing.T) {
		controlPlane, running, withoutNode := inDeletion("cp"), inDeletion("running"), inDeletion("new")
		controlPlane.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
		running.DeletionTimestamp, withoutNode.Status.NodeRef.Name = nil, "" // it may be known by its provider ID
		var observed []string
		_, workers, err := machinedrain.Contenders([]clusterv1.Machine{controlPlane, running, withoutNode, inDeletion("one")}, time.Now(), func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
			observed = append(observed, m.Name)
			return machinedrain.ObservedDrain{}, nil
		})
		if err != nil || workers != 3 || !slices.Equal(observed, []string{"new", "one"}) {
			t.Errorf("%d workers, observed %v, error %v", workers, observed, err)
		}
	})
}

func TestPlaceOfDrainInPlace(t *testing.T) {
	requested, waits := metav1.Unix(100, 0).UTC().Format(time.RFC3339), metav1.Unix(101, 0).UTC().Format(time.RFC3339)
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        int64
	}{
		"M127: a Machine that waits for the turn of its drain in place keeps its place when it is deleted": {
			map[string]string{v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: requested + "/", v1alpha1.WaitingForTurnAnnotation: waits}, 100,
		},
		"M127: one that was drained in place before has that of its deletion": {
			map[string]string{v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: requested + "/"}, 1000,
		},
		"M107: a copied request of another Machine does not count": {
			map[string]string{v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: requested + "/other", v1alpha1.WaitingForTurnAnnotation: waits}, 1000,
		},
		"M107: nor does one that nothing explains any more": {
			map[string]string{v1alpha1.DrainRequestedAnnotation: requested + "/", v1alpha1.WaitingForTurnAnnotation: waits}, 1000,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := inDeletion("one")
			m.DeletionTimestamp = ptr.To(metav1.Unix(1000, 0))
			maps.Copy(m.Annotations, tc.annotations)
			if got := machinedrain.ContenderOf(&m).Requested.Unix(); got != tc.want {
				t.Errorf("the place of its request at %d", got)
			}
		})
	}
}

func TestMostUnreachable(t *testing.T) {
	now := time.Now()
	node := func(ready corev1.ConditionStatus, ago time.Duration) corev1.Node {
		n := unreachableSince(now, ago)
		n.CreationTimestamp, n.Status.Conditions[0].Status = metav1.NewTime(now.Add(-time.Hour)), ready
		return *n
	}
	lost, reachable, returned := node(corev1.ConditionUnknown, time.Hour), node(corev1.ConditionTrue, time.Hour), node(corev1.ConditionTrue, 299*time.Second)
	created, controlPlane := *returned.DeepCopy(), *reachable.DeepCopy()
	created.CreationTimestamp, controlPlane.Labels = metav1.NewTime(now.Add(-5*time.Minute)), map[string]string{"node-role.kubernetes.io/control-plane": ""}
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		want  bool
	}{
		"one of two is":                               {[]corev1.Node{lost, reachable}, false},
		"two of three are":                            {[]corev1.Node{lost, lost, reachable}, true},
		"the control plane does not count":            {[]corev1.Node{lost, controlPlane}, true},
		"some have just come back, others may follow": {[]corev1.Node{lost, returned, reachable}, true},
		"some were just created":                      {[]corev1.Node{lost, created, reachable}, false},
	} {
		t.Run("M26: "+name, func(t *testing.T) {
			if got := machinedrain.MostUnreachable(tc.nodes, now); got != tc.want {
				t.Errorf("MostUnreachable() = %t", got)
			}
		})
	}
}
