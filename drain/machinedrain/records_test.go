package machinedrain_test

import (
	"maps"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestRecord(t *testing.T) {
	at := func(seconds int) string { return after(seconds).Format(time.RFC3339) }
	for _, tc := range []struct {
		name    string
		machine *clusterv1.Machine
		clock   func(*clusterv1.Machine) machinedrain.Clock
		want    map[string]string
	}{
		{"M15: records the start of the drain", machine(isDeleted, timeouts(30, 0)), func(m *clusterv1.Machine) machinedrain.Clock {
			return machinedrain.ClockOf(m, read(draining(60)), after(100))
		}, map[string]string{v1alpha1.DrainStartedAnnotation: at(60)}},
		{"M15: records nothing without a timeout", machine(isDeleted), func(m *clusterv1.Machine) machinedrain.Clock {
			return machinedrain.ClockOf(m, read(draining(60)), after(100))
		}, nil},
		{
			"M15: records the start of the wait for volumes also if only the drain has a timeout",
			machine(isDeleted, timeouts(30, 0)), func(*clusterv1.Machine) machinedrain.Clock {
				return machinedrain.Clock{Drain: ptr.To(after(60)), Drained: ptr.To(after(70)), Volumes: ptr.To(after(70))}
			}, map[string]string{v1alpha1.DrainStartedAnnotation: at(60), v1alpha1.DrainEndedAnnotation: at(70), v1alpha1.VolumeWaitStartedAnnotation: at(70)},
		},
		{"M92: records that the Machine waits for a turn", machine(isDeleted, timeouts(30, 0)), func(m *clusterv1.Machine) machinedrain.Clock {
			return machinedrain.ClockOf(m, read(nil), after(5)).WithTurn(machinedrain.Turn{Limit: 1, Draining: 1}, m, after(5))
		}, map[string]string{v1alpha1.WaitingForTurnAnnotation: at(5)}},
		{
			"M93: records that a Machine without a timeout waits for a turn: a timeout may be set during an outage",
			machine(isDeleted), func(m *clusterv1.Machine) machinedrain.Clock {
				return machinedrain.ClockOf(m, read(nil), after(5)).WithTurn(machinedrain.Turn{Limit: 1, Draining: 1}, m, after(5))
			}, map[string]string{v1alpha1.WaitingForTurnAnnotation: at(5)},
		},
		{
			"M37, M122: records an overdue turn, which other Machines do not expect, as one that is not used yet",
			machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.WaitingForTurnAnnotation, at(5))), func(m *clusterv1.Machine) machinedrain.Clock {
				return machinedrain.ClockOf(m, read(nil), after(35)).WithTurn(machinedrain.Turn{Limit: 1, Draining: 1, Before: 1, Overdue: true}, m, after(35))
			}, map[string]string{v1alpha1.DrainStartedAnnotation: at(35), v1alpha1.DrainBlockedAnnotation: at(35)},
		},
		{
			"M92: removes the records of waits that are over",
			machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.WaitingForTurnAnnotation, at(5), v1alpha1.DrainBlockedAnnotation, at(6))),
			func(m *clusterv1.Machine) machinedrain.Clock {
				return machinedrain.ClockOf(m, read(draining(60)), after(100))
			}, map[string]string{v1alpha1.DrainStartedAnnotation: at(60)},
		},
		{
			"M92: keeps the record of a block", machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainBlockedAnnotation, at(6))),
			func(m *clusterv1.Machine) machinedrain.Clock {
				return machinedrain.ClockOf(m, unread, after(100))
			}, map[string]string{v1alpha1.DrainBlockedAnnotation: at(6)},
		},
		{
			"M15: removes the end of a drain that is resumed",
			machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainEndedAnnotation, at(-900), v1alpha1.DrainStartedAnnotation, at(-950))),
			func(m *clusterv1.Machine) machinedrain.Clock {
				return machinedrain.ClockOf(m, read(draining(-950)), after(10)).WithResumption(after(10))
			}, map[string]string{v1alpha1.DrainStartedAnnotation: at(10)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := tc.clock(tc.machine)
			before := tc.machine.DeepCopy()
			if changed := clock.Record(tc.machine); changed != !reflect.DeepEqual(before.Annotations, tc.machine.Annotations) {
				t.Errorf("Record returns %t", changed)
			}
			if !maps.Equal(tc.machine.Annotations, tc.want) {
				t.Errorf("got %v, want %v", tc.machine.Annotations, tc.want)
			}
			if clock.Record(tc.machine) {
				t.Error("records it again")
			}
		})
	}
}

func TestCopiedRequest(t *testing.T) {
	old, now := after(-72*3600), after(0)
	for annotation, value := range map[string]string{clusterv1.UpdateInProgressAnnotation: "", v1alpha1.MachineStageAnnotation: string(v1alpha1.StageDrain)} {
		for name, uid := range map[string]string{"another UID": "/other", "no UID, as of an earlier version of the manager": ""} {
			t.Run("M107: a copied request with "+name+" makes no copied records count on a Machine with the annotation "+annotation, func(t *testing.T) {
				m := machine(timeouts(3600, 0), annotated(annotation, value, v1alpha1.UpdateAllowedAnnotation, "Drained"+uid,
					v1alpha1.DrainRequestedAnnotation, old.Format(time.RFC3339)+uid, v1alpha1.DrainStartedAnnotation, old.Format(time.RFC3339)))
				m.UID = "m"
				if machinedrain.IsDraining(m) || machinedrain.RequestedAt(m) != nil || machinedrain.UpdateAllowed(m) {
					t.Error("the copy counts")
				}
				withHook := m.DeepCopy()
				machinedrain.SetHook(withHook)
				if _, kept := withHook.Annotations[v1alpha1.DrainStartedAnnotation]; kept {
					t.Error("the copied start is kept")
				}
				if !machinedrain.RequestDrain(now)(m) || machinedrain.RequestDrain(now)(m) || !machinedrain.RequestedAt(m).Equal(now) || !machinedrain.IsDraining(m) {
					t.Errorf("the Machine's own request is %q", m.Annotations[v1alpha1.DrainRequestedAnnotation])
				}
				for _, change := range []func(*clusterv1.Machine){func(*clusterv1.Machine) {}, isDeleted} {
					change(m)
					if clock := machinedrain.ClockOf(m, unread, now); clock != (machinedrain.Clock{}) {
						t.Errorf("got %+v", clock)
					}
					wanted := machinedrain.Maintenance(machinedrain.Request{Machine: m, Node: &corev1.Node{}})
					if start, found := wanted.Annotations[v1alpha1.DrainStartedAnnotation]; found {
						t.Errorf("the NodeMaintenance counts from %s", start)
					}
				}
			})
		}
	}
}

// Another actor may copy the annotations of a Machine: the template of a MachineSet may have them, from which Cluster API copies them to
// all of its Machines again and again, and so may a backup.
func TestCopiedRecords(t *testing.T) { // M107
	records := map[string]string{
		v1alpha1.DrainStartedAnnotation: "-500", v1alpha1.DrainEndedAnnotation: "-400", v1alpha1.VolumeWaitStartedAnnotation: "-400",
		v1alpha1.DrainBlockedAnnotation: "-450",
	}
	requestedAt := func(m *clusterv1.Machine, second int) *clusterv1.Machine {
		m.Annotations[v1alpha1.DrainRequestedAnnotation] = after(second).Format(time.RFC3339)
		return m
	}
	staged := func(m *clusterv1.Machine) *clusterv1.Machine {
		m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
		return m
	}
	for _, tc := range []struct {
		name    string
		machine *clusterv1.Machine
		own     bool
	}{
		{"records from before the deletion do not count", matrixMachine(records, "deletion", limit, limit), false},
		{"neither do they with a copied request that nothing on the Machine explains", requestedAt(matrixMachine(records, "deletion", limit, limit), -600), false},
		{"records from before the request of a drain in place do not count", matrixMachine(records, "stage", limit, limit), false},
		{"neither do those from before the request of an update in place", matrixMachine(records, "update in place", limit, limit), false},
		{
			"the records of a drain in place count after the deletion of the Machine", staged(requestedAt(matrixMachine(records, "deletion", limit, limit), -600)), true,
		},
		{"records from the second of the request count", requestedAt(matrixMachine(records, "stage", limit, limit), -500), true},
	} {
		t.Run("M107: "+tc.name, func(t *testing.T) {
			clock := machinedrain.ClockOf(tc.machine, unread, after(10))
			if got := clock != (machinedrain.Clock{}); got != tc.own {
				t.Errorf("got %+v", clock)
			}
			policy := &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{MaxParallelDrains: ptr.To(intstr.FromInt32(1))}}
			if got := machinedrain.NeedsTurn(tc.machine, policy, &corev1.Node{}, nil, time.Now()); got == tc.own {
				t.Errorf("needs a turn: %t", got)
			}
			without := tc.machine.DeepCopy() // a NodeMaintenance that continues has the start, one that begins again has not
			delete(without.Annotations, v1alpha1.DrainEndedAnnotation)
			delete(without.Annotations, v1alpha1.DrainBlockedAnnotation)
			request := machinedrain.Request{Cluster: types.NamespacedName{Namespace: "default", Name: "c"}, Machine: without, Node: &corev1.Node{}}
			if _, got := machinedrain.Maintenance(request).Annotations[v1alpha1.DrainStartedAnnotation]; got != tc.own {
				t.Errorf("the NodeMaintenance has the start: %t", got)
			}
			observed := machinedrain.ObservedDrain{Node: &corev1.Node{}}
			tc.machine.Status.NodeRef.Name = "node"
			metav1.SetMetaDataAnnotation(&tc.machine.ObjectMeta, v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner)
			all, _, err := machinedrain.Contenders([]clusterv1.Machine{*tc.machine}, time.Now(), func(*clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				return observed, nil
			})
			if err != nil || len(all) != 1 || (all[0].Standing == machinedrain.HasTurn) != tc.own {
				t.Errorf("contenders %+v, %v", all, err)
			}
		})
	}
}
