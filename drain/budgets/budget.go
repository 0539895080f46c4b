package budgets

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxDisruptedPods is how many evictions that the disruption controller has not confirmed yet the API server tolerates.
const maxDisruptedPods = 2000

// Budget is a PodDisruptionBudget whose selector has been parsed. It is immutable.
type Budget struct {
	pdb      *policyv1.PodDisruptionBudget // read-only: it may come from a cache
	selector labels.Selector
	err      error // why the selector is invalid
}

// New parses a PodDisruptionBudget, which must not change afterwards.
func New(pdb *policyv1.PodDisruptionBudget) *Budget {
	// For nil, LabelSelectorAsSelector returns a selector that matches nothing, for an empty one everything, as policy/v1
	// requires: https://github.com/kubernetes/kubernetes/issues/95083.
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	return &Budget{pdb: pdb, selector: selector, err: err}
}

// Namespace returns the namespace of the budget.
func (b *Budget) Namespace() string { return b.pdb.Namespace }

// Name returns the name of the budget.
func (b *Budget) Name() string { return b.pdb.Name }

// String returns "namespace/name".
func (b *Budget) String() string { return b.pdb.Namespace + "/" + b.pdb.Name }

// PodDisruptionBudget returns the PodDisruptionBudget, which is read-only.
func (b *Budget) PodDisruptionBudget() *policyv1.PodDisruptionBudget { return b.pdb }

// mayCover reports whether the budget selects a Pod of its namespace. It returns true if the selector is invalid.
func (b *Budget) mayCover(pod Pod) bool {
	return b.err != nil || b.selector.Matches(labels.Set(pod.Labels))
}

// observed reports whether the disruption controller has observed the current generation of the budget.
func (b *Budget) observed() bool {
	return b.pdb.Status.ObservedGeneration >= b.pdb.Generation
}

// upToDate reports whether the API server uses the status of the budget. It refuses evictions with fewer than zero disruptions allowed, and
// with too many unconfirmed evictions.
func (b *Budget) upToDate() bool {
	return b.observed() && b.pdb.Status.DisruptionsAllowed >= 0 && len(b.pdb.Status.DisruptedPods) <= maxDisruptedPods
}

// allowed returns how many disruptions the API server would allow, according to the status.
func (b *Budget) allowed() int {
	if !b.observed() {
		return 0
	}
	unconfirmed := len(b.pdb.Status.DisruptedPods)
	return max(0, min(int(b.pdb.Status.DisruptionsAllowed), maxDisruptedPods+1-unconfirmed))
}

// AlwaysAllowsUnready reports whether the spec allows the eviction of Pods that are not ready without a disruption.
func (b *Budget) AlwaysAllowsUnready() bool {
	policy := b.pdb.Spec.UnhealthyPodEvictionPolicy
	return policy != nil && *policy == policyv1.AlwaysAllow
}

// healthy reports whether the application has as many healthy Pods as it requires, so that a Pod that is not ready is evicted without a
// disruption. Like the API server, it does not check whether the status is up to date.
func (b *Budget) healthy() bool {
	return b.pdb.Status.DesiredHealthy > 0 && b.pdb.Status.CurrentHealthy >= b.pdb.Status.DesiredHealthy
}

// syncFailure returns the condition with which the disruption controller reports that it cannot compute the budget, for example because the
// controller of a Pod cannot be scaled. It returns nil if the controller does not report that.
func (b *Budget) syncFailure() *metav1.Condition {
	c := meta.FindStatusCondition(b.pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != policyv1.SyncFailedReason {
		return nil
	}
	return c
}

// AllowsWithMorePods reports whether a budget that never allows a disruption allows one if its Pods have more replicas.
func (b *Budget) AllowsWithMorePods() bool {
	minAvailable := b.pdb.Spec.MinAvailable
	return minAvailable != nil && b.pdb.Spec.MaxUnavailable == nil && minAvailable.String() != "100%"
}

// NeverAllowsDisruption reports whether the budget cannot allow a disruption with its current number of Pods, even if all of them are
// ready: a user has to change it, or add Pods.
func (b *Budget) NeverAllowsDisruption() bool {
	pods := int(b.pdb.Status.ExpectedPods)
	counted := pods > 0
	if !counted {
		pods = 100 // finds 0% and 100%, and no percentage between them
	}
	switch maxUnavailable, minAvailable := b.pdb.Spec.MaxUnavailable, b.pdb.Spec.MinAvailable; {
	case maxUnavailable != nil:
		allowed, err := intstr.GetScaledValueFromIntOrPercent(maxUnavailable, pods, true)
		return err == nil && allowed <= 0
	case minAvailable != nil:
		needed, err := intstr.GetScaledValueFromIntOrPercent(minAvailable, pods, true)
		return err == nil && needed >= pods && (counted || minAvailable.Type == intstr.String)
	default:
		return true // the disruption controller counts no Pods then, and allows no disruption
	}
}
