package surge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Refusal is why no replica is added for a Pod: the reason of the condition Surged of its Evacuation. The Pod is evicted instead.
type Refusal string

// Reasons of the condition Surged of Evacuations: why no replica is added.
const (
	// NoDeployment means that the Deployment does not exist, is being deleted or does not control the Pod.
	NoDeployment Refusal = "NoDeployment"
	// NotRequested means that no NodeMaintenance of the Pod's Node requests a surge any more.
	NotRequested Refusal = "NotRequested"
	// TooManyReplicas means that the policy is IfSingleReplica, and the Deployment declares another number of replicas.
	TooManyReplicas Refusal = "MoreThanOneReplica"
	// PodNotReady means that the Pod is not ready, so that its eviction does not reduce the available replicas.
	PodNotReady Refusal = "PodNotReady"
	// NotChosen means that the ReplicaSet deleted another Pod when the Deployment was scaled back.
	NotChosen Refusal = "AnotherPodWasDeleted"
	// NotAvailable means that the new Pods did not become available in time.
	NotAvailable Refusal = "NewPodsNotAvailable"
	// ReplicaFailure means that a new Pod could not be created, because of a ResourceQuota for example.
	ReplicaFailure Refusal = "ReplicaFailure"
	// Unschedulable means that the scheduler found no Node for a new Pod.
	Unschedulable Refusal = "NewPodUnschedulable"
	// Edited means that another actor changed the Deployment or its HorizontalPodAutoscaler during the surge.
	Edited Refusal = "EditedDuringSurge"
	// Recreated means that the strategy of the Deployment is Recreate.
	Recreated Refusal = "RecreateStrategy"
	// Paused means that the rollout of the Deployment is paused.
	Paused Refusal = "RolloutPaused"
	// Progressing means that a rollout of the Deployment is in progress.
	Progressing Refusal = "RolloutInProgress"
	// Unavailable means that the Deployment has fewer available replicas than it declares.
	Unavailable Refusal = "ReplicasUnavailable"
	// Suspended means that the surge of the Deployment is suspended with the drain of another Pod.
	Suspended Refusal = "SurgeSuspended"
	// ExclusiveVolume means that a PersistentVolumeClaim of the Pods cannot be mounted on two Nodes. This is assumed of more than 256 claims.
	ExclusiveVolume Refusal = "ExclusiveVolume"
	// NoVolume means that a PersistentVolumeClaim of the Pods does not exist.
	NoVolume Refusal = "VolumeMissing"
	// SeveralAutoscalers means that more than one HorizontalPodAutoscaler scales the Deployment.
	SeveralAutoscalers Refusal = "SeveralAutoscalers"
	// ForeignAutoscaler means that another object controls the HorizontalPodAutoscaler and would revert a change of minReplicas.
	ForeignAutoscaler Refusal = "AutoscalerManaged"
	// AutoscalerAtMaximum means that the HorizontalPodAutoscaler is at its maxReplicas.
	AutoscalerAtMaximum Refusal = "AutoscalerAtMaximum"
	// AlreadyRestarted means that drains continue during which the Deployment was restarted.
	AlreadyRestarted Refusal = "AlreadyRestarted"
	// RestartReverted means that another actor has restored the Pod template of a Deployment that was being restarted.
	RestartReverted Refusal = "RestartReverted"
	// Interrupting means that a restart could make replicas unavailable, because of maxUnavailable or maxSurge of the Deployment.
	Interrupting Refusal = "RolloutInterrupts"
	// WriteRefused means that the API server refuses a write of the surge, because of an admission policy for example.
	WriteRefused Refusal = "WriteRefused"
	// Managed means that another object controls the Deployment, and would revert a restart.
	Managed Refusal = "DeploymentManaged"
)

// begin records the baseline of the next round if the Deployment may surge.
func begin(o Observation) Decision {
	waiting, reports, last := triage(o)
	if last != nil {
		return *last
	}
	if len(waiting) == 0 {
		return Decision{Reports: reports}
	}
	restarts := slices.DeleteFunc(slices.Clone(waiting), func(pod Leaving) bool { return !pod.Restart })
	switch {
	case len(restarts) == len(waiting):
		return beginRestart(o, waiting, reports)
	case slices.ContainsFunc(restarts, func(pod Leaving) bool { return pod.Restarted != restartedAt(o.Deployment) }): // it was begun before the others waited
		d := beginRestart(o, restarts, reports)
		if refusal, why := ineligible(o); refusal != "" {
			scaled := slices.DeleteFunc(waiting, func(pod Leaving) bool { return pod.Restart })
			d.Reports = append(d.Reports, refuseAll(scaled, refusal, why)...)
		}
		return d
	}
	if refusal, why := ineligible(o); refusal != "" {
		return Decision{Reports: append(reports, refuseAll(waiting, refusal, why)...)}
	}
	autoscaler, refusal, why := autoscalerRefusal(o)
	if refusal != "" {
		return Decision{Reports: append(reports, refuseAll(waiting, refusal, why)...)}
	}
	if !settled(o.Deployment) || replicas(o.Deployment) == 0 { // the watch has not delivered that the Pods are deleted
		return Decision{Reports: reports, RequeueAt: o.Now.Add(settleInterval)}
	}
	if why := lacking(o.Deployment); why != "" {
		more, requeueAt := awaitAvailable(o, waiting, why)
		return Decision{Reports: append(reports, more...), RequeueAt: requeueAt}
	}
	declared := replicas(o.Deployment)
	surge := min(size(o.Deployment), len(waiting), maxPods)
	b := &Baseline{ID: newID(o.Deployment.UID, o.Now), Deployment: o.Deployment.UID, Replicas: declared, Template: templateHash(o.Deployment.Spec.Template)}
	if autoscaler != nil {
		surge = min(surge, int(autoscaler.Spec.MaxReplicas-declared))
		b.Autoscaler = &AutoscalerBaseline{Name: autoscaler.Name, UID: autoscaler.UID, MinReplicas: autoscaler.Spec.MinReplicas}
	}
	b.Surged, b.Pods = declared+int32(surge), refs(waiting[:surge]) //nolint:gosec // at most maxPods
	d := Decision{Deployment: o.Deployment.DeepCopy(), Reports: reports, Serves: waiting}
	SetBaseline(d.Deployment, b)
	return d
}

const notRequested = "No NodeMaintenance of the Pod's Node requests a surge"

// isRequested reports whether a NodeMaintenance requests a surge for the Pod.
func (l Leaving) isRequested() bool {
	return l.Asked && (l.Policy == v1alpha1.SurgeIfSingleReplica || l.Policy == v1alpha1.SurgeAlways)
}

// triage returns the Pods that wait for a surge, and the reports of those that are not surged. If Pods of the previous round have not
// terminated yet, it returns in last the decision to wait for them.
func triage(o Observation) (waiting []Leaving, reports []Report, last *Decision) {
	var chosen, scaled []Leaving
	for _, pod := range o.Leaving {
		switch {
		case !pod.Owned:
			reports = append(reports, refuse(pod, NoDeployment, "Deployment "+nameOf(o.Deployment)+" does not control the Pod"))
		case pod.Marked:
			chosen = append(chosen, pod)
		case pod.Surged == EventSurged && pod.late(o.Now): // the surge has ended, but the report about that may have been refused
			reports = append(reports, refuse(pod, NotAvailable, notAvailable(o.Deployment)))
		case pod.Surged == EventSurged:
			scaled = append(scaled, pod)
		case !pod.isRequested():
			reports = append(reports, refuse(pod, NotRequested, notRequested))
		case pod.Policy == v1alpha1.SurgeIfSingleReplica && replicas(o.Deployment) != 1:
			reports = append(reports, refuse(pod, TooManyReplicas, "Surge policy IfSingleReplica does not apply: Deployment "+nameOf(o.Deployment)+" declares "+
				text.Count(replicas(o.Deployment), "replica")))
		case !pod.Ready:
			reports = append(reports, refuse(pod, PodNotReady, "The Pod is not ready: its eviction does not reduce the available replicas"))
		default:
			waiting = append(waiting, pod)
		}
	}
	if len(scaled) > 0 { // the surge has not ended, but its record is gone; if the watch lags, and it has ended, the first report is a conflict
		reports = append(reports, refuseAll(slices.Concat(scaled, waiting), Edited, "Another actor replaced Deployment "+nameOf(o.Deployment)+" during the surge")...)
		waiting = nil
	}
	return waiting, reports, awaitChosen(o, chosen, waiting, reports)
}

// awaitChosen returns the decision to wait for the marked Pods of the previous round, nil if there are none. Their ReplicaSet is expected
// to delete them. The next round begins when it has.
func awaitChosen(o Observation, chosen, waiting []Leaving, reports []Report) *Decision {
	if len(chosen) == 0 {
		return nil
	}
	left, expected := partition(chosen, func(l Leaving) bool {
		return settled(o.Deployment) && !o.Now.Before(l.Progress.Add(chosenTime))
	})
	why := "Deployment " + nameOf(o.Deployment) + " was scaled back, but its ReplicaSet deleted another Pod"
	// They are unmarked once that is reported, see Abandoned: without a mark, it would look as if another actor had ended the surge.
	d := &Decision{Reports: append(reports, refuseAll(left, NotChosen, why)...)}
	if len(expected) > 0 || len(waiting) > 0 {
		d.RequeueAt = o.Now.Add(settleInterval)
	}
	return d
}

// scaleBackLost scales back a Deployment from which another actor has removed the record of the surge, but not the number of replicas. The
// Deployment controller has copied the record to the ReplicaSet. The Evacuation of a Pod in it says that the surge has not ended. If the
// watch lags, and it has ended, the report is a conflict: the number may be that of another actor. So one report must be accepted.
func scaleBackLost(o Observation) (Decision, bool) {
	var lost *Baseline
	var pods []types.UID
	for _, pod := range o.Leaving {
		if b := pod.lostRecord(o.Deployment); b != nil {
			lost, pods = cmp.Or(lost, b), append(pods, pod.UID)
		}
	}
	if lost == nil {
		return Decision{}, false
	}
	message := "Scaled back to " + text.Count(lost.Replicas, "replica") + ": another actor has removed the record of the surge"
	d := Decision{
		Deployment: o.Deployment.DeepCopy(), Recorded: pods, Event: &Event{Warning: true, Reason: EventSuperseded, Message: message},
	}
	for _, pod := range pods {
		d.Reports = append(d.Reports, Report{Pod: pod, Surged: EventSurged, Message: message + ".", Stalled: true})
	}
	SetBaseline(d.Deployment, nil)
	d.Deployment.Spec.Replicas = &lost.Replicas
	return d, true
}

// lostRecord returns the baseline of the surge of a Pod that another actor has removed from the Deployment, nil if there is none, or if the
// number of replicas is not that of the surge.
func (l Leaving) lostRecord(d *appsv1.Deployment) *Baseline {
	if !l.Owned || l.Surged != EventSurged {
		return nil
	}
	b, err := recordIn(l.Recorded, d)
	if err != nil || !b.includes(l.UID) || b.Autoscaler != nil || b.Surged != replicas(d) {
		return nil
	}
	return b
}

// ineligible returns why the Deployment cannot surge.
func ineligible(o Observation) (Refusal, string) {
	d := o.Deployment
	switch {
	case d.DeletionTimestamp != nil:
		return NoDeployment, "Deployment " + nameOf(d) + " is being deleted"
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return Recreated, "Deployment " + nameOf(d) + " has strategy Recreate: its Pods must not run concurrently with their replacements"
	case d.Spec.Paused:
		return Paused, "The rollout of Deployment " + nameOf(d) + " is paused"
	case rollsOut(d):
		return Progressing, "A rollout of Deployment " + nameOf(d) + " is in progress"
	}
	if len(claimNames(d.Spec.Template)) > MaxClaims {
		return ExclusiveVolume, fmt.Sprintf("Deployment %s has more than %d PersistentVolumeClaims: they are not read", nameOf(d), MaxClaims)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Claims)) {
		switch claim := o.Claims[name]; {
		case claim == nil:
			return NoVolume, "PersistentVolumeClaim " + name + " does not exist"
		case !shared(claim):
			return ExclusiveVolume, "PersistentVolumeClaim " + name + " cannot be mounted on two Nodes"
		}
	}
	return "", ""
}

// MaxClaims is how many claims of a template are read. Their objects are read one by one, and a tenant may write tens of thousands.
const MaxClaims = 256

// ClaimsOf returns the names of the PersistentVolumeClaims that all Pods of a template share, at most MaxClaims.
func ClaimsOf(template corev1.PodTemplateSpec) []string {
	names := claimNames(template)
	return names[:min(len(names), MaxClaims)]
}

func claimNames(template corev1.PodTemplateSpec) []string {
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

// settled reports whether the Deployment controller has observed the last change, and surplus replicas have been deleted.
func settled(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas <= replicas(d)
}

// lacking returns a message if replicas of the Deployment are unavailable: a surge keeps available only the replicas that are available
// before it. A failure of an earlier surge must be over, because it would end the next one.
func lacking(d *appsv1.Deployment) string {
	if available := min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas); available < replicas(d) {
		return fmt.Sprintf("Deployment %s has only %d available of %s", nameOf(d), available, text.Count(replicas(d), "replica"))
	}
	if failed := creationFailure(d); failed != nil {
		return "Deployment " + nameOf(d) + " cannot create Pods: " + oneLine(failed.Message)
	}
	return ""
}

// awaitAvailable waits for a Deployment to become available, and refuses the surge after settleTime.
func awaitAvailable(o Observation, waiting []Leaving, why string) (reports []Report, requeueAt time.Time) {
	return await(o, waiting, "Waiting for all replicas of the Deployment to become available.", Unavailable, why)
}

// awaitHeld waits until no drain of another Pod of the Deployment is suspended any more, and refuses the surge after settleTime: such a
// drain may wait for the end of this one. The message names none of these Pods, because they may change during the wait.
func awaitHeld(o Observation, held, waiting []Leaving) []Report {
	why := fmt.Sprintf("The drain of Pod %s is suspended, and with it a surge of Deployment %s", held[0].Name, nameOf(o.Deployment))
	reports, _ := await(o, waiting, "Waiting for the suspended drain of another Pod of the Deployment.", Suspended, why)
	return reports
}

// await reports what Pods wait for, once: the time of the report is the start of the wait. It refuses the surge after settleTime. While a
// Deployment is scaled for a Pod, its report continues to say so.
func await(o Observation, waiting []Leaving, message string, refusal Refusal, why string) (reports []Report, requeueAt time.Time) {
	for _, pod := range waiting {
		switch {
		case pod.Message != message:
			report := Report{Pod: pod.UID, Message: message}
			if pod.Surged == EventSurged {
				report.Surged = EventSurged
			}
			reports = append(reports, report)
		case !o.Now.Before(pod.Progress.Add(settleTime)):
			reports = append(reports, refuse(pod, refusal, why))
			continue
		}
		requeueAt = o.Now.Add(settleInterval)
	}
	return reports, requeueAt
}

// size returns how many Pods may be replaced at a time: the maxSurge of the Deployment, rounded up, and at least one.
func size(d *appsv1.Deployment) int {
	var maxSurge *intstr.IntOrString
	if d.Spec.Strategy.RollingUpdate != nil {
		maxSurge = d.Spec.Strategy.RollingUpdate.MaxSurge
	}
	n, err := scaled(maxSurge, d, true)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// scaled returns a number of Pods of a rollout, or a percentage of the replicas as a number. The default is that of Deployments.
func scaled(value *intstr.IntOrString, d *appsv1.Deployment, roundUp bool) (int, error) {
	n := ptr.Deref(value, intstr.FromString("25%"))
	return intstr.GetScaledValueFromIntOrPercent(&n, int(replicas(d)), roundUp)
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
