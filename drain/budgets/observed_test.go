package budgets_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

func withUID(uid types.UID) func(*pdb) { return func(b *pdb) { b.UID = uid } }

func coversApp(app string) func(*pdb) {
	return covers(&metav1.LabelSelector{MatchLabels: labels{"app": app}})
}

// observed returns an Observed whose first list contains these budgets.
func observed(pdbs ...*pdb) *budgets.Observed {
	o := budgets.NewObserved(nil)
	for _, each := range pdbs {
		o.Observe(each, began)
	}
	o.ObserveList(began)
	return o
}

func TestLoss(t *testing.T) {
	web, db := pod("p").Pod, pod("p", labelled(labels{"app": "db"})).Pod
	for _, test := range []struct {
		name   string
		events func(*budgets.Observed)
		pod    budgets.Pod
		want   string // the message, at second 12
	}{
		{"E55: waits after its budget was deleted", func(o *budgets.Observed) { o.ObserveDeletion(budget("web"), at(10)) }, web,
			"Waiting 3 s since PodDisruptionBudget default/web, which selected the Pod, was deleted; another one may replace it"},
		{"E55: waits three seconds", func(o *budgets.Observed) { o.ObserveDeletion(budget("web"), at(9)) }, web, ""},
		{"E55: waits also if another budget was created meanwhile", func(o *budgets.Observed) {
			o.ObserveDeletion(budget("web"), at(10))
			o.Observe(budget("web", withUID("second")), at(10.3))
		}, web, "Waiting 3 s since PodDisruptionBudget default/web, which selected the Pod, was deleted; another one may replace it"},
		{"E55: recognizes a recreated budget in an update", func(o *budgets.Observed) { o.Observe(budget("web", withUID("second")), at(10)) }, web,
			"Waiting 3 s since PodDisruptionBudget default/web, which selected the Pod, was deleted; another one may replace it"},
		{"E55: does not wait after a change of another field", func(o *budgets.Observed) { o.Observe(budget("web", allows(5), wants("1", "")), at(10)) }, web, ""},
		{"E55: does not wait for a budget of other Pods", func(o *budgets.Observed) { o.ObserveDeletion(budget("web"), at(10)) }, db, ""},
		{"E55: does not wait for a budget of another namespace", func(o *budgets.Observed) { o.ObserveDeletion(budget("web"), at(10)) },
			budgets.Pod{Namespace: "other", Labels: labels{"app": "web"}}, ""},
		{"E55: waits after the selector has changed", func(o *budgets.Observed) { o.Observe(budget("web", coversApp("db")), at(10)) }, web,
			"Waiting 3 s since PodDisruptionBudget default/web does not select the Pod any more; another one may replace it"},
		{
			"E55: does not wait if the changed selector selects it, too",
			func(o *budgets.Observed) { o.Observe(budget("web", covers(&metav1.LabelSelector{})), at(10)) }, web, "",
		},
		{"E55: waits if the budget of the changed selector is deleted", func(o *budgets.Observed) {
			o.Observe(budget("web", covers(&metav1.LabelSelector{})), at(10))
			o.ObserveDeletion(budget("web"), at(10.5))
		}, db, "Waiting 3 s since PodDisruptionBudget default/web, which selected the Pod, was deleted; another one may replace it"},
		{"E55: a change of the selector does not hide the deletion before it", func(o *budgets.Observed) {
			o.ObserveDeletion(budget("web"), at(10))
			o.Observe(budget("web", withUID("second")), at(10.3))
			o.Observe(budget("web", withUID("second"), covers(&metav1.LabelSelector{})), at(10.4))
		}, web, "Waiting 3 s since PodDisruptionBudget default/web, which selected the Pod, was deleted; another one may replace it"},
		{"E55: waits after the labels of the Pod have changed", func(o *budgets.Observed) { o.ObserveLabels(web, db, at(10)) }, db,
			"Waiting 3 s since PodDisruptionBudget default/web does not select the Pod any more; another one may replace it"},
		{"E55: does not wait after a change of labels with the same budgets", func(o *budgets.Observed) {
			o.ObserveLabels(web, pod("p", labelled(labels{"app": "web", "v": "2"})).Pod, at(10))
		}, web, ""},
		{"E55: a change of labels does not hide the deletion before it", func(o *budgets.Observed) {
			o.ObserveDeletion(budget("web"), at(10))
			o.ObserveLabels(web, db, at(10.5))
		}, db, "Waiting 3 s since PodDisruptionBudget default/web, which selected the Pod, was deleted; another one may replace it"},
		{"E55: does not wait for a budget that was deleted before the labels of the Pod were those that it selected", func(o *budgets.Observed) {
			o.ObserveDeletion(budget("web"), at(10))
			o.ObserveLabels(db, web, at(10.5))
		}, web, ""},
		{"E55: waits for a budget whose selector was invalid", func(o *budgets.Observed) {
			o.Observe(budget("bad", invalid), at(2))
			o.ObserveDeletion(budget("bad"), at(10))
		}, web, "Waiting 3 s since PodDisruptionBudget default/bad, which selected the Pod, was deleted; another one may replace it"},
		{
			"E55: does not wait with a Pod that needs no budget",
			func(o *budgets.Observed) { o.ObserveDeletion(budget("web"), at(10)) }, pod("p", inPhase("Pending")).Pod, "",
		},
		{"E55: ignores the deletion of a budget that it does not know", func(o *budgets.Observed) { o.ObserveDeletion(budget("unknown"), at(10)) }, web, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := observed(budget("web"))
			test.events(o)
			loss, lost := o.LossOf(test.pod, at(12))
			got := ""
			if lost {
				got = loss.Waits(budgets.Candidate{Pod: test.pod}).Message
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if left := o.Expire(at(20)); left || o.HasLosses() {
				t.Error("a loss is kept for ever")
			}
		})
	}
}

func TestLossAcrossWatches(t *testing.T) {
	web := pod("p").Pod
	first := observed(budget("web"), budget("other", coversApp("other")))
	second := budgets.NewObserved(first)
	if _, known := second.Budgets(); known {
		t.Error("E55: the budgets are known before the first list of the second watch")
	}
	second.Observe(budget("other", coversApp("other")), at(100))
	if _, lost := second.LossOf(web, at(100)); lost {
		t.Error("E55: the budget is not lost before the list is complete")
	}
	third := budgets.NewObserved(second) // the second one has ended before its list was complete
	third.Observe(budget("other", coversApp("other")), at(200))
	third.ObserveList(at(200))
	if pdbs, known := third.Budgets(); !known || len(pdbs) != 1 {
		t.Errorf("got %d budgets, known: %v", len(pdbs), known)
	}
	if loss, lost := third.LossOf(web, at(201)); !lost || !loss.Deleted || loss.Budget != "default/web" {
		t.Errorf("E55: waits for a budget that was deleted between two watches: got %+v, %v", loss, lost)
	}
	if _, lost := third.LossOf(pod("p", labelled(labels{"app": "other"})).Pod, at(201)); lost {
		t.Error("E55: does not wait for a budget that still exists")
	}
	first.ObserveDeletion(budget("other"), at(201)) // a late event of the first watch
	if pdbs, _ := third.Budgets(); len(pdbs) != 1 {
		t.Error("watches share memory")
	}
}

func TestManyFormerBudgets(t *testing.T) {
	var all []*pdb
	for i := range 1000 {
		all = append(all, budget(fmt.Sprint(i), coversApp(fmt.Sprint(i))))
	}
	o := observed(all...)
	for _, each := range all {
		o.ObserveDeletion(each, at(10))
	}
	for i := range 1000 {
		if _, lost := o.LossOf(pod("p", labelled(labels{"app": fmt.Sprint(i)})).Pod, at(11)); !lost {
			t.Fatalf("E55: a Pod does not wait for budget %d of many", i)
		}
	}
	if _, lost := o.LossOf(pod("p", inOther).Pod, at(11)); lost {
		t.Error("E55: a Pod of another namespace waits")
	}
	for range 10000 { // one budget, recreated again and again
		o.Observe(budget("web"), at(20))
		o.ObserveDeletion(budget("web"), at(20))
	}
	if o.Expire(at(23)) {
		t.Error("E55: former budgets are kept")
	}
}

func inOther(p *budgets.Pod) { p.Namespace = "other" }

// TestLossIsExact compares Observed with the list of all losses.
func TestLossIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, now := observed(), began
		present, uids := map[string]*pdb{}, 0
		pods := []budgets.Pod{pod("a").Pod, pod("b", labelled(labels{"app": "db"})).Pod, pod("c", labelled(nil)).Pod}
		lost := map[types.UID]map[types.UID]time.Time{} // when a Pod last lost a budget
		apps, budgetNames := rapid.SampledFrom([]string{"web", "db"}), rapid.SampledFrom([]string{"one", "two", "three"})
		covering := func() map[types.UID]map[types.UID]bool {
			all := map[types.UID]map[types.UID]bool{}
			for _, p := range pods {
				all[p.UID] = map[types.UID]bool{}
				for _, b := range present {
					all[p.UID][b.UID] = b.Spec.Selector.MatchLabels["app"] == p.Labels["app"]
				}
			}
			return all
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "milliseconds")) * time.Millisecond)
			before := covering()
			name := budgetNames.Draw(t, "budget")
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0: // creates or recreates
				uids++
				present[name] = budget(name, withUID(types.UID(fmt.Sprint(uids))), coversApp(apps.Draw(t, "app")))
				o.Observe(present[name], now)
			case 1:
				if b := present[name]; b != nil {
					o.ObserveDeletion(b, now)
					delete(present, name)
				}
			case 2: // changes the selector
				if b := present[name]; b != nil {
					present[name] = budget(name, withUID(b.UID), coversApp(apps.Draw(t, "app")))
					o.Observe(present[name], now)
				}
			default:
				i := rapid.IntRange(0, len(pods)-1).Draw(t, "pod")
				changed := pods[i]
				changed.Labels = labels{"app": apps.Draw(t, "app")}
				o.ObserveLabels(pods[i], changed, now)
				pods[i] = changed
			}
			after := covering()
			for p, uids := range before {
				for uid, covers := range uids {
					if covers && !after[p][uid] {
						if lost[p] == nil {
							lost[p] = map[types.UID]time.Time{}
						}
						lost[p][uid] = now
					}
				}
			}
			if rapid.Bool().Draw(t, "expire") {
				o.Expire(now)
			}
			for _, p := range pods {
				must, may := false, false
				for uid, at := range lost[p.UID] {
					recent := now.Before(at.Add(budgets.LossCounts))
					may, must = may || recent, must || recent && !after[p.UID][uid]
				}
				if _, waits := o.LossOf(p, now); waits && !may || !waits && must {
					t.Fatalf("Pod %s waits: %v; it has lost a budget: %v, and not got it back: %v", p.Name, waits, may, must)
				}
			}
		}
	})
}

func TestParsedOnce(t *testing.T) {
	values := make([]string, 1000)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	o := observed(budget("web", covers(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values,
	}}})))
	allocations := testing.AllocsPerRun(10, func() {
		all, _ := o.Budgets()
		budgets.IndexOf(all, nil)
	})
	if allocations > 100 {
		t.Errorf("E37: %g allocations: the selectors that tenants write are parsed in each pass", allocations)
	}
}
