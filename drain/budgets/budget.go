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

// Budget is a PodDisruptionBudget whose selector has been parsed.
type Budget struct {
	pdb      *policyv1.PodDisruptionBudget // read only: it may come from a cache
	selector labels.Selector
	err      error // why there is no selector
}

// New never fails: a budget that can't be read may cover any pod of its namespace. The PodDisruptionBudget must not change
// afterwards.
func New(pdb *policyv1.PodDisruptionBudget) *Budget {
	// For nil, LabelSelectorAsSelector gives a selector that matches nothing, for an empty one everything: as policy/v1
	// wants it, https://github.com/kubernetes/kubernetes/issues/95083.
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	return &Budget{pdb: pdb, selector: selector, err: err}
}

// Namespace of the budget.
func (b *Budget) Namespace() string { return b.pdb.Namespace }

// Name of the budget.
func (b *Budget) Name() string { return b.pdb.Name }

// String is "namespace/name".
func (b *Budget) String() string { return b.pdb.Namespace + "/" + b.pdb.Name }

// PodDisruptionBudget returns what the budget was made from. It must not be changed.
func (b *Budget) PodDisruptionBudget() *policyv1.PodDisruptionBudget { return b.pdb }

// Unreadable says why it isn't known which pods the budget covers; nil if it is.
func (b *Budget) Unreadable() error { return b.err }

// Covers says whether the budget covers a pod, or may cover it.
func (b *Budget) Covers(namespace string, podLabels map[string]string) bool {
	if namespace != b.pdb.Namespace {
		return false
	}
	return b.err != nil || b.selector.Matches(labels.Set(podLabels))
}

// observed says whether the disruption controller has seen the budget as it is now.
func (b *Budget) observed() bool {
	return b.pdb.Status.ObservedGeneration >= b.pdb.Generation
}

// allowed is how many more pods the API server would let go, as far as the status says.
func (b *Budget) allowed() int {
	if !b.observed() {
		return 0
	}
	unconfirmed := len(b.pdb.Status.DisruptedPods)
	return max(0, min(int(b.pdb.Status.DisruptionsAllowed), maxDisruptedPods+1-unconfirmed))
}

// alwaysAllowsUnready says whether pods that aren't ready go without using room. It is a matter of the spec alone.
func (b *Budget) alwaysAllowsUnready() bool {
	policy := b.pdb.Spec.UnhealthyPodEvictionPolicy
	return policy != nil && *policy == policyv1.AlwaysAllow
}

// healthy says whether the application has the pods that it needs: one that isn't ready contributes nothing to them, and
// goes without using room. The API server doesn't ask here whether the status is up to date, so neither do we.
func (b *Budget) healthy() bool {
	return b.pdb.Status.DesiredHealthy > 0 && b.pdb.Status.CurrentHealthy >= b.pdb.Status.DesiredHealthy
}

// syncFailure is what the disruption controller says if it can't compute the budget, for example because a pod has no
// controller that can be scaled.
func (b *Budget) syncFailure() (message string, failed bool) {
	c := meta.FindStatusCondition(b.pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != policyv1.SyncFailedReason {
		return "", false
	}
	return c.Message, true
}

// NeverAllowsDisruption says that the budget can't allow a disruption with the present number of pods, even if all of them are
// ready: somebody has to change it, or add pods. Usually that is a mistake, and worth telling.
func (b *Budget) NeverAllowsDisruption() bool {
	pods := int(b.pdb.Status.ExpectedPods)
	counted := pods > 0
	if !counted {
		pods = 100 // so that 0% and 100% are found, and no percentage between them
	}
	switch maxUnavailable, minAvailable := b.pdb.Spec.MaxUnavailable, b.pdb.Spec.MinAvailable; {
	case maxUnavailable != nil:
		allowed, err := intstr.GetScaledValueFromIntOrPercent(maxUnavailable, pods, true)
		return err == nil && allowed <= 0
	case minAvailable != nil:
		needed, err := intstr.GetScaledValueFromIntOrPercent(minAvailable, pods, true)
		return err == nil && needed >= pods && (counted || minAvailable.Type == intstr.String)
	default:
		return true // the disruption controller counts no pods then, and allows none to go
	}
}
