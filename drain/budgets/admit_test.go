package budgets_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// TestDisruptions evicts one Pod, and checks whether that uses a disruption: whether a second Pod of the same kind would be evicted with
// it.
func TestDisruptions(t *testing.T) {
	full := budget("web", healthy(2, 3, 2), allows(0))
	free, disrupts := false, true
	for _, test := range []struct {
		name string
		pdbs []*pdb
		pod  budgets.Candidate
		want bool
	}{
		{"E18: evicts a Pod without a budget", nil, pod("p"), free},
		{"E18: uses the disruption that a budget allows", []*pdb{budget("web")}, pod("p"), disrupts},
		{"E18: ignores a budget of another namespace", []*pdb{budget("web", allows(0), inNamespace("other"))}, pod("p"), free},
		{"E18: ignores a budget for other Pods", []*pdb{full}, pod("p", labelled(labels{"app": "db"})), free},
		{"E18: evicts a Pod that has succeeded", []*pdb{full}, pod("p", inPhase(corev1.PodSucceeded)), free},
		{"E18: evicts a Pod that has failed", []*pdb{full}, pod("p", inPhase(corev1.PodFailed)), free},
		{"E18: evicts a Pod that is pending", []*pdb{full}, pod("p", inPhase(corev1.PodPending)), free},
		{"E15: a Pod that is terminating needs no budget", []*pdb{full}, pod("p", terminating), free},
		{"E20: a nil selector selects nothing", []*pdb{budget("web", allows(0), covers(nil))}, pod("p"), free},
		{"E20: an empty selector selects the namespace", []*pdb{budget("web", covers(&metav1.LabelSelector{}))}, pod("p", labelled(nil)), disrupts},
		{"E21: evicts a Pod that is not ready while enough others are", []*pdb{full}, pod("p", notReady), free},
		{"E21: evicts a Pod that is not ready with AlwaysAllow", []*pdb{budget("web", healthy(0, 3, 2), unready(policyv1.AlwaysAllow))}, pod("p", notReady), free},
		{"E21: AlwaysAllow does not depend on the status", []*pdb{budget("web", allows(0), unready(policyv1.AlwaysAllow), behind)}, pod("p", notReady), free},
		{
			"E21: a Pod that is not ready uses a disruption if too few others are ready",
			[]*pdb{budget("web", healthy(1, 3, 2), allows(1))}, pod("p", notReady), disrupts,
		},
		{"E21: IfHealthyBudget is the default", []*pdb{budget("web", healthy(2, 3, 2), unready(policyv1.IfHealthyBudget))}, pod("p", notReady), free},
		{"E20: 2000 unconfirmed evictions are tolerated", []*pdb{budget("web", disrupted(2000))}, pod("p"), disrupts},
	} {
		t.Run(test.name, func(t *testing.T) {
			second := test.pod
			second.Pod.UID, second.Pod.Name = "second", "second"
			admitted, waiting := budgets.NewIndex(test.pdbs, nil).Admit([]budgets.Candidate{test.pod, second})
			if len(admitted) == 0 || admitted[0].Pod.Name != "p" {
				t.Fatalf("waits: %+v", waiting[0])
			}
			if got := len(waiting) == 1; got != test.want {
				t.Errorf("uses a disruption: %v, want %v", got, test.want)
			}
			if test.want && admitted[0].Budget == nil {
				t.Error("the budget is missing")
			}
		})
	}
}

func TestReserved(t *testing.T) {
	inFlight := pod("a")
	inFlight.InFlight = true
	for name, test := range map[string]struct {
		allowed int32
		want    bool
	}{
		"E52, M96: a Pod may still be evicted when the eviction of another one, which uses the disruption, is refused": {1, true},
		"E52, M96: a Pod whose budget allows no disruption waits, whatever becomes of other evictions":                 {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, waiting := budgets.NewIndex([]*pdb{budget("web", allows(test.allowed))}, nil).Admit([]budgets.Candidate{inFlight, pod("b")})
			if len(waiting) != 1 || waiting[0].Reserved != test.want {
				t.Errorf("waiting: %+v", waiting)
			}
		})
	}
}

// says is the reason and the message that a test expects.
type says struct {
	reason  budgets.Reason
	message string
}

func web(message string) string { return "Waiting for PodDisruptionBudget default/web: " + message }

const (
	many         = "More than one PodDisruptionBudget selects this Pod, so Kubernetes cannot evict it: "
	notUpdated   = "the disruption controller has not updated its status yet"
	uncontrolled = "PodDisruptionBudget default/web selects only Pods without a controller, for which Kubernetes supports only an integer minAvailable; it " +
		"never allows a disruption"
)

var waitingPods = []struct {
	name  string
	pdbs  []*pdb
	stale bool
	pod   budgets.Candidate
	want  says
}{
	{"E18: a budget that allows no disruption", []*pdb{budget("web", healthy(198, 200, 198))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("198 healthy Pods required")}},
	{"E18: a budget that never allows a disruption", []*pdb{budget("web", healthy(1, 1, 1), wants("1", ""))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("1 healthy Pod required; it never allows a disruption (minAvailable: 1)")}},
	{"E18: more than one budget", []*pdb{budget("web"), budget("all", covers(&metav1.LabelSelector{}))}, false, pod("p"),
		says{budgets.MultipleBudgets, many + "default/all, default/web"}},
	{"E18: many budgets", []*pdb{budget("e"), budget("d"), budget("c"), budget("b"), budget("a")}, false, pod("p"),
		says{budgets.MultipleBudgets, many + "default/a, default/b, default/c and 2 more"}},
	{
		"E18: more than one budget of a Pod that is not ready",
		[]*pdb{budget("a", unready(policyv1.AlwaysAllow)), budget("b", unready(policyv1.AlwaysAllow))}, false, pod("p", notReady),
		says{budgets.MultipleBudgets, many + "default/a, default/b"},
	},
	{"E20: a generation that is not observed", []*pdb{budget("web", behind)}, false, pod("p"),
		says{budgets.BudgetNotObserved, web(notUpdated)}},
	{"E20: a status that does not include our own eviction", []*pdb{budget("web")}, true, pod("p"),
		says{budgets.BudgetNotObserved, web(notUpdated)}},
	{"E20: such a status, for a Pod that is not ready", []*pdb{budget("web")}, true, pod("p", notReady),
		says{budgets.BudgetNotObserved, web(notUpdated)}},
	{"E20: a negative number of disruptions", []*pdb{budget("web", allows(-1))}, false, pod("p"),
		says{budgets.BudgetNotObserved, web(notUpdated)}},
	{"E20: too many unconfirmed evictions", []*pdb{budget("web", disrupted(2001))}, false, pod("p"),
		says{budgets.BudgetNotObserved, web(notUpdated)}},
	{
		"E85: a budget that is not computed", []*pdb{budget("web", allows(0), condition(policyv1.SyncFailedReason, "found no controllers for pod \"x\""))}, false,
		pod("p"),
		says{budgets.BudgetSyncFailed, web("the disruption controller cannot compute it: found no controllers for pod \"x\"")},
	},
	{"E85: a budget that is neither computed nor observed", []*pdb{budget("web", behind, condition(policyv1.SyncFailedReason, ""))}, false, pod("p"),
		says{budgets.BudgetSyncFailed, web("the disruption controller cannot compute it")}},
	{
		"E85: a tenant writes the status",
		[]*pdb{budget("web", allows(0), condition(policyv1.SyncFailedReason, "\x1b[2J\u202e a\n\nb "+strings.Repeat("c", 30_000)))}, false, pod("p"),
		says{budgets.BudgetSyncFailed, web("the disruption controller cannot compute it: [2J a b " + strings.Repeat("c", 244) + "…")},
	},
	{
		"E85: the budget never allows a disruption, either",
		[]*pdb{budget("web", healthy(1, 1, 1), wants("1", ""), condition(policyv1.SyncFailedReason, strings.Repeat("c", 300)))}, false, pod("p"),
		says{
			budgets.BudgetSyncFailed,
			web("the disruption controller cannot compute it: " + strings.Repeat("c", 255) + "…; it never allows a disruption (minAvailable: 1)"),
		},
	},
	{"E20: a condition with another reason", []*pdb{budget("web", healthy(2, 3, 2), condition(policyv1.InsufficientPodsReason, ""))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("2 healthy Pods required")}},
	{"E20: an invalid selector", []*pdb{budget("web", invalid)}, false, pod("p"),
		says{budgets.BudgetUnreadable, web("its selector is invalid")}},
	{"E20: an invalid selector beside a budget that allows a disruption", []*pdb{budget("a"), budget("web", invalid)}, false, pod("p"),
		says{budgets.BudgetUnreadable, web("its selector is invalid")}},
	{"E21: a Pod that is not ready", []*pdb{budget("web", healthy(3, 5, 4))}, false, pod("p", notReady),
		says{budgets.BlockedByUnhealthyPods, web("this Pod is not ready; 4 healthy Pods required")}},
	{"E21: other Pods that are not ready", []*pdb{budget("web", healthy(3, 5, 4))}, false, pod("p"),
		says{budgets.BlockedByUnhealthyPods, web("some of its Pods are not ready; 4 healthy Pods required")}},
	{"E21: a Pod that is not ready under a budget that requires none", []*pdb{budget("web", healthy(0, 5, 0))}, false, pod("p", notReady),
		says{budgets.BlockedByUnhealthyPods, web("this Pod is not ready; 0 healthy Pods required")}},
	{"E21: too few Pods, all of them ready", []*pdb{budget("web", healthy(3, 3, 5), wants("5", ""))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("5 healthy Pods required; it never allows a disruption (minAvailable: 5)")}},
	{"E20: Pods without a controller and maxUnavailable", []*pdb{budget("web", healthy(2, 0, 0), allows(0), wants("", "1"))}, false, pod("p", bare),
		says{budgets.BudgetExhausted, uncontrolled}},
	{"E20: Pods without a controller and a percentage", []*pdb{budget("web", healthy(2, 0, 0), allows(0), wants("50%", ""))}, false, pod("p", bare),
		says{budgets.BudgetExhausted, uncontrolled}},
	{"E20: Pods without a controller that are not ready", []*pdb{budget("web", healthy(0, 0, 0), wants("", "1"))}, false, pod("p", bare, notReady),
		says{budgets.BlockedByUnhealthyPods, uncontrolled}},
	{"E20: Pods without a controller and an integer minAvailable", []*pdb{budget("web", healthy(2, 2, 2), wants("2", ""))}, false, pod("p", bare),
		says{budgets.BudgetExhausted, web("2 healthy Pods required; it never allows a disruption (minAvailable: 2)")}},
}

func TestIsReported(t *testing.T) {
	failed := string(budgets.BudgetSyncFailed)
	waiting := func(of *pdb) budgets.Waiting {
		_, waiting := budgets.NewIndex([]*pdb{of}, nil).Admit([]budgets.Candidate{pod("p")})
		return waiting[0]
	}
	first := waiting(budget("web", allows(0), condition(policyv1.SyncFailedReason, "found no controllers for pod \"a\"")))
	another := waiting(budget("web", allows(0), condition(policyv1.SyncFailedReason, "found no controllers for pod \"b\"")))
	for _, tc := range []struct {
		name            string
		waiting         budgets.Waiting
		reason, message string
		want            bool
	}{
		{"E85: keeps the error of one Pod when the controller reports that of another one", another, failed, first.Message, true},
		{"E85: reports it for another budget", waiting(budget("all", allows(0), condition(policyv1.SyncFailedReason, "oh"))), failed, first.Message, false},
		{"E85: reports it after another reason", another, string(budgets.BudgetExhausted), first.Message, false},
		{"E85: reports another reason after it", waiting(budget("web", allows(0))), failed, first.Message, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.waiting.IsReported(tc.reason, tc.message); got != tc.want {
				t.Error(got)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	for _, test := range waitingPods {
		t.Run(test.name, func(t *testing.T) {
			admitted, waiting := budgets.NewIndex(test.pdbs, always(test.stale)).Admit([]budgets.Candidate{test.pod})
			if len(admitted) > 0 {
				t.Fatal("the Pod is evicted")
			}
			if got := (says{waiting[0].Reason, waiting[0].Message}); got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if waiting[0].Stale != test.stale {
				t.Errorf("stale: %v", waiting[0].Stale)
			}
		})
	}
}

func TestDisruptionsAreShared(t *testing.T) {
	index := budgets.NewIndex([]*pdb{budget("web", allows(2))}, nil)
	admitted, waiting := index.Admit([]budgets.Candidate{pod("a"), pod("b"), pod("a"), pod("c"), pod("unready", notReady), pod("db", labelled(nil))})
	if got := namesOf(admitted); !reflect.DeepEqual(got, []string{"a", "b", "unready", "db"}) {
		t.Errorf("E18: the first candidates use the disruptions, the others need none: got %v", got)
	}
	if len(waiting) != 1 || waiting[0].Pod.Name != "c" || waiting[0].Reason != budgets.BudgetExhausted || waiting[0].Budget != "default/web" {
		t.Errorf("E18: the others wait: got %+v", waiting)
	}
	if again, _ := index.Admit([]budgets.Candidate{pod("c")}); len(again) != 1 {
		t.Error("an index does not record what it admitted")
	}
}

func TestInFlightEvictions(t *testing.T) {
	inFlight := func(c budgets.Candidate) budgets.Candidate {
		c.InFlight = true
		return c
	}
	for _, test := range []struct {
		name       string
		allowed    int32
		candidates []budgets.Candidate
		want       []string
	}{
		{"E18: the disruption of an in-flight eviction is not available to others", 1, []budgets.Candidate{pod("a"), inFlight(pod("slow"))}, nil},
		{"E18: the remaining disruptions are", 2, []budgets.Candidate{pod("a"), pod("b"), inFlight(pod("slow"))}, []string{"a"}},
		{"E18: a Pod is not evicted twice", 2, []budgets.Candidate{inFlight(pod("slow")), pod("slow")}, nil},
		{"E18: a Pod that needs no disruption uses none", 1, []budgets.Candidate{pod("a"), inFlight(pod("slow", inPhase(corev1.PodPending)))}, []string{"a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			admitted, waiting := budgets.NewIndex([]*pdb{budget("web", allows(test.allowed))}, nil).Admit(test.candidates)
			if got := namesOf(admitted); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			for _, each := range waiting {
				if each.InFlight {
					t.Errorf("%s waits, and its eviction is in flight", each.Pod.Name)
				}
			}
		})
	}
}

func TestMessageIsStable(t *testing.T) {
	message := func(with ...func(*pdb)) string {
		_, waiting := budgets.NewIndex([]*pdb{budget("web", with...)}, nil).Admit([]budgets.Candidate{pod("a"), pod("b")})
		return waiting[len(waiting)-1].Message
	}
	if a, b := message(healthy(198, 200, 198)), message(healthy(199, 200, 198)); a != b {
		t.Errorf("R36: the message changes with the numbers: %q, %q", a, b)
	}
}

func namesOf(admitted []budgets.Admitted) (names []string) {
	for _, a := range admitted {
		names = append(names, a.Pod.Name)
	}
	return names
}

// TestUnreadyPodsAreDeleted tests unhealthyBudget: Override.
func TestUnreadyPodsAreDeleted(t *testing.T) {
	none := budget("web", healthy(2, 3, 3), wants("", "0"))
	for _, test := range []struct {
		name  string
		pdbs  []*pdb
		stale bool
		pod   budgets.Candidate
		want  string
	}{
		{"E21: deletes a Pod that is not ready if its budget can never allow a disruption", []*pdb{none}, false, pod("p", notReady), "deleted"},
		{"E21: deletes a required single replica that is not ready", []*pdb{budget("web", healthy(0, 1, 1), wants("1", ""))}, false, pod("p", notReady), "deleted"},
		{"E21: does not delete a ready Pod", []*pdb{none}, false, pod("p"), "waits"},
		{
			"E21: does not delete if the budget allows a disruption when other Pods become ready",
			[]*pdb{budget("web", healthy(1, 3, 2))}, false, pod("p", notReady), "waits",
		},
		{"E21: evicts if the API server allows it", []*pdb{budget("web", healthy(2, 3, 2), wants("", "0"))}, false, pod("p", notReady), "evicted"},
		{
			"E21: does not delete while the status of the budget is outdated",
			[]*pdb{budget("web", healthy(2, 3, 3), wants("", "0"), behind)}, false, pod("p", notReady), "waits",
		},
		{"E21: does not delete while the status does not include an own eviction", []*pdb{none}, true, pod("p", notReady), "waits"},
		{
			"E21: does not delete while the budget is not computed",
			[]*pdb{budget("web", healthy(2, 3, 3), wants("", "0"), condition(policyv1.SyncFailedReason, "oh"))}, false, pod("p", notReady), "waits",
		},
		{"E21: does not delete a Pod without a controller", []*pdb{budget("web", healthy(0, 0, 0), wants("", "1"))}, false, pod("p", notReady, bare), "waits"},
		{"E21: does not delete a Pod with two budgets", []*pdb{none, budget("all", covers(&metav1.LabelSelector{}))}, false, pod("p", notReady), "waits"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, override := range []bool{true, false} {
				test.pod.DeleteUnready = override
				admitted, _ := budgets.NewIndex(test.pdbs, always(test.stale)).Admit([]budgets.Candidate{test.pod})
				got, want := "waits", test.want
				switch {
				case len(admitted) > 0 && admitted[0].Delete:
					got = "deleted"
				case len(admitted) > 0:
					got = "evicted"
				}
				if !override && want == "deleted" {
					want = "waits"
				}
				if got != want {
					t.Errorf("override %v: got %s, want %s", override, got, want)
				}
			}
		})
	}
}
