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

// TestWhoNeedsRoom asks for one pod that it goes, and whether it uses room.
func TestWhoNeedsRoom(t *testing.T) {
	full := budget("web", healthy(2, 3, 2), room(0))
	free, consumes := false, true
	for _, test := range []struct {
		name string
		pdbs []*pdb
		pod  budgets.Candidate
		want bool
	}{
		{"E18: no budget", nil, pod("p"), free},
		{"E18: a budget with room", []*pdb{budget("web")}, pod("p"), consumes},
		{"E18: a budget of another namespace", []*pdb{budget("web", room(0), inNamespace("other"))}, pod("p"), free},
		{"E18: a budget for other pods", []*pdb{full}, pod("p", labelled(labels{"app": "db"})), free},
		{"E18: a pod that has succeeded", []*pdb{full}, pod("p", inPhase(corev1.PodSucceeded)), free},
		{"E18: a pod that has failed", []*pdb{full}, pod("p", inPhase(corev1.PodFailed)), free},
		{"E18: a pod that is pending", []*pdb{full}, pod("p", inPhase(corev1.PodPending)), free},
		{"E15: a pod that terminates already needs no budget; it isn't ours to evict", []*pdb{full}, pod("p", terminating), free},
		{"E20: a nil selector covers nothing", []*pdb{budget("web", room(0), covers(nil))}, pod("p"), free},
		{"E20: an empty selector covers the namespace", []*pdb{budget("web", covers(&metav1.LabelSelector{}))}, pod("p", labelled(nil)), consumes},
		{"E21: not ready, while enough others are", []*pdb{full}, pod("p", notReady), free},
		{"E21: not ready, and AlwaysAllow", []*pdb{budget("web", healthy(0, 3, 2), unready(policyv1.AlwaysAllow))}, pod("p", notReady), free},
		{"E21: AlwaysAllow is spec: it needs no status", []*pdb{budget("web", room(0), unready(policyv1.AlwaysAllow), behind)}, pod("p", notReady), free},
		{"E21: not ready, too few others are, but there is room", []*pdb{budget("web", healthy(1, 3, 2), room(1))}, pod("p", notReady), consumes},
		{"E21: IfHealthyBudget says what is the default", []*pdb{budget("web", healthy(2, 3, 2), unready(policyv1.IfHealthyBudget))}, pod("p", notReady), free},
		{"E20: 2000 unconfirmed evictions are the last that are tolerated", []*pdb{budget("web", disrupted(2000))}, pod("p"), consumes},
	} {
		t.Run(test.name, func(t *testing.T) {
			admitted, waiting := budgets.NewIndex(test.pdbs, nil).Admit([]budgets.Candidate{test.pod})
			if len(waiting) > 0 {
				t.Fatalf("waits: %+v", waiting[0])
			}
			if got := admitted[0].ConsumesRoom; got != test.want {
				t.Errorf("consumes room: %v, want %v", got, test.want)
			}
			if admitted[0].ConsumesRoom && admitted[0].Budget == nil {
				t.Error("room of which budget?")
			}
		})
	}
}

// says is what a test expects to read.
type says struct {
	reason          budgets.Reason
	message, detail string
}

func web(message string) string { return "waiting for disruption budget default/web: " + message }

const many = "the eviction API refuses pods with more than one disruption budget: "

var whyAPodWaits = []struct {
	name  string
	pdbs  []*pdb
	stale bool
	pod   budgets.Candidate
	want  says
}{
	{"E18: no room", []*pdb{budget("web", healthy(198, 200, 198))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("needs 198 healthy pods"), "The disruption budget web needs 198 healthy pods and has 198 currently"}},
	{"E18: room that can't come", []*pdb{budget("web", healthy(1, 1, 1), wants("1", ""))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("needs 1 healthy pod, and can never allow a disruption (minAvailable: 1)"), "The disruption budget web needs 1 healthy pods and has 1 currently"}},
	{"E18: more than one budget", []*pdb{budget("web"), budget("all", covers(&metav1.LabelSelector{}))}, false, pod("p"),
		says{budgets.MultipleBudgets, many + "default/all, default/web", many + "default/all, default/web"}},
	{"E18: many budgets", []*pdb{budget("e"), budget("d"), budget("c"), budget("b"), budget("a")}, false, pod("p"),
		says{budgets.MultipleBudgets, many + "default/a, default/b, default/c and 2 more", many + "default/a, default/b, default/c and 2 more"}},
	{"E18: more than one budget, even for a pod that isn't ready", []*pdb{budget("a", unready(policyv1.AlwaysAllow)), budget("b", unready(policyv1.AlwaysAllow))}, false, pod("p", notReady),
		says{budgets.MultipleBudgets, many + "default/a, default/b", many + "default/a, default/b"}},
	{"E20: the disruption controller is behind", []*pdb{budget("web", behind)}, false, pod("p"),
		says{budgets.BudgetNotObserved, web("still being processed"), "The disruption budget web is still being processed by the server: its generation is 2, observed was 1"}},
	{"E20: our own eviction hasn't been counted", []*pdb{budget("web")}, true, pod("p"),
		says{budgets.BudgetNotObserved, web("still being processed"), "The disruption budget web has not been seen since our last eviction"}},
	{"E20: nor may an unready pod rely on such numbers", []*pdb{budget("web")}, true, pod("p", notReady),
		says{budgets.BudgetNotObserved, web("still being processed"), "The disruption budget web has not been seen since our last eviction"}},
	{"E20: a negative number", []*pdb{budget("web", room(-1))}, false, pod("p"),
		says{budgets.BudgetNotObserved, web("still being processed"), "The disruption budget web is still being processed by the server: it allows -1 disruptions"}},
	{"E20: too many unconfirmed evictions", []*pdb{budget("web", disrupted(2001))}, false, pod("p"),
		says{budgets.BudgetNotObserved, web("still being processed"), "The disruption budget web is still being processed by the server: 2001 evictions are not confirmed"}},
	{"E20: the budget can't be computed", []*pdb{budget("web", room(0), condition(policyv1.SyncFailedReason, "found no controllers for pod \"x\""))}, false, pod("p"),
		says{budgets.BudgetSyncFailed, web("the disruption controller can't compute it"),
			"The disruption budget web does not allow evicting pods currently because it failed sync: found no controllers for pod \"x\""}},
	{"E20: that it can't be computed says more than that it is behind", []*pdb{budget("web", behind, condition(policyv1.SyncFailedReason, "oh"))}, false, pod("p"),
		says{budgets.BudgetSyncFailed, web("the disruption controller can't compute it"), "The disruption budget web does not allow evicting pods currently because it failed sync: oh"}},
	{"E20: a condition with another reason is none of that", []*pdb{budget("web", healthy(2, 3, 2), condition(policyv1.InsufficientPodsReason, ""))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("needs 2 healthy pods"), "The disruption budget web needs 2 healthy pods and has 2 currently"}},
	{"E20: the selector can't be parsed", []*pdb{budget("web", broken)}, false, pod("p"),
		says{budgets.BudgetUnreadable, web("its selector can't be parsed"),
			`The disruption budget web may cover this pod; its selector can't be parsed: "Resembles" is not a valid label selector operator`}},
	{"E20: the selector can't be parsed, and another budget has room", []*pdb{budget("a"), budget("web", broken)}, false, pod("p"),
		says{budgets.BudgetUnreadable, web("its selector can't be parsed"),
			`The disruption budget web may cover this pod; its selector can't be parsed: "Resembles" is not a valid label selector operator`}},
	{"E21: the pod blocks its own budget", []*pdb{budget("web", healthy(3, 5, 4))}, false, pod("p", notReady),
		says{budgets.BlockedByUnhealthyPods, web("this pod is not ready and blocks its own budget, which needs 4 healthy pods"), "The disruption budget web has 3 of 5 pods healthy, 4 needed"}},
	{"E21: other pods that aren't ready block", []*pdb{budget("web", healthy(3, 5, 4))}, false, pod("p"),
		says{budgets.BlockedByUnhealthyPods, web("pods that are not ready block it; needs 4 healthy pods"), "The disruption budget web has 3 of 5 pods healthy, 4 needed"}},
	{"E21: no pod is needed, yet none may go", []*pdb{budget("web", healthy(0, 5, 0))}, false, pod("p", notReady),
		says{budgets.BlockedByUnhealthyPods, web("this pod is not ready and blocks its own budget, which needs 0 healthy pods"), "The disruption budget web has 0 of 5 pods healthy, 0 needed"}},
	{"E21: too few pods, all of them ready", []*pdb{budget("web", healthy(3, 3, 5), wants("5", ""))}, false, pod("p"),
		says{budgets.BudgetExhausted, web("needs 5 healthy pods, and can never allow a disruption (minAvailable: 5)"), "The disruption budget web needs 5 healthy pods and has 3 currently"}},
}

// TestWhyAPodWaits compares texts: people read them.
func TestWhyAPodWaits(t *testing.T) {
	for _, test := range whyAPodWaits {
		t.Run(test.name, func(t *testing.T) {
			admitted, waiting := budgets.NewIndex(test.pdbs, always(test.stale)).Admit([]budgets.Candidate{test.pod})
			if len(admitted) > 0 {
				t.Fatal("the pod goes")
			}
			if got := (says{waiting[0].Reason, waiting[0].Message, waiting[0].Detail}); got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestRoomIsShared(t *testing.T) {
	index := budgets.NewIndex([]*pdb{budget("web", room(2))}, nil)
	admitted, waiting := index.Admit([]budgets.Candidate{pod("a"), pod("b"), pod("a"), pod("c"), pod("sick", notReady), pod("db", labelled(nil))})
	if got := namesOf(admitted); !reflect.DeepEqual(got, []string{"a", "b", "sick", "db"}) {
		t.Errorf("E18: those that come first get the room, the others need none: got %v", got)
	}
	if len(waiting) != 1 || waiting[0].Pod.Name != "c" || waiting[0].Reason != budgets.BudgetExhausted || waiting[0].Budget != "default/web" ||
		!strings.HasSuffix(waiting[0].Detail, "; other pods take its room of 2 now") {
		t.Errorf("E18: the rest waits for its turn: got %+v", waiting)
	}
	if again, _ := index.Admit([]budgets.Candidate{pod("c")}); len(again) != 1 {
		t.Error("an index keeps no record of what it admitted")
	}
}

func TestRoomOfEvictionsUnderWay(t *testing.T) {
	underWay := func(c budgets.Candidate) budgets.Candidate {
		c.UnderWay = true
		return c
	}
	for _, test := range []struct {
		name       string
		room       int32
		candidates []budgets.Candidate
		want       []string
	}{
		{"E18: the room of an eviction that isn't answered yet is given to nobody else", 1, []budgets.Candidate{pod("a"), underWay(pod("slow"))}, nil},
		{"E18: what is left is", 2, []budgets.Candidate{pod("a"), pod("b"), underWay(pod("slow"))}, []string{"a"}},
		{"E18: it isn't evicted twice", 2, []budgets.Candidate{underWay(pod("slow")), pod("slow")}, nil},
		{"E18: one that needs no room takes none", 1, []budgets.Candidate{pod("a"), underWay(pod("slow", inPhase(corev1.PodPending)))}, []string{"a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			admitted, waiting := budgets.NewIndex([]*pdb{budget("web", room(test.room))}, nil).Admit(test.candidates)
			if got := namesOf(admitted); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			for _, each := range waiting {
				if each.UnderWay {
					t.Errorf("%s waits, and is under way", each.Pod.Name)
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

// TestUnreadyPodsAreDeleted is unhealthyBudget: Override.
func TestUnreadyPodsAreDeleted(t *testing.T) {
	none := budget("web", healthy(2, 3, 3), wants("", "0"))
	for _, test := range []struct {
		name  string
		pdbs  []*pdb
		stale bool
		pod   budgets.Candidate
		want  string
	}{
		{"E21: not ready, and its budget can never have room", []*pdb{none}, false, pod("p", notReady), "deleted"},
		{"E21: the only replica is needed", []*pdb{budget("web", healthy(0, 1, 1), wants("1", ""))}, false, pod("p", notReady), "deleted"},
		{"E21: a ready pod is never deleted", []*pdb{none}, false, pod("p"), "waits"},
		{"E21: others may become ready, and then there is room", []*pdb{budget("web", healthy(1, 3, 2))}, false, pod("p", notReady), "waits"},
		{"E21: where the API server lets it go it is evicted", []*pdb{budget("web", healthy(2, 3, 2), wants("", "0"))}, false, pod("p", notReady), "evicted"},
		{"E21: numbers that aren't up to date prove nothing", []*pdb{budget("web", healthy(2, 3, 3), wants("", "0"), behind)}, false, pod("p", notReady), "waits"},
		{"E21: nor do those from before our own eviction", []*pdb{none}, true, pod("p", notReady), "waits"},
		{"E21: nor what can't be computed", []*pdb{budget("web", healthy(2, 3, 3), wants("", "0"), condition(policyv1.SyncFailedReason, "oh"))}, false, pod("p", notReady), "waits"},
		{"E21: two budgets aren't its own budget", []*pdb{none, budget("all", covers(&metav1.LabelSelector{}))}, false, pod("p", notReady), "waits"},
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
