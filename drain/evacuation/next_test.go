package evacuation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

const (
	daemonSet = v1alpha1.PodTypeDaemonSet
	static    = v1alpha1.PodTypeStatic
)

func terminating(p *evacuation.Pod) { p.Terminating = true }
func finished(p *evacuation.Pod)    { p.Finished = true }
func unknown(p *evacuation.Pod)     { *p = evacuation.Pod{Type: p.Type} }

type nextTest struct {
	name  string
	given *given
	want  string // what summary gives
}

func runNext(t *testing.T, tests []nextTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			action := test.given.next(t)
			if got := summary(action); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if action.Message == "" {
				t.Error("an action without a message")
			}
		})
	}
}

// summary gives all of an action but its message.
func summary(a evacuation.Action) string {
	words := []string{string(a.Kind)}
	if a.Class != "" {
		words = append(words, a.Class)
	}
	if !a.Deadline.IsZero() {
		words = append(words, "until "+a.Deadline.Sub(noon).String())
	}
	if a.Reason != "" {
		words = append(words, a.Reason)
	}
	if len(a.Evacuators) > 0 {
		words = append(words, show(a.Evacuators))
	}
	for _, finalizer := range a.Finalizers {
		words = append(words, "-"+strings.TrimPrefix(finalizer, v1alpha1.InstigatorFinalizerPrefix))
	}
	if a.Delete {
		words = append(words, "delete")
	}
	return strings.Join(words, " ")
}

func TestNextRests(t *testing.T) {
	runNext(t, []nextTest{
		{"M16: no Pod is evicted while the Machine is paused", anEvacuation().paused(), "AwaitResume"},
		{"M16: nor is one that was being evicted", anEvacuation().completed().evicting("BudgetExhausted", "waiting").paused(), "AwaitResume"},
		{"M16: nobody gets a turn", anEvacuation().resolving("a:2").paused(), "AwaitResume"},
		{"M16: what ends by itself is closed", anEvacuation().pod(finished).paused(), "Finish -nodemaintenance.k8s.io delete"},
		{"M16: what is withdrawn is withdrawn", anEvacuation().heldBy().paused(), "Cancel delete"},
	})
}

func TestNextResolves(t *testing.T) {
	runNext(t, []nextTest{
		{"E13: a fresh one is resolved", anEvacuation().resolving("a:2", "b:1"), "Resolve a:2 b:1"},
		{"E13: before its Pod was observed it waits", anEvacuation().resolving("a:2").pod(unknown), "AwaitPod"},
		{"E13: what is set is not resolved again", anEvacuation("c:1").resolving("a:2"), "Activate c until 30m0s"},
		{"E13: what was decided without evacuators is not resolved any more", anEvacuation().resolving("a:2").completed(), "Evict NoEvacuator"},
		{"E13: one whose turn it is isn't taken for fresh", anEvacuation().resolving("a:2").turnOf("a", 0), "Evict NoEvacuator"},
		{"E15: a Pod that terminates needs no evacuators", anEvacuation().resolving("a:2").pod(terminating), "AwaitTermination PodTerminating"},
		{"E13: nothing irrevocable has happened to a Pod that is never evicted", anEvacuation().resolving("a:2").of(daemonSet).saying("never evicted"), "Resolve a:2"},
	})
}

func TestNextTakesTurns(t *testing.T) {
	runNext(t, []nextTest{
		{"E11: the highest priority first", anEvacuation("a:1", "b:2"), "Activate b until 30m0s"},
		{"E11: then by class", anEvacuation("b:1", "a:1", "c:1"), "Activate a until 30m0s"},
		{"E11: the deadline counts from the activation", anEvacuation("a:1").at(time.Hour), "Activate a until 1h30m0s"},
		{"E12: an active one is waited for", anEvacuation("a:2", "b:1").turnOf("a", 0).at(29 * time.Minute), "AwaitEvacuator a until 30m0s"},
		{"E12: its progress moves its deadline", anEvacuation("a:2", "b:1").turnOf("a", 20*time.Minute).at(40 * time.Minute), "AwaitEvacuator a until 50m0s"},
		{"E12: its silence passes the turn on", anEvacuation("a:2", "b:1").turnOf("a", 0).at(30 * time.Minute), "Activate b until 1h0m0s EvacuatorUnresponsive"},
		{"E12: its completion passes the turn on", anEvacuation("a:2", "b:1").turnOf("a", 0).completed().at(time.Minute), "Activate b until 31m0s EvacuatorCompleted"},
		{"E12: turns follow the order, not the list", anEvacuation("c:1", "a:3", "b:2").turnOf("b", 0).completed(), "Activate c until 30m0s EvacuatorCompleted"},
		{"E3: the progress deadline is the Evacuation's own", withDeadline(600, anEvacuation("a:2", "b:1").turnOf("a", 0).at(10*time.Minute)), "Activate b until 20m0s EvacuatorUnresponsive"},
		{"E3: it has a default", withDeadline(0, anEvacuation("a:1").turnOf("a", 0).at(time.Minute)), "AwaitEvacuator a until 30m0s"},
		{"E12: without a timestamp the creation counts", noProgress(anEvacuation("a:2", "b:1").turnOf("a", 0).at(29 * time.Minute)), "AwaitEvacuator a until 30m0s"},
		{"E6: progress within the skew counts as it is", anEvacuation("a:1").turnOf("a", 30*time.Second), "AwaitEvacuator a until 30m30s"},
		{"E6: progress beyond the skew counts as now", anEvacuation("a:1").turnOf("a", 1000*time.Hour).at(time.Minute), "AwaitEvacuator a until 31m0s"},
		{"E12: a deletionTimestamp doesn't stop the work", anEvacuation("a:2", "b:1").turnOf("a", 0).deleted().at(30 * time.Minute), "Activate b until 1h0m0s EvacuatorUnresponsive"},
	})
}

func TestNextEvicts(t *testing.T) {
	runNext(t, []nextTest{
		{"E14: no evacuator", anEvacuation(), "Evict NoEvacuator"},
		{"E14: the last one is silent", anEvacuation("a:2", "b:1").turnOf("b", 0).at(30 * time.Minute), "Evict EvacuatorUnresponsive"},
		{"E14: the last one has completed", anEvacuation("a:2", "b:1").turnOf("b", 0).completed(), "Evict EvacuatorCompleted"},
		{"E14: fresh progress stops the evicting", anEvacuation("a:1").turnOf("a", time.Hour).evicting("EvacuatorUnresponsive", "no room").at(time.Hour), "AwaitEvacuator a until 1h30m0s"},
		{"E14: progress of one that has completed doesn't", anEvacuation("a:1").turnOf("a", time.Hour).completed().evicting("EvacuatorCompleted", "no room").at(time.Hour), "Evict EvacuatorCompleted"},
		{"E12: a class that nobody knows is nobody's turn", anEvacuation("a:2", "b:1").turnOf("x", 0), "Evict NoEvacuator"},
		{"E14: a deletionTimestamp doesn't stop it", anEvacuation().deleted(), "Evict NoEvacuator"},
		{"E14: an instigator of somebody else asks as well", anEvacuation().heldBy(theirs), "Evict NoEvacuator"},
	})
}

func TestNextMindsTheDrainsTime(t *testing.T) {
	runNext(t, []nextTest{
		{"E14: it caps a turn that begins", anEvacuation("a:1").drainEnds(20 * time.Minute), "Activate a until 19m0s"},
		{"E14: it caps a turn that goes on", anEvacuation("a:1").turnOf("a", 0).drainEnds(20 * time.Minute).at(time.Minute), "AwaitEvacuator a until 19m0s"},
		{"E14: a Pod that takes long to stop is evicted earlier", stopsIn(5*time.Minute, anEvacuation("a:1").drainEnds(20*time.Minute)), "Activate a until 14m30s"},
		{"E14: it doesn't prolong one", anEvacuation("a:1").turnOf("a", 0).drainEnds(10 * time.Hour).at(time.Minute), "AwaitEvacuator a until 30m0s"},
		{"E14: what is left belongs to the eviction", anEvacuation("a:1").turnOf("a", 0).drainEnds(20 * time.Minute).at(19 * time.Minute), "Evict DrainEndsSoon"},
		{"E14: progress doesn't help then", anEvacuation("a:1").turnOf("a", 19*time.Minute).drainEnds(20 * time.Minute).at(19 * time.Minute), "Evict DrainEndsSoon"},
		{"E14: nobody's turn begins then", anEvacuation("a:2", "b:1").turnOf("a", 0).completed().drainEnds(20 * time.Minute).at(25 * time.Minute), "Evict DrainEndsSoon"},
		{"E14: nobody is resolved then", anEvacuation().resolving("a:1").drainEnds(20 * time.Minute).at(time.Hour), "Evict DrainEndsSoon"},
		{"E14: a better reason stays", anEvacuation("a:1").turnOf("a", 0).completed().drainEnds(time.Minute).at(time.Minute), "Evict EvacuatorCompleted"},
		{"E14: more time gives the turn back", anEvacuation("a:1").turnOf("a", 0).evicting(evacuation.ReasonDrainEnds, "x").drainEnds(time.Hour).at(19 * time.Minute), "AwaitEvacuator a until 30m0s"},
		{"E15: a Pod that is never evicted doesn't need it", anEvacuation("a:1").turnOf("a", 0).of(daemonSet).drainEnds(time.Minute).at(10 * time.Minute), "AwaitEvacuator a until 30m0s"},
	})
}

func TestNextNeverEvicts(t *testing.T) {
	runNext(t, []nextTest{
		{"E15: a DaemonSet Pod", anEvacuation().of(daemonSet), "AwaitTermination PodTypeNeverEvicted"},
		{"E15: a mirror Pod", anEvacuation().of(static), "AwaitTermination PodTypeNeverEvicted"},
		{"E15: a Pod that terminates", anEvacuation("a:1").turnOf("a", 0).completed().pod(terminating), "AwaitTermination PodTerminating"},
		{"E15: a Pod that terminates, whoever's turn it is", anEvacuation("a:2", "b:1").turnOf("a", 0).pod(terminating).at(time.Hour), "AwaitTermination PodTerminating"},
		{"R38: a DaemonSet Pod has evacuators", anEvacuation(v1alpha1.EvacuatorClassDaemonSet + ":10000/controller").of(daemonSet), "Activate daemonset.apps.k8s.io until 30m0s"},
		{"R38: whose silence leaves nothing to do", anEvacuation("a:1").turnOf("a", 0).of(daemonSet).at(time.Hour), "AwaitTermination PodTypeNeverEvicted"},
		{"R38: and whose progress counts", anEvacuation("a:1").turnOf("a", time.Hour).of(daemonSet).at(time.Hour), "AwaitEvacuator a until 1h30m0s"},
		{"R38: its completion leaves nothing to do", anEvacuation("a:1").turnOf("a", 0).completed().of(static), "AwaitTermination PodTypeNeverEvicted"},
	})
}

func TestNextEnds(t *testing.T) {
	runNext(t, []nextTest{
		{"E8: all instigators are removed", anEvacuation().completed().heldBy(foreign, ours, theirs).podGone(), "Finish -nodemaintenance.k8s.io -descheduler.example.com delete"},
		{"E8: a DELETE is made once", anEvacuation().completed().deleted().podGone(), "Finish -nodemaintenance.k8s.io"},
		{"E8: foreign finalizers are others' business", anEvacuation().completed().heldBy(foreign).deleted().podGone(), "Done"},
		{"E9: what is forbidden is allowed before that", anEvacuation().completed().forbidding().heldBy(foreign).deleted().podGone(), "Finish"},
		{"E16: a Pod that has finished is done", anEvacuation("a:1").pod(finished), "Finish -nodemaintenance.k8s.io delete"},
		{"E16: a DaemonSet Pod as well", anEvacuation("a:1").of(daemonSet).pod(finished), "Finish -nodemaintenance.k8s.io delete"},
		{"E16: one that terminates as well", anEvacuation("a:1").pod(terminating).pod(finished), "Finish -nodemaintenance.k8s.io delete"},
		{"E16: whoever's turn it is", anEvacuation("a:1").turnOf("a", 0).podGone(), "Finish -nodemaintenance.k8s.io delete"},
		{"E16: a Pod that only terminated was there", anEvacuation("a:1").saying("The Pod is terminating.").podGone(), "Finish -nodemaintenance.k8s.io delete"},
		{"E2: a Pod that never was there", anEvacuation("a:1").podGone(), "Fail PodNotFound -nodemaintenance.k8s.io delete"},
		{"E2: the Evacuation is deleted already", anEvacuation("a:1").deleted().podGone(), "Finish -nodemaintenance.k8s.io"},
		{"E2: before it was looked for it isn't missing", anEvacuation("a:1").pod(unknown), "AwaitPod"},
	})
}

func TestNextDefers(t *testing.T) {
	runNext(t, []nextTest{
		{"R44: a replacement waits for its backoff", anEvacuation().after(time.Minute), "AwaitBackoff until 1m0s ReplacementReturned"},
		{"R44: and so do its evacuators", anEvacuation().after(time.Minute).resolving("a:1"), "AwaitBackoff until 1m0s ReplacementReturned"},
		{"R44: until its backoff is over", anEvacuation().after(time.Minute).at(time.Minute), "Evict NoEvacuator"},
		{"R44: for 5 min at most, whatever the annotation says", anEvacuation().after(time.Hour), "AwaitBackoff until 5m30s ReplacementReturned"},
		{"R44: it has a final eviction attempt before the drain timeout", anEvacuation().after(5 * time.Minute).drainEnds(3 * time.Minute), "AwaitBackoff until 2m0s ReplacementReturned"},
		{"R44: unless it returns too late for one", anEvacuation().after(time.Minute).drainEnds(time.Minute), "AwaitBackoff until 1m0s ReplacementReturned"},
		{"R44: a paused Machine takes precedence", anEvacuation().after(time.Minute).paused(), "AwaitResume"},
		{"R44: one that terminates is not deferred", anEvacuation().after(time.Minute).pod(terminating), "AwaitTermination PodTerminating"},
		{"R44: an annotation that is no time defers nothing", anEvacuation().annotated(v1alpha1.EvacuateAfterAnnotation, "tomorrow"), "Evict NoEvacuator"},
	})
}

func TestNextCancels(t *testing.T) {
	runNext(t, []nextTest{
		{"E9: nobody asks any more", anEvacuation("a:1").turnOf("a", 0).heldBy(), "Cancel delete"},
		{"E9: foreign finalizers don't ask", anEvacuation().heldBy(foreign), "Cancel delete"},
		{"E9: a DELETE is made once", anEvacuation().heldBy(foreign).deleted(), "Done"},
		{"E9: nobody may watch the Pod then", anEvacuation().heldBy().pod(unknown), "Cancel delete"},
		{"E9: the Pod terminates", anEvacuation().heldBy().pod(terminating), "Cancel delete"},
		{"E9: somebody who joins goes on", anEvacuation("a:2", "b:1").turnOf("a", 0).completed().forbidding().heldBy(theirs), "Activate b until 30m0s EvacuatorCompleted"},
		{"E9: until the Pod is gone", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().podGone(), "Finish delete"},
		{"E9: one that asks keeps a deleted one going", anEvacuation("a:1").turnOf("a", 0).heldBy(theirs).deleted(), "AwaitEvacuator a until 30m0s"},
	})
}

func TestNextIgnoresTheWithdrawalUnderForbid(t *testing.T) {
	runNext(t, []nextTest{
		{"E31: waits for the active evacuator until its progress deadline", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().at(time.Minute), "AwaitEvacuator a until 30m0s"},
		{"E31: activates the next evacuator when the active one has completed", anEvacuation("a:2", "b:1").turnOf("a", 0).completed().forbidding().heldBy(), "Activate b until 30m0s EvacuatorCompleted"},
		{"E31: activates the next evacuator when the progress deadline of the active one is exceeded", anEvacuation("a:2", "b:1").turnOf("a", 0).forbidding().heldBy().at(30 * time.Minute), "Activate b until 1h0m0s EvacuatorUnresponsive"},
		{"E31: evicts the Pod when the last evacuator has completed", anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy(), "Evict EvacuatorCompleted"},
		{"E31: evicts the Pod when the progress deadline of the last evacuator is exceeded", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().at(30 * time.Minute), "Evict EvacuatorUnresponsive"},
		{"E31: continues an eviction that has begun", anEvacuation("a:1").turnOf("a", 0).completed().forbidding().evicting("BudgetExhausted", "waiting").heldBy(), "Evict EvacuatorCompleted"},
		{"E31: evicts the Pod although finalizers of others remain", anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy(foreign).deleted(), "Evict EvacuatorCompleted"},
		{"E31: never evicts Pods of DaemonSets", anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy().of(daemonSet), "AwaitTermination PodTypeNeverEvicted"},
		{"E31: waits for the Pod to be observed", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().pod(unknown), "AwaitPod"},
		{"E31: waits for a Pod that terminates", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().pod(terminating), "AwaitTermination PodTerminating"},
		{"E31: cancels when the evacuator allows it again", anEvacuation("a:1").turnOf("a", 0).heldBy(), "Cancel delete"},
	})
	t.Run("E31: tells why an Evacuation that is withdrawn continues", func(t *testing.T) {
		g := anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy()
		if status := g.apply(t).Status; !strings.HasPrefix(status.Message, "All instigators have withdrawn, but an evacuator does not allow cancellation. ") {
			t.Errorf("got %q", status.Message)
		}
	})
}

func TestObservedPod(t *testing.T) {
	e := evacuation.New(podNamed("web-0"), nil, 0)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := podNamed("web-0")
		p.Spec.NodeName = "one"
		change(p)
		return p
	}
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"none", nil, "{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}"},
		{"E2: another UID is another Pod", pod(func(p *corev1.Pod) { p.UID = "other" }), "{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}"},
		{"E35: so is another name", pod(func(p *corev1.Pod) { p.Name = "web-1" }), "{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}"},
		{"E35: and another Namespace", pod(func(p *corev1.Pod) { p.Namespace = "other" }), "{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}"},
		{"running", pod(func(*corev1.Pod) {}), "{Known:true Exists:true Terminating:false Finished:false Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}"},
		{"terminating", pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }), "{Known:true Exists:true Terminating:true Finished:false Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}"},
		{"E16: succeeded", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "{Known:true Exists:true Terminating:false Finished:true Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}"},
		{"E16: failed", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), "{Known:true Exists:true Terminating:false Finished:true Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := fmt.Sprintf("%+v", evacuation.ObservedPod(e, test.pod, v1alpha1.PodTypeDefault)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	for _, test := range []struct {
		given *given
		want  string
	}{
		{anEvacuation("a:1"), "The evacuation begins: it is the turn of evacuator a."},
		{anEvacuation("a:2", "b:1").turnOf("a", 0).completed(), "Evacuator a has completed, and the Pod is still there: it is the turn of evacuator b."},
		{anEvacuation("a:2", "b:1").turnOf("a", 0).at(time.Hour), "Evacuator a has made no progress for 30m0s: it is the turn of evacuator b."},
		{anEvacuation("a:1").turnOf("a", 0).at(time.Hour), "Evacuator a has made no progress for 30m0s, and no evacuator is left: the Pod is evicted."},
		{anEvacuation(), "The Pod has no evacuator: the Pod is evicted."},
		{anEvacuation().of(daemonSet), "The Pod has no evacuator. Pods of type DaemonSet are never evicted."},
		{anEvacuation("a:1").drainEnds(0), "The time of the drain ends at 2026-03-01T12:00:00Z, too soon for evacuators: the Pod is evicted."},
		{anEvacuation().podGone(), `There is no Pod "web-0" with the UID "` + uid + `".`},
	} {
		if got := test.given.next(t).Message; got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

func withDeadline(seconds int32, g *given) *given {
	g.Evacuation.Spec.ProgressDeadlineSeconds = seconds
	return g
}

func stopsIn(gracePeriod time.Duration, g *given) *given {
	g.Pod.GracePeriod = gracePeriod
	return g
}

func noProgress(g *given) *given {
	g.Evacuation.Status.EvacuationProgressTimestamp = nil
	return g
}

func TestEachEvacuatorHasOneTurn(t *testing.T) { // E11, E12, E14
	g := anEvacuation("c:1", "a:3", "b:2")
	var turns []string
	for range 10 {
		action := g.next(t)
		g.apply(t)
		if action.Kind == evacuation.Evict {
			break
		}
		turns = append(turns, string(action.Kind)+" "+action.Class)
		g.Now = action.Deadline
	}
	want := []string{"Activate a", "Activate b", "Activate c"}
	if !slices.Equal(turns, want) {
		t.Errorf("got %v, want %v, then the eviction", turns, want)
	}
}
