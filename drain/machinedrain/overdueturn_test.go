package machinedrain_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestOverdueTurn(t *testing.T) {
	t.Run("M37: when a drain ends, no other one begins beside an overdue one whose NodeMaintenance cannot be updated", func(t *testing.T) {
		now := time.Now()
		deleted := func(name string, ago time.Duration) clusterv1.Machine {
			m := inDeletion(name)
			m.DeletionTimestamp, m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(metav1.NewTime(now.Add(-ago))), ptr.To[int32](10)
			return m
		}
		overdue, next := deleted("overdue", 10*time.Second), deleted("next", 11*time.Second)
		next.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](20)
		turnOf := func(m *clusterv1.Machine, draining ...machinedrain.Contender) machinedrain.Turn {
			contenders, _, err := machinedrain.Contenders([]clusterv1.Machine{overdue, next}, time.Now(), func(*clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				return machinedrain.ObservedDrain{Node: &corev1.Node{}}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return machinedrain.TurnOf(machinedrain.ContenderOf(m), append(contenders, draining...), 1, now)
		}
		first := began(machinedrain.Contender{Name: "first"}, 0)
		if turn := turnOf(&next, first); turn.Now() {
			t.Errorf("the next Machine has the turn %v", turn)
		}
		turn := turnOf(&overdue, first)
		if !turn.Overdue {
			t.Fatalf("the overdue Machine has the turn %v", turn)
		}
		machinedrain.ClockOf(&overdue, read(nil), now).WithTurn(turn, &overdue, now).Record(&overdue)
		if turn := turnOf(&next); turn.Now() {
			t.Errorf("the next Machine has the turn %v", turn)
		}
	})
}

func TestTurnThatHasJustBegun(t *testing.T) {
	for name, status := range map[string]v1alpha1.NodeMaintenanceStatus{
		"M26, M37: an overdue Machine does not begin beside a drain whose NodeMaintenance has waited for long in another stage": {},
		"M26, M37: also when the start of the drain is reported": {StageStatuses: []v1alpha1.StageStatus{
			{Name: v1alpha1.StageCordon, StartTimestamp: metav1.NewTime(after(1))}, {Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(after(999))},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			draining, overdue := inDeletion("draining"), inDeletion("overdue")
			draining.DeletionTimestamp, overdue.DeletionTimestamp = ptr.To(metav1.NewTime(after(0))), ptr.To(metav1.NewTime(after(10)))
			overdue.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			maintenance := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(after(1))}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}, Status: status,
			}
			all, _, _ := machinedrain.Contenders([]clusterv1.Machine{draining, overdue}, after(1000), func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				observed := machinedrain.ObservedDrain{Node: &corev1.Node{}}
				if m.Name == "draining" {
					observed.Maintenance = maintenance
				}
				return observed, nil
			})
			if turn := machinedrain.TurnOf(machinedrain.ContenderOf(&overdue), all, 1, after(1000)); turn.Now() {
				t.Errorf("the overdue Machine has the turn %+v", turn)
			}
		})
	}
}

func TestRemovedTimeout(t *testing.T) {
	t.Run("M37: an overdue turn ends when the drain timeout is removed, because nothing else would end it", func(t *testing.T) {
		b, d := inDeletion("b"), inDeletion("d")
		b.Annotations[v1alpha1.DrainStartedAnnotation] = after(100).Format(time.RFC3339) // the drain has not begun: its rules are invalid
		d.DeletionTimestamp = ptr.To(metav1.NewTime(after(10)))
		turnOf := func() machinedrain.Turn {
			all, _, _ := machinedrain.Contenders([]clusterv1.Machine{b, d}, time.Now(), func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				return machinedrain.ObservedDrain{Node: &corev1.Node{}, HasInvalidRules: m.Name == "b"}, nil
			})
			return machinedrain.TurnOf(machinedrain.ContenderOf(&d), all, 1, after(1000))
		}
		b.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
		if turn := turnOf(); turn.Now() {
			t.Errorf("with the timeout: %+v", turn)
		}
		b.Spec.Deletion.NodeDrainTimeoutSeconds = nil
		if turn := turnOf(); !turn.Now() {
			t.Errorf("without the timeout: %+v", turn)
		}
		machinedrain.ClockOf(&b, read(nil), after(1000)).Record(&b)
		b.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
		if deadline := machinedrain.ClockOf(&b, read(nil), after(1000)).DrainDeadline(&b); deadline != nil {
			t.Errorf("the start counts for a timeout that is set later: %s", deadline)
		}
	})
}

func TestVanishedMaintenance(t *testing.T) {
	for _, tc := range []struct {
		name      string
		timeout   int32
		isBlocked bool
		at        int
		want      bool
	}{
		{"M37, M159: a drain without a timeout delays an overdue Machine as one that has not begun", 0, false, 90, false},
		{"M37, M159: it does not count if it cannot begin again, because nothing would end the turn", 0, true, 90, true},
		{"M37, M159: a drain with a timeout counts although it cannot begin again", 300, true, 90, false},
		{"M37, M159: then the Machine is overdue a drain timeout after the start of that drain", 300, true, 110, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vanished, overdue, now := inDeletion("vanished"), inDeletion("overdue"), after(tc.at)
			vanished.DeletionTimestamp, overdue.DeletionTimestamp = ptr.To(metav1.NewTime(after(0))), ptr.To(metav1.NewTime(after(10)))
			vanished.Spec.Deletion.NodeDrainTimeoutSeconds, overdue.Spec.Deletion.NodeDrainTimeoutSeconds = &tc.timeout, ptr.To[int32](60)
			machinedrain.ClockOf(&vanished, read(draining(50)), now).Record(&vanished)
			machinedrain.ClockOf(&vanished, read(nil), now).Record(&vanished)
			all, _, _ := machinedrain.Contenders([]clusterv1.Machine{vanished, overdue}, now, func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				return machinedrain.ObservedDrain{Node: &corev1.Node{}, IsBlocked: tc.isBlocked && m.Name == "vanished"}, nil
			})
			if turn := machinedrain.TurnOf(machinedrain.ContenderOf(&overdue), all, 1, now); turn.Now() != tc.want {
				t.Errorf("the overdue Machine has the turn %+v", turn)
			}
		})
	}
}

func TestSettlesWithoutNodeRef(t *testing.T) {
	now := time.Now()
	created := func(ago time.Duration) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-ago))}}
	}
	for _, tc := range []struct {
		name    string
		present *v1alpha1.NodeMaintenance
		waits   bool
	}{
		{"a Machine without a NodeMaintenance waits", nil, true},
		{"one whose NodeMaintenance others may not have observed waits", created(time.Second), true},
		{"one whose NodeMaintenance is older does not", created(2 * time.Second), false},
		{"one whose workload cluster has a clock that is ahead does not", created(-time.Hour), false},
		{"one that has waited, and whose NodeMaintenance cannot be read, does not", nil, false},
	} {
		t.Run("M128: "+tc.name, func(t *testing.T) {
			m := inDeletion("one")
			if strings.Contains(tc.name, "has waited") {
				m.Annotations[v1alpha1.WaitingForTurnAnnotation] = now.Add(-time.Minute).UTC().Format(time.RFC3339)
			}
			if got := machinedrain.SettlesWithoutNodeRef(&m, tc.present, now); got.IsZero() == tc.waits {
				t.Errorf("got %s", got)
			}
		})
	}
}
