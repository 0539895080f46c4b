package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// PodTypeOf returns the type of a Pod (R22).
//
// daemonSetExists returns whether the DaemonSet with this UID exists, and whether that is known. If it is not, the type is not known: it is
// DaemonSet or, for a Pod whose DaemonSet was deleted, Default (M8).
//
// The DaemonSet is identified by its UID, since a new one may have the same name, and by its API group, since other projects have kinds
// named DaemonSet.
func PodTypeOf(pod *corev1.Pod, daemonSetExists func(namespace, name string, uid types.UID) (exists, known bool)) (podType v1alpha1.PodType, known bool) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return v1alpha1.PodTypeStatic, true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !isDaemonSet(owner) {
		return v1alpha1.PodTypeDefault, true
	}
	exists, known := daemonSetExists(pod.Namespace, owner.Name, owner.UID)
	switch {
	case !known:
		return v1alpha1.PodTypeDaemonSet, false
	case !exists:
		return v1alpha1.PodTypeDefault, true
	default:
		return v1alpha1.PodTypeDaemonSet, true
	}
}

func isDaemonSet(owner *metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == appsv1.GroupName && owner.Kind == "DaemonSet"
}

// DeploymentOf returns the name of the Deployment that a Pod seems to belong to, or "": a ReplicaSet of a Deployment is
// named after it and the hash of the template. surge.Controls verifies it.
func DeploymentOf(pod *corev1.Pod) string {
	hash, owner := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey], metav1.GetControllerOfNoCopy(pod)
	if hash == "" || owner == nil || owner.Kind != "ReplicaSet" || !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") {
		return ""
	}
	name, ours := strings.CutSuffix(owner.Name, "-"+hash)
	if !ours {
		return ""
	}
	return name
}

// Finished reports whether the Pod has succeeded or failed. Such a Pod blocks nothing (M8), and behavior WaitCompleted waits for it (M5).
// Cluster API does not check it (https://github.com/kubernetes-sigs/cluster-api/issues/12920).
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Ready reports whether a Pod is ready, as PodDisruptionBudgets and Deployments count it.
func Ready(pod *corev1.Pod) bool { return ReadyCondition(pod).Status == corev1.ConditionTrue }

// ReadyCondition returns the condition Ready of a Pod, without a type if it has none.
func ReadyCondition(pod *corev1.Pod) corev1.PodCondition {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if at < 0 {
		return corev1.PodCondition{}
	}
	return pod.Status.Conditions[at]
}

// UnreadyFor reports whether a Pod has not been ready for a duration.
func UnreadyFor(pod *corev1.Pod, d time.Duration, now time.Time) bool {
	ready := ReadyCondition(pod)
	return ready.Type != "" && ready.Status != corev1.ConditionTrue && now.Sub(ready.LastTransitionTime.Time) >= d
}

// Unschedulable returns the condition of a Pod that says that the scheduler has found no Node for it, nil if there is none. It has a
// nominated Node while the scheduler preempts other Pods for it there.
func Unschedulable(pod *corev1.Pod) *corev1.PodCondition {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || pod.Status.NominatedNodeName != "" {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c
		}
	}
	return nil
}

// Values of the drain label in messages. DrainLabel accepts more spellings.
const (
	labelSkip          = "skip"
	labelWaitCompleted = "wait-completed"
)

// DrainLabel parses the label cluster.x-k8s.io/drain of a Pod. It accepts the same spellings as Cluster API: "skip" and, with or without
// one hyphen, "waitcompleted", in upper and lower case (M2).
//
// Without the label, both results are empty. Another value counts as no label, and is returned as unknownValue for an event on the Pod: its
// owner expects a protection that does not exist. An empty value is returned as two quotes.
func DrainLabel(labels map[string]string) (behavior v1alpha1.DrainBehavior, unknownValue string) {
	value, found := labels[clusterv1.PodDrainLabel]
	switch {
	case !found:
		return "", ""
	case strings.EqualFold(value, labelSkip):
		return v1alpha1.DrainBehaviorSkip, ""
	case strings.EqualFold(strings.Replace(value, "-", "", 1), "waitcompleted"):
		return v1alpha1.DrainBehaviorWaitCompleted, ""
	case value == "":
		return "", `""`
	default:
		return "", value
	}
}

// UnknownDrainLabel returns the message of an event on a Pod whose drain label has an unknown value (M2). It is empty if the label is
// valid, or if the NodeMaintenance ignores it.
func UnknownDrainLabel(m *v1alpha1.NodeMaintenance, labels map[string]string) string {
	if _, unknownValue := DrainLabel(labels); unknownValue == "" || m.Spec.DrainLabelPolicy == v1alpha1.DrainLabelPolicyIgnore {
		return ""
	}
	return fmt.Sprintf("Label %s has the unknown value %q, so it does not protect the Pod from NodeMaintenance %s. Valid values are %s and %s.",
		clusterv1.PodDrainLabel, labels[clusterv1.PodDrainLabel], m.Name, labelSkip, labelWaitCompleted)
}

// labelText returns a drain label as messages name it.
func labelText(behavior v1alpha1.DrainBehavior) string {
	value := labelSkip
	if behavior == v1alpha1.DrainBehaviorWaitCompleted {
		value = labelWaitCompleted
	}
	return "label " + clusterv1.PodDrainLabel + ": " + value
}

// maxGracePeriod limits grace periods: a Pod may declare any number of seconds, and the duration must not overflow.
const maxGracePeriod = 100 * 365 * 24 * time.Hour

// GracePeriod returns a number of seconds that a Pod declares, or that the API server has set for it, as a duration of at most a hundred
// years. Kubernetes takes a negative number for one second.
func GracePeriod(seconds int64) time.Duration {
	if seconds < 0 {
		return time.Second
	}
	return time.Duration(min(seconds, int64(maxGracePeriod/time.Second))) * time.Second
}

// GracePeriodOf returns the time that a Pod has to terminate by its own spec.
func GracePeriodOf(pod *corev1.Pod) time.Duration {
	return GracePeriod(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds))
}

// RequestedGracePeriod returns the time that a Pod has to terminate when we evict or delete it, and the grace period of that request, nil
// for the Pod's own. On an unreachable Node it is the minimum, since the kubelet does not confirm the termination there.
func RequestedGracePeriod(pod *corev1.Pod, nodeUnreachable bool) (period time.Duration, seconds *int64) {
	if nodeUnreachable {
		return GracePeriod(unreachableGracePeriodSeconds), ptr.To(unreachableGracePeriodSeconds)
	}
	return GracePeriodOf(pod), nil
}

// DeletionRequested returns when the deletion of a Pod was requested, zero if it was not: its deletionTimestamp is the end of the grace
// period.
func DeletionRequested(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(-GracePeriod(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)))
}

// unreachableGracePeriodSeconds is the grace period of Pods on an unreachable Node, where no kubelet waits for them to terminate. Cluster
// API uses the same.
const unreachableGracePeriodSeconds int64 = 1

// Unreachable reports whether the condition Ready of a Node is Unknown: the node controller gets no heartbeats from its kubelet.
func Unreachable(node *corev1.Node) bool {
	_, unreachable := UnreachableSince(node)
	return unreachable
}

// UnreachableSince is Unreachable, and returns since when.
func UnreachableSince(node *corev1.Node) (since time.Time, unreachable bool) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.LastTransitionTime.Time, condition.Status == corev1.ConditionUnknown
		}
	}
	return time.Time{}, false
}

// Overdue reports whether the grace period of a Pod on an unreachable Node has ended. Such a Pod blocks nothing, since no kubelet confirms
// that it has terminated. overdueAt is the time at which the grace period ends.
func Overdue(pod *corev1.Pod, nodeUnreachable bool, now time.Time) (overdue bool, overdueAt time.Time) {
	if !nodeUnreachable || pod.DeletionTimestamp == nil {
		return false, time.Time{}
	}
	overdueAt = pod.DeletionTimestamp.Add(time.Duration(unreachableGracePeriodSeconds) * time.Second)
	return !now.Before(overdueAt), overdueAt
}
