package models

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// disruptionTimeout is how long an eviction counts as a disruption while its Pod is not deleted.
const disruptionTimeout = 2 * time.Minute

// runDisruption sets the status of all PodDisruptionBudgets, as the disruption controller does.
func runDisruption(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	budgets, pods := &policyv1.PodDisruptionBudgetList{}, &corev1.PodList{}
	sets, deployments, statefulSets := &appsv1.ReplicaSetList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{}
	if err := read(ctx, c, budgets, pods, sets, deployments, statefulSets); err != nil {
		return 0, err
	}
	scales := map[types.UID]scale{}
	for _, deployment := range pointers(deployments.Items) {
		scales[deployment.UID] = scale{deployment.UID, ptr.Deref(deployment.Spec.Replicas, 1)}
	}
	for _, set := range pointers(statefulSets.Items) {
		scales[set.UID] = scale{set.UID, ptr.Deref(set.Spec.Replicas, 1)}
	}
	for _, set := range pointers(sets.Items) {
		scales[set.UID] = scale{set.UID, ptr.Deref(set.Spec.Replicas, 1)}
		if owner := metav1.GetControllerOfNoCopy(set); owner != nil {
			if found, ok := scales[owner.UID]; ok {
				scales[set.UID] = found
			}
		}
	}
	for _, budget := range pointers(budgets.Items) {
		if budget.DeletionTimestamp != nil {
			continue
		}
		rest, err := countBudget(ctx, c, budget, pointers(pods.Items), scales)
		again, failed = sooner(again, rest), cmp.Or(failed, err)
	}
	return again, failed
}

// scale is how many replicas a controller wants.
type scale struct {
	controller types.UID
	replicas   int32
}

// countBudget sets the status of a PodDisruptionBudget. It returns after how much time an eviction no longer counts.
func countBudget(
	ctx context.Context, c client.Client, budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod, scales map[types.UID]scale,
) (again time.Duration, _ error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return 0, setStatus(ctx, c, budget, func(budget *policyv1.PodDisruptionBudget) { failBudget(budget, err) })
	}
	var selected []*corev1.Pod
	for _, pod := range pods {
		if pod.Namespace == budget.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			selected = append(selected, pod)
		}
	}
	expected, desired, err := expectedPods(budget, selected, scales)
	if err != nil {
		return 0, setStatus(ctx, c, budget, func(budget *policyv1.PodDisruptionBudget) { failBudget(budget, err) })
	}
	disrupted := map[string]metav1.Time{}
	healthy := int32(0)
	for _, pod := range selected {
		evicted, isDisrupted := budget.Status.DisruptedPods[pod.Name]
		rest := disruptionTimeout - time.Since(evicted.Time)
		switch {
		case pod.DeletionTimestamp != nil:
		case isDisrupted && rest > 0:
			disrupted[pod.Name] = evicted
			again = sooner(again, rest)
		case rules.Ready(pod):
			healthy++
		}
	}
	return again, setStatus(ctx, c, budget, func(budget *policyv1.PodDisruptionBudget) {
		status := &budget.Status
		allowed := max(0, healthy-desired)
		if expected <= 0 {
			allowed = 0
		}
		status.ObservedGeneration, status.DisruptionsAllowed, status.CurrentHealthy = budget.Generation, allowed, healthy
		status.DesiredHealthy, status.ExpectedPods = desired, expected
		if !maps.Equal(status.DisruptedPods, disrupted) {
			status.DisruptedPods = disrupted
		}
		poddisruptionbudget.UpdateDisruptionAllowedCondition(budget)
	})
}

// failBudget allows no disruption, because the Pods cannot be counted.
func failBudget(budget *policyv1.PodDisruptionBudget, err error) {
	budget.Status.DisruptionsAllowed, budget.Status.ObservedGeneration = 0, budget.Generation
	meta.SetStatusCondition(&budget.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: err.Error(),
		ObservedGeneration: budget.Generation, LastTransitionTime: now(),
	})
}

// expectedPods returns how many Pods a budget expects, and how many have to be healthy.
func expectedPods(budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod, scales map[types.UID]scale) (expected, desired int32, _ error) {
	least, most := budget.Spec.MinAvailable, budget.Spec.MaxUnavailable
	switch {
	case most == nil && least == nil:
		return 0, 0, nil
	case most == nil && least.Type == intstr.Int:
		return int32(len(pods)), least.IntVal, nil
	}
	counted := map[types.UID]bool{}
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil {
			continue
		}
		found, ok := scales[owner.UID]
		if !ok {
			return 0, 0, errors.Errorf("found no scale of %s %s, the controller of Pod %s", owner.Kind, owner.Name, pod.Name)
		}
		if !counted[found.controller] {
			counted[found.controller] = true
			expected += found.replicas
		}
	}
	if most != nil {
		return expected, max(0, expected-resolve(*most, expected, true)), nil
	}
	return expected, resolve(*least, expected, true), nil
}
