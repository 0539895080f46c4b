package evacuation_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

const (
	ours    = v1alpha1.NodeMaintenanceInstigatorFinalizer
	theirs  = v1alpha1.InstigatorFinalizerPrefix + "descheduler.example.com"
	foreign = "example.com/audit"
	uid     = "6a1f5c2e-9d0b-4c3a-8e7f-1b2c3d4e5f60"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// evacuator reads "class:priority" or "class:priority/role".
func evacuator(s string) v1alpha1.Evacuator {
	class, value, _ := strings.Cut(s, ":")
	number, role, hasRole := strings.Cut(value, "/")
	priority, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	e := v1alpha1.Evacuator{EvacuatorClass: class, Priority: int32(priority)}
	if hasRole {
		e.Role = &role
	}
	return e
}

func evacuators(list ...string) []v1alpha1.Evacuator {
	var all []v1alpha1.Evacuator
	for _, s := range list {
		all = append(all, evacuator(s))
	}
	return all
}

func show(list []v1alpha1.Evacuator) string {
	words := make([]string, 0, len(list))
	for _, e := range list {
		word := e.EvacuatorClass + ":" + strconv.Itoa(int(e.Priority))
		if e.Role != nil {
			word += "/" + *e.Role
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// later returns the evacuators that count for an Evacuation although its spec may not list them.
func later(e *v1alpha1.Evacuation, surges bool) []v1alpha1.Evacuator {
	deployment := evacuator(v1alpha1.EvacuatorClassDeployment + ":10000/controller")
	if active := e.ActiveEvacuator(); active == deployment.EvacuatorClass || surges && active == "" {
		return []v1alpha1.Evacuator{deployment}
	}
	return nil
}

// last returns the class of the last evacuator of a Pod that is never evicted.
func last(pod evacuation.Pod) string {
	if pod.Type == daemonSet {
		return v1alpha1.EvacuatorClassDaemonSet
	}
	return ""
}

// given is an input of Next. It starts with an Evacuation of a running Pod, created at noon with our instigator.
type given struct {
	evacuation.Input
	surges bool // a NodeMaintenance requests a surge
}

func anEvacuation(evacuators ...string) *given {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: uid}}
	e := evacuation.New(pod, nil, 1800)
	for _, s := range evacuators {
		e.Spec.Evacuators = append(e.Spec.Evacuators, evacuator(s))
	}
	e.CreationTimestamp = metav1.NewTime(noon)
	return &given{Input: evacuation.Input{
		Evacuation: e,
		Pod:        evacuation.Pod{Known: true, Exists: true, Type: v1alpha1.PodTypeDefault, GracePeriod: 30 * time.Second},
		Now:        noon,
	}}
}

func (g *given) resolving(list ...string) *given {
	g.ResolvedEvacuators = evacuators(list...)
	return g
}

func (g *given) heldBy(finalizers ...string) *given {
	g.Evacuation.Finalizers = finalizers
	return g
}

// unowned removes the ownerReference, which only Evacuations of observed Pods have.
func (g *given) unowned() *given {
	g.Evacuation.OwnerReferences = nil
	return g
}

// requestedByAnnotation replaces our finalizer.
func (g *given) requestedByAnnotation() *given {
	evacuation.RequestByAnnotation(g.Evacuation)
	return g
}

// terminatingSince is a Pod that terminates since the given time after noon.
func (g *given) terminatingSince(afterNoon time.Duration) *given {
	g.TerminatingSince = noon.Add(afterNoon)
	return g.pod(terminating)
}

// goneSince is a Pod that was first observed not to exist at the given time after noon.
func (g *given) goneSince(afterNoon time.Duration) *given {
	g.GoneSince = noon.Add(afterNoon)
	return g.podGone()
}

func (g *given) deleted() *given {
	now := metav1.NewTime(noon)
	g.Evacuation.DeletionTimestamp = &now
	return g
}

// turnOf activates the class, which has made progress at the given time after noon.
func (g *given) turnOf(class string, progress time.Duration) *given {
	g.Evacuation.Status.ActiveEvacuatorClass = &class
	at := metav1.NewTime(noon.Add(progress))
	g.Evacuation.Status.EvacuationProgressTimestamp = &at
	return g
}

// after defers the evacuation until the given time after noon.
func (g *given) after(afterNoon time.Duration) *given {
	return g.annotated(v1alpha1.EvacuateAfterAnnotation, noon.Add(afterNoon).Format(time.RFC3339))
}

func (g *given) annotated(key, value string) *given {
	metav1.SetMetaDataAnnotation(&g.Evacuation.ObjectMeta, key, value)
	return g
}

func (g *given) paused() *given {
	g.Suspended = true
	return g
}

func (g *given) completed() *given {
	g.Evacuation.Status.ActiveEvacuatorCompleted = true
	return g
}

func (g *given) forbidding() *given {
	g.Evacuation.Status.EvacuationCancellationPolicy = v1alpha1.CancellationForbid
	return g
}

// surging is a Pod for which a NodeMaintenance requests a surge.
func (g *given) surging() *given {
	g.surges = true
	return g
}

func (g *given) saying(message string) *given {
	g.Evacuation.Status.Message = message
	return g
}

func (g *given) evicting(reason, message string) *given {
	meta.SetStatusCondition(&g.Evacuation.Status.Conditions, metav1.Condition{Type: v1alpha1.EvacuationEvicting,
		Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(noon)})
	return g
}

func (g *given) pod(change func(*evacuation.Pod)) *given {
	change(&g.Pod)
	return g
}

func (g *given) of(podType v1alpha1.PodType) *given {
	g.Pod.Type = podType
	return g
}

func (g *given) podGone() *given {
	g.Pod = evacuation.Pod{Known: true}
	return g
}

func (g *given) drainEnds(afterNoon time.Duration) *given {
	ends := noon.Add(afterNoon)
	g.DrainEnds = &ends
	return g
}

func (g *given) at(afterNoon time.Duration) *given {
	g.Now = noon.Add(afterNoon)
	return g
}

// next calls Next, and verifies that it does not change its input.
func (g *given) next(t *testing.T) evacuation.Action {
	t.Helper()
	before := toJSON(t, g.Evacuation)
	g.Later, g.Last = later(g.Evacuation, g.surges), last(g.Pod)
	action := evacuation.Next(g.Input)
	if after := toJSON(t, g.Evacuation); after != before {
		t.Fatalf("Next has changed the Evacuation from\n%s\nto\n%s", before, after)
	}
	return action
}

// apply applies the action that Next returns. It verifies that the API server would accept the result, and that applying the action
// again changes nothing.
func (g *given) apply(t *testing.T) *v1alpha1.Evacuation {
	t.Helper()
	action := g.next(t)
	old := g.Evacuation
	applied := old.DeepCopy()
	action.Apply(applied, g.Now)
	mustBeValid(t, applied, old)
	after := toJSON(t, applied)
	again := stored(t, applied)
	action.Apply(again, g.Now.Add(time.Second))
	if toJSON(t, again) != after {
		t.Fatalf("%s applied twice differs:\n%s\n%s", action.Kind, after, toJSON(t, again))
	}
	g.Evacuation = stored(t, applied)
	return applied
}
