package machinedrain_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// progressed returns the contender whose drain began at second 0 and last made progress at a time, which the process has observed since
// another time.
func progressed(c machinedrain.Contender, second, observed int) machinedrain.Contender {
	c = began(c, 0)
	c.Progress = machinedrain.Progress{Last: time.Unix(int64(second), 0), Observed: time.Unix(int64(observed), 0)}
	return c
}

func TestStalledTurn(t *testing.T) {
	for _, test := range []struct {
		name     string
		draining []machinedrain.Contender
		at       int
		stalled  bool
		unknown  bool
	}{
		{"M132: no drain has made progress for a minute", []machinedrain.Contender{progressed(contender("a", 1), 100, 0)}, 160, true, false},
		{"M132: not before", []machinedrain.Contender{progressed(contender("a", 1), 100, 0)}, 159, false, false},
		{
			"M132: another drain makes progress", []machinedrain.Contender{progressed(contender("a", 1), 10, 0), progressed(contender("b", 2), 101, 0)}, 160, false,
			false,
		},
		{"M132: of none of several drains", []machinedrain.Contender{progressed(contender("a", 1), 10, 0), progressed(contender("b", 2), 100, 0)}, 160, true, false},
		{"M132: it is not known of one", []machinedrain.Contender{progressed(contender("a", 1), 10, 0), began(contender("b", 2), 1)}, 1000, false, true},
		{
			"M132: it is not known of one, and another one makes progress",
			[]machinedrain.Contender{progressed(contender("a", 1), 950, 0), began(contender("b", 2), 1)}, 1000, false, false,
		},
		{
			"M132: one has just begun, and was not observed yet",
			[]machinedrain.Contender{progressed(contender("a", 1), 10, 0), began(contender("b", 2), 950)}, 1000, false, false,
		},
		{
			"M132: the process has observed it for less than a minute since an interruption",
			[]machinedrain.Contender{progressed(contender("a", 1), 10, 101)}, 160, false, true,
		},
		{"M132: it makes progress after the interruption", []machinedrain.Contender{progressed(contender("a", 1), 102, 101)}, 160, false, false},
		{"M132: for a minute", []machinedrain.Contender{progressed(contender("a", 1), 10, 100)}, 160, true, false},
		{
			"M132: drains under another limit do not count",
			[]machinedrain.Contender{progressed(contender("a", 1), 10, 0), of("other", progressed(contender("b", 2), 159, 0))}, 160, true, false,
		},
		{"M132: none drains: what the Machine waits for is blocked itself", []machinedrain.Contender{blocked(contender("a", 1))}, 1000, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			turn := machinedrain.TurnOf(contender("z", 9), test.draining, len(test.draining), time.Unix(int64(test.at), 0))
			if turn.Stalled != test.stalled || turn.MayStall != test.unknown {
				t.Errorf("got %+v", turn)
			}
		})
	}
	schedulable, stagedCordon, stagedDrain := &v1alpha1.MachineDrainPolicy{}, inDeletion("one"), inDeletion("one")
	schedulable.Spec.WaitingNodes = v1alpha1.WaitingNodesSchedulable
	stagedCordon.Annotations[v1alpha1.MachineStageAnnotation], stagedDrain.Annotations[v1alpha1.MachineStageAnnotation] = "Cordon", "Drain"
	updated := inDeletion("one")
	updated.Annotations[clusterv1.UpdateInProgressAnnotation], updated.Annotations[v1alpha1.UpdateAllowedAnnotation] = "", "Cordoned/"
	waits, stalls, mayStall := machinedrain.Turn{Limit: 1, Draining: 1}, machinedrain.Turn{Limit: 1, Draining: 1, Stalled: true}, machinedrain.Turn{
		Limit: 1, Draining: 1, MayStall: true,
	}
	cordoned := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: "default/one"}}}
	cordoned.Spec.Stage = v1alpha1.StageCordon
	left := cordoned.DeepCopy()
	left.Annotations[v1alpha1.WaitingNodeAnnotation] = string(v1alpha1.WaitingNodesSchedulable)
	for _, test := range []struct {
		name    string
		turn    machinedrain.Turn
		m       clusterv1.Machine
		policy  *v1alpha1.MachineDrainPolicy
		present *v1alpha1.NodeMaintenance
		want    bool
	}{
		{"M132: cordons the Node of a Machine that waits", waits, inDeletion("one"), &v1alpha1.MachineDrainPolicy{}, nil, false},
		{"M132: leaves it schedulable with waitingNodes Schedulable", waits, inDeletion("one"), schedulable, nil, true},
		{"M132: also while no drain makes progress", stalls, inDeletion("one"), &v1alpha1.MachineDrainPolicy{}, nil, true},
		{"M132: also if no policy selects the Machine any more", stalls, inDeletion("one"), nil, nil, true},
		{"M132: also if its drain in place waits", stalls, stagedDrain, &v1alpha1.MachineDrainPolicy{}, nil, true},
		{"M132: cordons one that its stage annotation requires to be cordoned", stalls, stagedCordon, schedulable, nil, false},
		{"M132: cordons one that may begin", machinedrain.Turn{Limit: 1, Stalled: true}, inDeletion("one"), schedulable, nil, false},
		{"M132: cordons one that was schedulable when a drain makes progress", waits, inDeletion("one"), &v1alpha1.MachineDrainPolicy{}, left, false},
		{"M132: leaves it schedulable while that is not known", mayStall, inDeletion("one"), &v1alpha1.MachineDrainPolicy{}, left, true},
		{"M132: leaves one cordoned while that is not known", mayStall, inDeletion("one"), &v1alpha1.MachineDrainPolicy{}, cordoned, false},
		{"M132: cordons one without a NodeMaintenance while that is not known", mayStall, inDeletion("one"), &v1alpha1.MachineDrainPolicy{}, nil, false},
		{"M132: cordons one that its stage annotation requires to be cordoned, also then", mayStall, stagedCordon, &v1alpha1.MachineDrainPolicy{}, left, false},
		{"M132, M84: cordons one whose update in place may have begun, also if its Machine is deleted", waits, updated, schedulable, nil, false},
		{"M132, M84: cordons such a Node also while no drain makes progress", stalls, updated, &v1alpha1.MachineDrainPolicy{}, nil, false},
		{"M132: leaves it schedulable if no policy selects the Machine, maybe for a moment", waits, inDeletion("one"), nil, left, true},
		{"M132: leaves it cordoned then", stalls, inDeletion("one"), nil, cordoned, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.turn.KeepsSchedulable(&test.m, test.policy, test.present); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	impatient := func(c machinedrain.Contender) machinedrain.Contender {
		c.Patience, c.Limit = 100*time.Second, 1
		return c
	}
	stuck, moves := impatient(progressed(contender("a", 1), 100, 0)), impatient(progressed(contender("b", 2), 150, 0))
	elsewhere := func(c machinedrain.Contender) machinedrain.Contender { return impatient(of("web", c)) }
	for _, test := range []struct {
		name string
		all  []machinedrain.Contender
		at   int
		now  bool
	}{
		{"M133: a drain counts while it makes progress", []machinedrain.Contender{stuck}, 199, false},
		{"M133: it does not count after it has made none for the patience", []machinedrain.Contender{stuck}, 200, true},
		{"M133: only the Machine that has waited for the longest time begins", []machinedrain.Contender{stuck, impatient(contender("b", 2))}, 200, false},
		{"M133: none begins beside two drains", []machinedrain.Contender{stuck, moves}, 200, false},
		{"M133: also if neither makes progress", []machinedrain.Contender{stuck, moves}, 1000, false},
		{"M133: a drain counts whose progress is not known", []machinedrain.Contender{impatient(began(contender("a", 1), 1))}, 1000, false},
		{"M133: it counts for a minute after an interruption", []machinedrain.Contender{impatient(progressed(contender("a", 1), 100, 150))}, 209, false},
		{
			"M133: none begins while a drain exceeds the limit of another policy",
			[]machinedrain.Contender{stuck, elsewhere(inDrain(contender("c", 1))), elsewhere(inDrain(contender("d", 1)))}, 200, false,
		},
		{
			"M133: or is about to, because the Machine has waited longer",
			[]machinedrain.Contender{stuck, elsewhere(progressed(contender("c", 1), 10, 0)), elsewhere(contender("d", 2))}, 200, false,
		},
		{
			"M133: one begins although a Machine of another policy waits for a drain that makes progress",
			[]machinedrain.Contender{stuck, elsewhere(progressed(contender("c", 1), 190, 0)), elsewhere(contender("d", 2))}, 200, true,
		},
		{
			"M133: or for one that has been blocked since",
			[]machinedrain.Contender{stuck, elsewhere(progressed(contender("c", 1), 10, 0)), elsewhere(blocked(contender("d", 2)))}, 200, true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			turn := machinedrain.TurnOf(impatient(contender("z", 9)), test.all, 1, time.Unix(int64(test.at), 0))
			if turn.Now() != test.now {
				t.Errorf("got %+v", turn)
			}
		})
	}
	t.Run("M133: none begins beside a drain that has exceeded the limit of another policy because of a drain whose policy is gone", func(t *testing.T) {
		ofPolicy := func(policy string, c machinedrain.Contender) machinedrain.Contender { return impatient(of(policy, c)) }
		gone := progressed(contender("a", 1), 100, 0)
		all := []machinedrain.Contender{gone, ofPolicy("web", progressed(contender("w", 5), 999, 0))}
		if turn := machinedrain.TurnOf(ofPolicy("db", contender("x", 6)), all, 1, time.Unix(1000, 0)); turn.Now() {
			t.Errorf("got %+v", turn)
		}
	})
	t.Run("M37, M127, M133: while a drain does not count, the oldest Machine begins, and no younger one is overdue", func(t *testing.T) {
		older, younger, at := impatient(contender("b", 2)), within(195, impatient(contender("z", 9))), time.Unix(205, 0)
		for name, others := range map[string][]machinedrain.Contender{
			"alone": {stuck}, "one of another policy, which has waited longer than the younger one, would be next": {
				stuck, elsewhere(progressed(contender("c", 1), 100, 0)), elsewhere(contender("d", 5)),
			},
		} {
			if turn := machinedrain.TurnOf(older, append(others, younger), 1, at); !turn.Now() {
				t.Errorf("%s: the older one: got %+v", name, turn)
			}
			if turn := machinedrain.TurnOf(younger, append(others, older), 1, at); turn.Now() {
				t.Errorf("%s: the younger one begins as well, or before: got %+v", name, turn)
			}
		}
	})
	t.Run("M133: without a patience, a drain always counts", func(t *testing.T) {
		if turn := machinedrain.TurnOf(contender("z", 9), []machinedrain.Contender{progressed(contender("a", 1), 100, 0)}, 1, time.Unix(100000, 0)); turn.Now() {
			t.Errorf("got %+v", turn)
		}
	})
}
