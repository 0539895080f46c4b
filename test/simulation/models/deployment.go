package models

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Annotations of Deployments and their ReplicaSets.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
)

// deployments is the Deployment controller.
type deployments struct{ hashes hashes }

func (d *deployments) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	all, sets := &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}
	if err := read(ctx, c, all, sets); err != nil {
		return 0, err
	}
	owned := byController(slices.DeleteFunc(pointers(sets.Items), func(set *appsv1.ReplicaSet) bool { return set.DeletionTimestamp != nil }))
	for _, deployment := range pointers(all.Items) {
		if deployment.DeletionTimestamp == nil {
			failed = cmp.Or(failed, d.reconcile(ctx, c, deployment, owned[deployment.UID]))
		}
	}
	return 0, failed
}

// rollout is a rolling update of a Deployment.
type rollout struct {
	deployment                        *appsv1.Deployment
	sets                              []*appsv1.ReplicaSet // by revision
	newest                            *appsv1.ReplicaSet
	revision                          int
	desired, maxSurge, maxUnavailable int32
}

func (d *deployments) reconcile(ctx context.Context, c client.Client, deployment *appsv1.Deployment, sets []*appsv1.ReplicaSet) error {
	hash := d.hashes.of(deployment, deployment.Spec.Template)
	slices.SortStableFunc(sets, func(a, b *appsv1.ReplicaSet) int { return revisionOf(a) - revisionOf(b) })
	at := slices.IndexFunc(sets, func(set *appsv1.ReplicaSet) bool { return set.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == hash })
	latest := 0
	if len(sets) > 0 {
		latest = revisionOf(sets[len(sets)-1])
	}
	if at < 0 {
		return create(ctx, c, newReplicaSet(deployment, hash, latest+1))
	}
	r := &rollout{deployment: deployment, sets: sets, newest: sets[at], revision: revisionOf(sets[at]), desired: ptr.Deref(deployment.Spec.Replicas, 1)}
	if r.revision < latest { // the Deployment was rolled back
		r.revision = latest + 1
	}
	r.maxSurge, r.maxUnavailable = rollingLimits(deployment, r.desired)
	if err := r.scale(ctx, c, r.nextShares()); err != nil {
		return err
	}
	updated, err := update(ctx, c, deployment, func(deployment *appsv1.Deployment) {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, revisionAnnotation, strconv.Itoa(r.revision))
	})
	if err != nil {
		return err
	}
	return setStatus(ctx, c, updated, r.setStatus)
}

// nextShares returns how many replicas each ReplicaSet has after the next step, by UID.
func (r *rollout) nextShares() map[types.UID]*replicaShare {
	shares := map[types.UID]*replicaShare{}
	var oldShares []*replicaShare
	remaining := int32(0) // Pods of old ReplicaSets
	for _, set := range r.sets {
		shares[set.UID] = &replicaShare{replicas: ptr.Deref(set.Spec.Replicas, 1), available: set.Status.AvailableReplicas}
		if set != r.newest {
			oldShares = append(oldShares, shares[set.UID])
			remaining += set.Status.Replicas + ptr.Deref(set.Status.TerminatingReplicas, 0)
		}
	}
	switch {
	case r.deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		for _, share := range oldShares {
			share.replicas = 0
		}
		if remaining == 0 {
			shares[r.newest.UID].replicas = r.desired
		}
	case !r.deployment.Spec.Paused:
		roll(r.desired, r.maxSurge, r.maxUnavailable, shares[r.newest.UID], oldShares)
	}
	return shares
}

// scale sets the replicas and the annotations of the ReplicaSets.
func (r *rollout) scale(ctx context.Context, c client.Client, shares map[types.UID]*replicaShare) (failed error) {
	for _, set := range r.sets {
		_, err := update(ctx, c, set, func(set *appsv1.ReplicaSet) {
			set.Spec.Replicas = ptr.To(shares[set.UID].replicas)
			if set.UID == r.newest.UID {
				metav1.SetMetaDataAnnotation(&set.ObjectMeta, revisionAnnotation, strconv.Itoa(r.revision))
			}
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, desiredReplicasAnnotation, strconv.Itoa(int(r.desired)))
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, maxReplicasAnnotation, strconv.Itoa(int(r.desired+r.maxSurge)))
		})
		failed = cmp.Or(failed, err)
	}
	return failed
}

func (r *rollout) setStatus(deployment *appsv1.Deployment) {
	status := &deployment.Status
	status.ObservedGeneration, status.UpdatedReplicas = deployment.Generation, r.newest.Status.Replicas
	status.Replicas, status.ReadyReplicas, status.AvailableReplicas = 0, 0, 0
	for _, set := range r.sets {
		status.Replicas += set.Status.Replicas
		status.ReadyReplicas += set.Status.ReadyReplicas
		status.AvailableReplicas += set.Status.AvailableReplicas
	}
	status.UnavailableReplicas = max(0, max(r.desired, status.Replicas)-status.AvailableReplicas)
	isAvailable := status.AvailableReplicas >= r.desired-r.maxUnavailable
	setDeploymentCondition(status, appsv1.DeploymentAvailable, isAvailable, "MinimumReplicasAvailable", "MinimumReplicasUnavailable")
	isComplete := status.UpdatedReplicas == r.desired && status.Replicas == r.desired && status.AvailableReplicas == r.desired
	reason := "ReplicaSetUpdated"
	if isComplete {
		reason = "NewReplicaSetAvailable"
	}
	setDeploymentCondition(status, appsv1.DeploymentProgressing, true, reason, "")
}

func revisionOf(set *appsv1.ReplicaSet) int {
	revision, _ := strconv.Atoi(set.Annotations[revisionAnnotation])
	return revision
}

// newReplicaSet returns a ReplicaSet without replicas. The next step of the rolling update scales it.
func newReplicaSet(deployment *appsv1.Deployment, hash string, revision int) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: deployment.Namespace, Name: deployment.Name + "-" + hash,
		Annotations:     map[string]string{revisionAnnotation: strconv.Itoa(revision)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
	}}
	set.Spec = appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Template: *deployment.Spec.Template.DeepCopy(), Selector: deployment.Spec.Selector.DeepCopy()}
	metav1.SetMetaDataLabel(&set.Spec.Template.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	if set.Spec.Selector == nil {
		set.Spec.Selector = &metav1.LabelSelector{}
	}
	metav1.AddLabelToSelector(set.Spec.Selector, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	set.Labels = maps.Clone(set.Spec.Template.Labels)
	return set
}

// rollingLimits returns maxSurge and maxUnavailable. Both default to 25%.
func rollingLimits(deployment *appsv1.Deployment, desired int32) (maxSurge, maxUnavailable int32) {
	quarter := intstr.FromString("25%")
	limits := ptr.Deref(deployment.Spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
	maxSurge = resolve(ptr.Deref(limits.MaxSurge, quarter), desired, true)
	maxUnavailable = resolve(ptr.Deref(limits.MaxUnavailable, quarter), desired, false)
	if maxSurge == 0 && maxUnavailable == 0 {
		maxUnavailable = 1
	}
	return maxSurge, min(maxUnavailable, desired)
}

// resolve returns a number, or a percentage of a total. An invalid value is 0.
func resolve(value intstr.IntOrString, total int32, up bool) int32 {
	resolved, _ := intstr.GetScaledValueFromIntOrPercent(&value, int(total), up)
	return int32(resolved)
}

func setDeploymentCondition(status *appsv1.DeploymentStatus, conditionType appsv1.DeploymentConditionType, is bool, reason, otherwise string) {
	condition := appsv1.DeploymentCondition{Type: conditionType, Status: corev1.ConditionTrue, Reason: reason, LastUpdateTime: now(), LastTransitionTime: now()}
	if !is {
		condition.Status, condition.Reason = corev1.ConditionFalse, otherwise
	}
	at := slices.IndexFunc(status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == conditionType })
	switch {
	case at < 0:
		status.Conditions = append(status.Conditions, condition)
	case status.Conditions[at].Status != condition.Status:
		status.Conditions[at] = condition
	case status.Conditions[at].Reason != condition.Reason:
		condition.LastTransitionTime = status.Conditions[at].LastTransitionTime
		status.Conditions[at] = condition
	}
}

// runReplicaSets is the ReplicaSet controller.
func runReplicaSets(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	sets, pods := &appsv1.ReplicaSetList{}, &corev1.PodList{}
	if err := read(ctx, c, sets, pods); err != nil {
		return 0, err
	}
	owned := byController(pointers(pods.Items))
	for _, set := range pointers(sets.Items) {
		if set.DeletionTimestamp == nil {
			failed = cmp.Or(failed, reconcileReplicaSet(ctx, c, set, owned[set.UID]))
		}
	}
	return 0, failed
}

func reconcileReplicaSet(ctx context.Context, c client.Client, set *appsv1.ReplicaSet, pods []*corev1.Pod) (failed error) {
	active := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !isActive(pod) })
	missing := int(ptr.Deref(set.Spec.Replicas, 1)) - len(active)
	for range missing {
		pod := newPod(&set.Spec.Template, set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), nil)
		failed = cmp.Or(failed, errors.Wrapf(c.Create(ctx, pod), "creating a Pod of ReplicaSet %s", set.Name))
	}
	for _, pod := range byDeletion(active)[:max(0, -missing)] {
		failed = cmp.Or(failed, remove(ctx, c, pod))
	}
	return cmp.Or(failed, setStatus(ctx, c, set, func(set *appsv1.ReplicaSet) {
		status := &set.Status
		status.ObservedGeneration, status.Replicas, status.FullyLabeledReplicas = set.Generation, int32(len(active)), int32(len(active))
		status.ReadyReplicas = ready(active)
		status.AvailableReplicas = status.ReadyReplicas
		terminating := int32(0)
		for _, pod := range pods {
			if pod.DeletionTimestamp != nil && !rules.Finished(pod) {
				terminating++
			}
		}
		status.TerminatingReplicas = &terminating
	}))
}

// ready returns how many Pods are ready.
func ready(pods []*corev1.Pod) (count int32) {
	for _, pod := range pods {
		if rules.Ready(pod) {
			count++
		}
	}
	return count
}
