package surge

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Refusal is why no room is made for a Pod: the reason of the condition Surged of its Evacuation. It is evicted then.
type Refusal string

// What may be in the way.
const (
	NoDeployment        Refusal = "NoDeployment"
	NotAsked            Refusal = "NotAsked"
	TooManyReplicas     Refusal = "MoreThanOneReplica"
	PodNotReady         Refusal = "PodNotReady"
	NotChosen           Refusal = "AnotherPodWasDeleted"
	NotAvailable        Refusal = "NewPodsNotAvailable"
	Edited              Refusal = "EditedMeanwhile"
	Recreated           Refusal = "RecreateStrategy"
	Paused              Refusal = "RolloutPaused"
	Progressing         Refusal = "RolloutInProgress"
	Unavailable         Refusal = "ReplicasUnavailable"
	ExclusiveVolume     Refusal = "ExclusiveVolume"
	NoVolume            Refusal = "VolumeMissing"
	SeveralAutoscalers  Refusal = "SeveralAutoscalers"
	ForeignAutoscaler   Refusal = "AutoscalerManaged"
	AutoscalerAtMaximum Refusal = "AutoscalerAtMaximum"
)

// begin records the baseline of the next round, where the Deployment may surge.
func begin(o Observation) Decision {
	waiting, reports, last := firstLook(o)
	if last != nil {
		return *last
	}
	if len(waiting) == 0 {
		return Decision{Reports: reports}
	}
	if refusal, why := ineligible(o); refusal != "" {
		return Decision{Reports: append(reports, refuseAll(waiting, refusal, why)...)}
	}
	autoscaler, refusal, why := autoscalerRefusal(o)
	if refusal != "" {
		return Decision{Reports: append(reports, refuseAll(waiting, refusal, why)...)}
	}
	if !settled(o.Deployment) {
		return Decision{Reports: reports, LookAgain: o.Now.Add(settlePace)}
	}
	if why := lacking(o.Deployment); why != "" {
		more, lookAgain := patience(o, waiting, why)
		return Decision{Reports: append(reports, more...), LookAgain: lookAgain}
	}
	declared := replicas(o.Deployment)
	surge := min(size(o.Deployment), len(waiting), maxPods)
	b := &Baseline{Deployment: o.Deployment.UID, Replicas: declared, Template: templateHash(o.Deployment.Spec.Template)}
	if autoscaler != nil {
		surge = min(surge, int(autoscaler.Spec.MaxReplicas-declared))
		b.Autoscaler = &AutoscalerBaseline{Name: autoscaler.Name, UID: autoscaler.UID, MinReplicas: autoscaler.Spec.MinReplicas}
	}
	b.Surged, b.Pods = declared+int32(surge), refs(waiting[:surge]) //nolint:gosec // at most maxPods
	d := Decision{Deployment: o.Deployment.DeepCopy(), Reports: reports}
	SetBaseline(d.Deployment, b)
	return d
}

// firstLook sorts out the Pods for which no room is to be made. While the end of others is still to show, last says to wait.
func firstLook(o Observation) (waiting []Leaving, reports []Report, last *Decision) {
	var chosen []Leaving
	for _, pod := range o.Leaving {
		switch {
		case !pod.Owned:
			reports = append(reports, refuse(pod, NoDeployment, "It is no Pod of a Deployment that is there"))
		case pod.Marked:
			chosen = append(chosen, pod)
		case !pod.Asked || pod.Policy != v1alpha1.SurgeIfSingleReplica && pod.Policy != v1alpha1.SurgeAlways:
			reports = append(reports, refuse(pod, NotAsked, "No NodeMaintenance of its Node asks for a surge"))
		case pod.Policy == v1alpha1.SurgeIfSingleReplica && replicas(o.Deployment) != 1:
			reports = append(reports, refuse(pod, TooManyReplicas, "Its Deployment declares "+count(replicas(o.Deployment))))
		case !pod.Ready:
			reports = append(reports, refuse(pod, PodNotReady, "The Pod isn't ready, so nothing is lost when it goes"))
		default:
			waiting = append(waiting, pod)
		}
	}
	if len(chosen) == 0 {
		return waiting, reports, nil
	}
	// They should be on their way. The next round begins when this one has ended.
	left, onTheWay := partition(chosen, func(l Leaving) bool {
		return settled(o.Deployment) && !o.Now.Before(l.Progress.Add(chosenTime))
	})
	last = &Decision{Reports: append(reports, refuseAll(left, NotChosen, "The Deployment was scaled back, but its ReplicaSet has deleted another Pod")...)}
	if len(onTheWay) > 0 || len(waiting) > 0 {
		last.LookAgain = o.Now.Add(settlePace)
	}
	return waiting, reports, last
}

// ineligible says why the Deployment can't surge.
func ineligible(o Observation) (Refusal, string) {
	d := o.Deployment
	switch {
	case d.DeletionTimestamp != nil:
		return NoDeployment, "Its Deployment is being deleted"
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return Recreated, "Its Deployment has the strategy Recreate: two Pods of it must not run together"
	case d.Spec.Paused:
		return Paused, "The rollout of its Deployment is paused"
	case d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas > d.Status.UpdatedReplicas:
		return Progressing, "Its Deployment rolls out a new template"
	}
	for _, name := range slices.Sorted(maps.Keys(o.Claims)) {
		switch claim := o.Claims[name]; {
		case claim == nil:
			return NoVolume, "There is no PersistentVolumeClaim " + name
		case !shared(claim):
			return ExclusiveVolume, "PersistentVolumeClaim " + name + " can't be mounted on two Nodes"
		}
	}
	return "", ""
}

// ClaimsOf names the PersistentVolumeClaims that all Pods of a template share.
func ClaimsOf(template corev1.PodTemplateSpec) []string {
	var names []string
	for _, volume := range template.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			names = append(names, volume.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

func shared(claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany
	})
}

// settled says whether the last change of the number of replicas has been carried out.
func settled(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas <= replicas(d)
}

// lacking says what the Deployment lacks: only what is available before can stay so.
func lacking(d *appsv1.Deployment) string {
	if available := min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas); available < replicas(d) {
		return fmt.Sprintf("Only %d of the %s of its Deployment are available", available, count(replicas(d)))
	}
	return ""
}

// untilAvailable is reported once, so that it is known since when the Pod waits.
const untilAvailable = "Waiting until all replicas of its Deployment are available."

// patience gives a Deployment settleTime to become available.
func patience(o Observation, waiting []Leaving, why string) (reports []Report, lookAgain time.Time) {
	for _, pod := range waiting {
		switch {
		case pod.Message != untilAvailable:
			reports = append(reports, Report{Pod: pod.UID, Message: untilAvailable})
		case !o.Now.Before(pod.Progress.Add(settleTime)):
			reports = append(reports, refuse(pod, Unavailable, why))
			continue
		}
		lookAgain = o.Now.Add(settlePace)
	}
	return reports, lookAgain
}

// size is how many Pods may move at a time: the maxSurge of the Deployment, rounded up, and at least one.
func size(d *appsv1.Deployment) int {
	maxSurge := intstr.FromString("25%")
	if d.Spec.Strategy.RollingUpdate != nil && d.Spec.Strategy.RollingUpdate.MaxSurge != nil {
		maxSurge = *d.Spec.Strategy.RollingUpdate.MaxSurge
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&maxSurge, int(replicas(d)), true)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

func partition(pods []Leaving, is func(Leaving) bool) (those, others []Leaving) {
	for _, pod := range pods {
		if is(pod) {
			those = append(those, pod)
		} else {
			others = append(others, pod)
		}
	}
	return those, others
}

func count(n int32) string {
	if n == 1 {
		return "1 replica"
	}
	return strconv.Itoa(int(n)) + " replicas"
}
