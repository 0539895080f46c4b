package evacuation_test

import (
	"fmt"
	"math"
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
	want  string // result of summary
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
				t.Error("the action has no message")
			}
		})
	}
}

// summary returns all of an action but its message.
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
	if a.Delete {
		words = append(words, "delete")
	}
	return strings.Join(words, " ")
}

func TestNextWhilePaused(t *testing.T) {
	runNext(t, []nextTest{
		{"M16: evicts no Pod while the Machine is paused", anEvacuation().paused(), "AwaitResume"},
		{"M16: interrupts an eviction", anEvacuation().completed().evicting("BudgetExhausted", "waiting").paused(), "AwaitResume"},
		{"M16: resolves and activates no evacuator", anEvacuation().resolving("a:2").paused(), "AwaitResume"},
		{"M16: finishes when the Pod has finished", anEvacuation().pod(finished).paused(), "Finish delete"},
		{"M16: cancels when all instigators have withdrawn", anEvacuation().heldBy().paused(), "Cancel delete"},
	})
}

func TestNextWhileSuspended(t *testing.T) {
	for name, reason := range map[string]string{
		"M16: the message names a pause of the Machine as a possible reason": "its Machine is paused",
		"M113: the message names hooks of other owners as a possible reason": "hooks of other owners hold its drain",
		"M89: the message names clusterctl move as a possible reason":        "clusterctl move",
	} {
		t.Run(name, func(t *testing.T) {
			if message := anEvacuation().paused().next(t).Message; !strings.Contains(message, reason) {
				t.Errorf("got %q", message)
			}
		})
	}
}

func TestNextResolves(t *testing.T) {
	runNext(t, []nextTest{
		{"E13: resolves a new Evacuation", anEvacuation().resolving("a:2", "b:1"), "Resolve a:2 b:1"},
		{"E13: waits for the Pod to be observed before it resolves", anEvacuation().resolving("a:2").pod(unknown), "AwaitPod"},
		{"E13: keeps evacuators that are set", anEvacuation("c:1").resolving("a:2"), "Activate c until 30m0s"},
		{"E13: does not resolve after the eviction without evacuators was decided", anEvacuation().resolving("a:2").completed(), "Evict NoEvacuator"},
		{"E13: does not resolve while an evacuator is active", anEvacuation().resolving("a:2").turnOf("a", 0), "Evict NoEvacuator"},
		{"E15: does not resolve for a Pod that is terminating", anEvacuation().resolving("a:2").pod(terminating), "AwaitTermination PodTerminating"},
		{
			"E13: resolves for a Pod that is never evicted, although the status has a message",
			anEvacuation().resolving("a:2").of(daemonSet).saying("never evicted"), "Resolve a:2",
		},
	})
}

func TestNextActivatesEvacuators(t *testing.T) {
	runNext(t, []nextTest{
		{"E11: activates the evacuator with the highest priority first", anEvacuation("a:1", "b:2"), "Activate b until 30m0s"},
		{"E11: activates evacuators of equal priority by class", anEvacuation("b:1", "a:1", "c:1"), "Activate a until 30m0s"},
		{"E11: counts the progress deadline from the activation", anEvacuation("a:1").at(time.Hour), "Activate a until 1h30m0s"},
		{"E12: waits for the active evacuator", anEvacuation("a:2", "b:1").turnOf("a", 0).at(29 * time.Minute), "AwaitEvacuator a until 30m0s"},
		{
			"E12: counts the progress deadline from the last progress",
			anEvacuation("a:2", "b:1").turnOf("a", 20*time.Minute).at(40 * time.Minute), "AwaitEvacuator a until 50m0s",
		},
		{
			"E12: activates the next evacuator when the progress deadline is exceeded",
			anEvacuation("a:2", "b:1").turnOf("a", 0).at(30 * time.Minute), "Activate b until 1h0m0s EvacuatorUnresponsive",
		},
		{
			"E12: activates the next evacuator when the active one has completed",
			anEvacuation("a:2", "b:1").turnOf("a", 0).completed().at(time.Minute), "Activate b until 31m0s EvacuatorCompleted",
		},
		{
			"E12: activates evacuators by priority, not in the order of the list",
			anEvacuation("c:1", "a:3", "b:2").turnOf("b", 0).completed(), "Activate c until 30m0s EvacuatorCompleted",
		},
		{
			"E3: uses the progress deadline of the Evacuation",
			withDeadline(600, anEvacuation("a:2", "b:1").turnOf("a", 0).at(10*time.Minute)), "Activate b until 20m0s EvacuatorUnresponsive",
		},
		{"E3: uses the default progress deadline", withDeadline(0, anEvacuation("a:1").turnOf("a", 0).at(time.Minute)), "AwaitEvacuator a until 30m0s"},
		{
			"E12: counts the progress deadline from the creation without a progress timestamp",
			noProgress(anEvacuation("a:2", "b:1").turnOf("a", 0).at(29 * time.Minute)), "AwaitEvacuator a until 30m0s",
		},
		{"E6: uses a progress timestamp within the clock skew unchanged", anEvacuation("a:1").turnOf("a", 30*time.Second), "AwaitEvacuator a until 30m30s"},
		{
			"E6: progress beyond the clock skew counts as progress at the current time",
			anEvacuation("a:1").turnOf("a", 1000*time.Hour).at(time.Minute), "AwaitEvacuator a until 31m0s",
		},
		{
			"E12: activates the next evacuator despite a deletionTimestamp",
			anEvacuation("a:2", "b:1").turnOf("a", 0).deleted().at(30 * time.Minute), "Activate b until 1h0m0s EvacuatorUnresponsive",
		},
	})
}

func TestNextEvicts(t *testing.T) {
	runNext(t, []nextTest{
		{"E14: evicts a Pod without evacuators", anEvacuation(), "Evict NoEvacuator"},
		{
			"E14: evicts the Pod when the progress deadline of the last evacuator is exceeded",
			anEvacuation("a:2", "b:1").turnOf("b", 0).at(30 * time.Minute), "Evict EvacuatorUnresponsive",
		},
		{"E14: evicts the Pod when the last evacuator has completed", anEvacuation("a:2", "b:1").turnOf("b", 0).completed(), "Evict EvacuatorCompleted"},
		{
			"E14: new progress of the evacuator stops the eviction",
			anEvacuation("a:1").turnOf("a", time.Hour).evicting("EvacuatorUnresponsive", "waiting").at(time.Hour), "AwaitEvacuator a until 1h30m0s",
		},
		{
			"E14: progress of an evacuator that has completed does not stop the eviction",
			anEvacuation("a:1").turnOf("a", time.Hour).completed().evicting("EvacuatorCompleted", "waiting").at(time.Hour), "Evict EvacuatorCompleted",
		},
		{"E12: evicts the Pod when the active class is not among the evacuators", anEvacuation("a:2", "b:1").turnOf("x", 0), "Evict NoEvacuator"},
		{"E14: evicts the Pod despite a deletionTimestamp", anEvacuation().deleted(), "Evict NoEvacuator"},
		{"E14: evicts the Pod for the instigator of another actor", anEvacuation().heldBy(theirs), "Evict NoEvacuator"},
	})
}

func TestNextReservesTimeForTheEviction(t *testing.T) {
	runNext(t, []nextTest{
		{"E14: the drain timeout limits the deadline of an evacuator that is activated", anEvacuation("a:1").drainEnds(20 * time.Minute), "Activate a until 19m0s"},
		{
			"E14: the drain timeout limits the deadline of the active evacuator",
			anEvacuation("a:1").turnOf("a", 0).drainEnds(20 * time.Minute).at(time.Minute), "AwaitEvacuator a until 19m0s",
		},
		{"E14: evicts a Pod with a long grace period earlier", stopsIn(5*time.Minute, anEvacuation("a:1").drainEnds(20*time.Minute)), "Activate a until 14m30s"},
		{
			"E14: the drain timeout does not prolong the progress deadline",
			anEvacuation("a:1").turnOf("a", 0).drainEnds(10 * time.Hour).at(time.Minute), "AwaitEvacuator a until 30m0s",
		},
		{
			"E14: evicts the Pod when only the time for the eviction is left",
			anEvacuation("a:1").turnOf("a", 0).drainEnds(20 * time.Minute).at(19 * time.Minute), "Evict DrainEndsSoon",
		},
		{
			"E14: progress does not stop the eviction before the drain timeout",
			anEvacuation("a:1").turnOf("a", 19*time.Minute).drainEnds(20 * time.Minute).at(19 * time.Minute), "Evict DrainEndsSoon",
		},
		{
			"E14: activates no evacuator when only the time for the eviction is left",
			anEvacuation("a:2", "b:1").turnOf("a", 0).completed().drainEnds(20 * time.Minute).at(25 * time.Minute), "Evict DrainEndsSoon",
		},
		{
			"E14: does not resolve when only the time for the eviction is left",
			anEvacuation().resolving("a:1").drainEnds(20 * time.Minute).at(time.Hour), "Evict DrainEndsSoon",
		},
		{
			"E14: keeps the reason EvacuatorCompleted before the drain timeout",
			anEvacuation("a:1").turnOf("a", 0).completed().drainEnds(time.Minute).at(time.Minute), "Evict EvacuatorCompleted",
		},
		{
			"E14: waits for the evacuator again when the drain timeout is extended",
			anEvacuation("a:1").turnOf("a", 0).evicting(evacuation.ReasonDrainEndsSoon, "x").drainEnds(time.Hour).at(19 * time.Minute), "AwaitEvacuator a until 30m0s",
		},
		{
			"E15: reserves no time for a Pod that is never evicted",
			anEvacuation("a:1").turnOf("a", 0).of(daemonSet).drainEnds(time.Minute).at(10 * time.Minute), "AwaitEvacuator a until 30m0s",
		},
	})
}

func TestNextNeverEvicts(t *testing.T) {
	const daemonset = v1alpha1.EvacuatorClassDaemonSet + ":10000/controller"
	runNext(t, []nextTest{
		{
			"E15: never evicts a Pod of a DaemonSet", anEvacuation(daemonset).turnOf(v1alpha1.EvacuatorClassDaemonSet, 0).of(daemonSet).at(time.Hour),
			"AwaitTermination PodTypeNeverEvicted",
		},
		{"E15: never evicts a mirror Pod", anEvacuation().of(static), "AwaitTermination PodTypeNeverEvicted"},
		{"E15: waits for a Pod that is terminating", anEvacuation("a:1").turnOf("a", 0).completed().pod(terminating), "AwaitTermination PodTerminating"},
		{
			"E15: waits for a Pod that is terminating while an evacuator is active",
			anEvacuation("a:2", "b:1").turnOf("a", 0).pod(terminating).at(time.Hour), "AwaitTermination PodTerminating",
		},
		{
			"R38: activates the evacuator of a Pod of a DaemonSet",
			anEvacuation(v1alpha1.EvacuatorClassDaemonSet + ":10000/controller").of(daemonSet), "Activate daemonset.apps.k8s.io until 30m0s",
		},
		{
			"E29: activates the DaemonSet evacuator after one of another instigator",
			anEvacuation("a:1").turnOf("a", 0).of(daemonSet).at(time.Hour), "Activate daemonset.apps.k8s.io until 1h30m0s EvacuatorUnresponsive",
		},
		{"E29: activates it without any evacuator in the spec", anEvacuation().of(daemonSet).completed(), "Activate daemonset.apps.k8s.io until 30m0s NoEvacuator"},
		{
			"E29: activates it again after a late report of another evacuator",
			anEvacuation("a:20000", daemonset).turnOf(v1alpha1.EvacuatorClassDaemonSet, time.Minute).of(daemonSet).completed().at(2 * time.Minute),
			"Activate daemonset.apps.k8s.io until 32m0s EvacuatorCompleted",
		},
		{
			"E29: also with built-in evacuators only",
			anEvacuation(daemonset).turnOf(v1alpha1.EvacuatorClassDaemonSet, time.Minute).of(daemonSet).completed().at(2*time.Minute).limited(0, daemonset),
			"Activate daemonset.apps.k8s.io until 32m0s EvacuatorCompleted",
		},
		{
			"E29: activates no evacuator after it", anEvacuation(daemonset, "b:1").turnOf(v1alpha1.EvacuatorClassDaemonSet, 0).of(daemonSet).at(time.Hour),
			"AwaitTermination PodTypeNeverEvicted",
		},
		{
			"E29: activates it again after an evacuator with a lower priority",
			anEvacuation(daemonset, "b:1").turnOf("b", 0).of(daemonSet).completed().at(time.Minute), "Activate daemonset.apps.k8s.io until 31m0s NoEvacuator",
		},
		{
			"E29: waits for it although the spec does not list it",
			anEvacuation("a:1").turnOf(v1alpha1.EvacuatorClassDaemonSet, 0).of(daemonSet).at(time.Minute), "AwaitEvacuator daemonset.apps.k8s.io until 30m0s",
		},
		{
			"R38: waits for the evacuator that makes progress", anEvacuation("a:1").turnOf("a", time.Hour).of(daemonSet).at(time.Hour), "AwaitEvacuator a until 1h30m0s",
		},
		{
			"R38: waits for the Pod when the evacuator has completed", anEvacuation("a:1").turnOf("a", 0).completed().of(static), "AwaitTermination PodTypeNeverEvicted",
		},
	})
}

func TestNextEnds(t *testing.T) {
	runNext(t, []nextTest{
		{"E8: deletes the Evacuation once", anEvacuation().completed().deleted().podGone(), "Finish"},
		{"E8: keeps foreign finalizers", anEvacuation().completed().heldBy(foreign).deleted().podGone(), "Done"},
		{"E9: allows cancellation when the Pod has been deleted", anEvacuation().completed().forbidding().heldBy(foreign).deleted().podGone(), "Finish"},
		{"E16: finishes when the Pod has finished", anEvacuation("a:1").pod(finished), "Finish delete"},
		{"E16: finishes when a Pod of a DaemonSet has finished", anEvacuation("a:1").of(daemonSet).pod(finished), "Finish delete"},
		{"E16: finishes when a terminating Pod has finished", anEvacuation("a:1").pod(terminating).pod(finished), "Finish delete"},
		{"E16: finishes while an evacuator is active", anEvacuation("a:1").turnOf("a", 0).podGone(), "Finish delete"},
		{
			"E16: finishes after the Pod was observed only while terminating",
			anEvacuation("a:1").saying("The Pod is terminating.").podGone(), "Finish delete",
		},
		{"E2: fails when the Pod has never existed", anEvacuation("a:1").unowned().podGone(), "Fail PodNotFound delete"},
		{"E2: does not fail when the Pod was observed before", anEvacuation("a:1").podGone(), "Finish delete"},
		{"E43: leaves the deletion to the garbage collector", anEvacuation().goneSince(0), "AwaitCollection until 5s"},
		{
			"E43: leaves the deletion to the garbage collector if nothing else holds the Evacuation",
			anEvacuation().requestedByAnnotation().goneSince(0), "AwaitCollection until 5s",
		},
		{"E43: deletes the Evacuation if the garbage collector does not", anEvacuation().requestedByAnnotation().goneSince(0).at(5 * time.Second), "Finish delete"},
		{"E43: removes the finalizers after the garbage collector", anEvacuation().deleted().goneSince(0), "Finish"},
		{"E43: deletes the Evacuation of a finished Pod, which the garbage collector keeps", anEvacuation().pod(finished), "Finish delete"},
		{"E43: deletes an Evacuation that its Pod does not own", anEvacuation().completed().unowned().goneSince(0), "Finish delete"},
		{"E2: finishes an Evacuation that is being deleted", anEvacuation("a:1").deleted().podGone(), "Finish"},
		{"E2: waits for the Pod to be observed before it fails", anEvacuation("a:1").pod(unknown), "AwaitPod"},
	})
}

func TestNextDefers(t *testing.T) {
	runNext(t, []nextTest{
		{"R44: defers the eviction of a replacement", anEvacuation().after(time.Minute), "AwaitBackoff until 1m0s ReplacementReturned"},
		{"R44: defers the evacuators of a replacement", anEvacuation().after(time.Minute).resolving("a:1"), "AwaitBackoff until 1m0s ReplacementReturned"},
		{"R44: evicts the replacement after its backoff", anEvacuation().after(time.Minute).at(time.Minute), "Evict NoEvacuator"},
		{"R44: defers for 5 min at most, regardless of the annotation", anEvacuation().after(time.Hour), "AwaitBackoff until 5m30s ReplacementReturned"},
		{
			"R44: leaves time for a final eviction attempt before the drain timeout",
			anEvacuation().after(5 * time.Minute).drainEnds(3 * time.Minute), "AwaitBackoff until 2m0s ReplacementReturned",
		},
		{
			"R44: defers when it is too late for a final eviction attempt",
			anEvacuation().after(time.Minute).drainEnds(time.Minute), "AwaitBackoff until 1m0s ReplacementReturned",
		},
		{"R44: a paused Machine takes precedence", anEvacuation().after(time.Minute).paused(), "AwaitResume"},
		{"R44: does not defer a Pod that is terminating", anEvacuation().after(time.Minute).pod(terminating), "AwaitTermination PodTerminating"},
		{"R44: ignores an annotation that is not a time", anEvacuation().annotated(v1alpha1.EvacuateAfterAnnotation, "tomorrow"), "Evict NoEvacuator"},
	})
}

func TestNextCancels(t *testing.T) {
	runNext(t, []nextTest{
		{"E43: an annotation is a request as well", anEvacuation().requestedByAnnotation(), "Evict NoEvacuator"},
		{"E9: cancels when all instigators have withdrawn", anEvacuation("a:1").turnOf("a", 0).heldBy(), "Cancel delete"},
		{"E9: cancels although foreign finalizers remain", anEvacuation().heldBy(foreign), "Cancel delete"},
		{"E9: deletes the Evacuation once", anEvacuation().heldBy(foreign).deleted(), "Done"},
		{"E9: cancels before the Pod has been observed", anEvacuation().heldBy().pod(unknown), "Cancel delete"},
		{"E9: cancels while the Pod is terminating", anEvacuation().heldBy().pod(terminating), "Cancel delete"},
		{
			"E9: continues with the next evacuator when another instigator has joined",
			anEvacuation("a:2", "b:1").turnOf("a", 0).completed().forbidding().heldBy(theirs), "Activate b until 30m0s EvacuatorCompleted",
		},
		{
			"E9: finishes when the Pod has been deleted although cancellation is not allowed",
			anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().podGone(), "Finish delete",
		},
		{
			"E9: continues an Evacuation that is being deleted while it has an instigator",
			anEvacuation("a:1").turnOf("a", 0).heldBy(theirs).deleted(), "AwaitEvacuator a until 30m0s",
		},
	})
}

func TestNextIgnoresTheWithdrawalUnderForbid(t *testing.T) {
	runNext(t, []nextTest{
		{
			"E31: waits for the active evacuator until its progress deadline",
			anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().at(time.Minute), "AwaitEvacuator a until 30m0s",
		},
		{
			"E31: activates the next evacuator when the active one has completed",
			anEvacuation("a:2", "b:1").turnOf("a", 0).completed().forbidding().heldBy(), "Activate b until 30m0s EvacuatorCompleted",
		},
		{
			"E31: activates the next evacuator when the progress deadline of the active one is exceeded",
			anEvacuation("a:2", "b:1").turnOf("a", 0).forbidding().heldBy().at(30 * time.Minute), "Activate b until 1h0m0s EvacuatorUnresponsive",
		},
		{
			"E31: evicts the Pod when the last evacuator has completed",
			anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy(), "Evict EvacuatorCompleted",
		},
		{
			"E31: evicts the Pod when the progress deadline of the last evacuator is exceeded",
			anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().at(30 * time.Minute), "Evict EvacuatorUnresponsive",
		},
		{
			"E31: continues an eviction that has begun",
			anEvacuation("a:1").turnOf("a", 0).completed().forbidding().evicting("BudgetExhausted", "waiting").heldBy(), "Evict EvacuatorCompleted",
		},
		{
			"E31: evicts the Pod although foreign finalizers remain",
			anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy(foreign).deleted(), "Evict EvacuatorCompleted",
		},
		{
			"E31: never evicts Pods of DaemonSets", anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy().of(daemonSet),
			"Activate daemonset.apps.k8s.io until 30m0s EvacuatorCompleted",
		},
		{"E31: waits for the Pod to be observed", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().pod(unknown), "AwaitPod"},
		{"E31: waits for a Pod that is terminating", anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy().pod(terminating), "AwaitTermination PodTerminating"},
		{"E31: cancels when the evacuator allows it again", anEvacuation("a:1").turnOf("a", 0).heldBy(), "Cancel delete"},
	})
	t.Run("E31: says why an Evacuation continues after the withdrawal", func(t *testing.T) {
		g := anEvacuation("a:1").turnOf("a", 0).completed().forbidding().heldBy()
		if status := g.apply(t).Status; !strings.HasPrefix(status.Message, "All instigators have withdrawn, but the active evacuator does not allow cancellation. ") {
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
		{"no Pod", nil, "{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}"},
		{
			"E2: a Pod with another UID", pod(func(p *corev1.Pod) { p.UID = "other" }),
			"{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}",
		},
		{
			"E35: a Pod with another name", pod(func(p *corev1.Pod) { p.Name = "web-1" }),
			"{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}",
		},
		{
			"E35: a Pod in another namespace", pod(func(p *corev1.Pod) { p.Namespace = "other" }),
			"{Known:true Exists:false Terminating:false Finished:false Type: Node: Controller: GracePeriod:0s}",
		},
		{
			"running", pod(func(*corev1.Pod) {}),
			"{Known:true Exists:true Terminating:false Finished:false Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}",
		},
		{
			"E14: a grace period that overflows", pod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64)) }),
			"{Known:true Exists:true Terminating:false Finished:false Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:876000h0m0s}",
		},
		{
			"E14: a negative grace period", pod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(math.MinInt64)) }),
			"{Known:true Exists:true Terminating:false Finished:false Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:1s}",
		},
		{
			"terminating", pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }),
			"{Known:true Exists:true Terminating:true Finished:false Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}",
		},
		{
			"E16: succeeded", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			"{Known:true Exists:true Terminating:false Finished:true Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}",
		},
		{
			"E16: failed", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			"{Known:true Exists:true Terminating:false Finished:true Type:Default Node:one Controller:Pod shop/web-0 GracePeriod:30s}",
		},
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
		{anEvacuation("a:1"), "The evacuation begins. Evacuator a is active."},
		{anEvacuation("a:2", "b:1").turnOf("a", 0).completed(), "Evacuator a has completed, but the Pod still exists. Evacuator b is active."},
		{anEvacuation("a:2", "b:1").turnOf("a", 0).at(time.Hour), "Evacuator a has made no progress for 30m0s. Evacuator b is active."},
		{anEvacuation("a:1").turnOf("a", 0).at(time.Hour), "Evacuator a has made no progress for 30m0s, and no evacuator is left. Evicting the Pod."},
		{anEvacuation(), "The Pod has no evacuator. Evicting the Pod."},
		{anEvacuation().of(static), "The Pod has no evacuator. Pods of type Static are never evicted."},
		{anEvacuation("a:1").drainEnds(0), "The drain times out at 2026-03-01T12:00:00Z, too soon for evacuators. Evicting the Pod."},
		{anEvacuation().unowned().podGone(), `There is no Pod "web-0" with the UID "` + uid + `".`},
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

func TestActivatesEachEvacuatorOnce(t *testing.T) { // E11, E12, E14
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
