package surge

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// way is how replicas are added: by the Deployment's number of replicas, or by an autoscaler's minReplicas.
type way interface {
	// edited names what another actor has changed since the baseline was recorded, and the actor. Empty: nothing.
	edited() (what, actor string)
	// raised reports whether the number has been raised.
	raised() bool
	// raiseDeployment and raiseAutoscaler return the write that raises the number; nil if the other object is written.
	raiseDeployment() *appsv1.Deployment
	raiseAutoscaler() *autoscalingv2.HorizontalPodAutoscaler
	// lower returns the next write that scales back. The last one drops the baseline.
	lower() Decision
	// drop returns the next write that ends the surge and keeps the edits of another actor.
	drop() Decision
}

func (s *surging) way() way {
	if s.b.Autoscaler == nil {
		return byReplicas{s}
	}
	for _, each := range s.Autoscalers {
		if each.UID == s.b.Autoscaler.UID {
			return byAutoscaler{s, each}
		}
	}
	return byAutoscaler{s, nil}
}

func (s *surging) withBaseline(b *Baseline) *appsv1.Deployment {
	d := s.Deployment.DeepCopy()
	SetBaseline(d, b)
	return d
}

// scaledBack returns the Deployment with the recorded number of replicas and without the baseline, for a single write.
func (s *surging) scaledBack() *appsv1.Deployment {
	d := s.withBaseline(nil)
	d.Spec.Replicas = ptr.To(s.b.Replicas)
	return d
}

func (s *surging) templateEdited() bool {
	return templateHash(s.Deployment.Spec.Template) != s.b.Template
}

// byReplicas scales the Deployment itself.
type byReplicas struct{ *surging }

func (w byReplicas) raised() bool { return w.b.Raised }

func (w byReplicas) replicasEdited() bool {
	if w.raised() {
		return replicas(w.Deployment) != w.b.Surged
	}
	return replicas(w.Deployment) != w.b.Replicas
}

func (w byReplicas) edited() (what, actor string) {
	switch {
	case w.replicasEdited():
		return "the number of replicas", ownerOf(w.Deployment, "replicas")
	case w.templateEdited():
		return "the template", anotherActor
	}
	return "", ""
}

func (w byReplicas) raiseDeployment() *appsv1.Deployment {
	b := *w.b
	b.Raised = true
	d := w.withBaseline(&b)
	d.Spec.Replicas = ptr.To(b.Surged)
	return d
}

func (w byReplicas) raiseAutoscaler() *autoscalingv2.HorizontalPodAutoscaler { return nil }

func (w byReplicas) lower() Decision {
	if !w.raised() {
		return Decision{Deployment: w.withBaseline(nil)}
	}
	return Decision{Deployment: w.scaledBack()}
}

func (w byReplicas) drop() Decision {
	if w.replicasEdited() {
		return Decision{Deployment: w.withBaseline(nil)}
	}
	return w.lower() // the number is still the one that the surge has written
}

// byAutoscaler raises the minReplicas of a HorizontalPodAutoscaler, nil if it does not exist any more.
type byAutoscaler struct {
	*surging
	autoscaler *autoscalingv2.HorizontalPodAutoscaler
}

func (w byAutoscaler) raised() bool { return w.autoscaler != nil && noteOf(w.autoscaler) != nil }

// wasRaised reports whether the autoscaler has no note any more: a tool has replaced it. That it is raised is reported to the Pods before
// the write, which may fail, and is repeated for restartTime. A drain that is suspended between the two, and for longer, looks the same.
func (w byAutoscaler) wasRaised() bool {
	return !w.raised() && w.b.Returning == nil && slices.ContainsFunc(w.Leaving, func(pod Leaving) bool {
		return w.b.includes(pod.UID) && pod.Surged == EventSurged && !w.Now.Before(pod.Progress.Add(restartTime))
	})
}

func (w byAutoscaler) minEdited() bool {
	switch {
	case w.autoscaler == nil:
		return false
	case w.raised():
		return minReplicas(w.autoscaler) != w.b.Surged
	default:
		return w.b.Returning == nil && (!ptr.Equal(w.autoscaler.Spec.MinReplicas, w.b.Autoscaler.MinReplicas) || w.autoscaler.Spec.MaxReplicas < w.b.Surged)
	}
}

func (w byAutoscaler) edited() (what, actor string) {
	switch {
	case w.autoscaler == nil || w.wasRaised():
		return "the HorizontalPodAutoscaler", anotherActor
	case w.minEdited():
		field := "minReplicas"
		if !w.raised() && ptr.Equal(w.autoscaler.Spec.MinReplicas, w.b.Autoscaler.MinReplicas) {
			field = "maxReplicas"
		}
		return "the " + field + " of the HorizontalPodAutoscaler", ownerOf(w.autoscaler, field)
	case w.b.Returning == nil && w.templateEdited():
		return "the template", anotherActor
	}
	return "", ""
}

func (w byAutoscaler) raiseDeployment() *appsv1.Deployment { return nil }

func (w byAutoscaler) raiseAutoscaler() *autoscalingv2.HorizontalPodAutoscaler {
	h := w.autoscaler.DeepCopy()
	markObject(h, note{
		Autoscaler: h.UID, Deployment: w.Deployment.UID, Name: w.Deployment.Name, Before: h.Spec.MinReplicas, Replicas: w.b.Replicas, Raised: w.b.Surged,
	}, "")
	h.Spec.MinReplicas = ptr.To(w.b.Surged)
	return h
}

// lower records when the autoscaler starts to scale back, restores its minReplicas, and waits until it has scaled back.
func (w byAutoscaler) lower() Decision {
	switch {
	case w.raised() && w.b.Returning == nil:
		b := *w.b
		b.Returning = ptr.To(metav1.NewTime(w.Now.UTC()))
		return Decision{
			Deployment: w.withBaseline(&b),
			Event:      &Event{Reason: EventCompleted, Message: "Restoring the minReplicas of HorizontalPodAutoscaler " + w.b.Autoscaler.Name},
		}
	case w.raised():
		return Decision{Autoscaler: restored(w.autoscaler)}
	case w.b.Returning == nil, replicas(w.Deployment) <= w.b.Replicas: // never raised, or scaled back
		return Decision{Deployment: w.withBaseline(nil)}
	}
	number, until := replicas(w.Deployment), w.b.Returning.Add(ReturnTime)
	switch {
	case number <= w.b.Surged && w.Now.Before(until) && until.Sub(w.Now) <= 2*ReturnTime: // else a manager with a wrong clock wrote it
		return Decision{RequeueAt: until}
	case number == w.b.Surged:
		d := w.scaledBack()
		if w.autoscaler != nil && minReplicas(w.autoscaler) > w.b.Replicas { // another actor has edited it: the autoscaler would add them again
			d.Spec.Replicas = ptr.To(minReplicas(w.autoscaler))
		}
		return Decision{
			Deployment: d, Event: &Event{
				Warning: true, Reason: EventCompleted,
				Message: "Scaled back to " + text.Count(replicas(d), "replica") + ": HorizontalPodAutoscaler " + w.b.Autoscaler.Name + " did not scale back within " +
					ReturnTime.String(),
			},
		}
	case len(w.Marked) > 0: // they are not deleted now
		return Decision{Unmark: w.Marked}
	}
	return Decision{
		Deployment: w.withBaseline(nil), Event: &Event{
			Reason:  EventCompleted,
			Message: "HorizontalPodAutoscaler " + w.b.Autoscaler.Name + ", or another actor, has set " + text.Count(number, "replica") + ": the Deployment keeps them",
		},
	}
}

func (w byAutoscaler) drop() Decision {
	switch {
	case w.autoscaler == nil && replicas(w.Deployment) == w.b.Surged:
		return Decision{Deployment: w.scaledBack()} // without the autoscaler, no controller scales it back
	case w.autoscaler == nil:
		return Decision{Deployment: w.withBaseline(nil)}
	case w.raised() && w.b.Returning == nil && minReplicas(w.autoscaler) < w.b.Surged: // without metrics, it does not scale back
		return w.lower()
	case w.minEdited() && w.raised():
		return Decision{Autoscaler: restored(w.autoscaler)}
	case w.minEdited():
		return Decision{Deployment: w.withBaseline(nil)}
	default:
		return w.lower()
	}
}
