package evacuation

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Instigators returns the instigators of the Evacuation: their finalizers, and that of NodeMaintenances also if they request the Evacuation
// by annotation, see RequestByAnnotation.
func Instigators(e *v1alpha1.Evacuation) []string {
	instigators := slices.DeleteFunc(slices.Clone(e.Finalizers), func(finalizer string) bool { return !isInstigator(finalizer) })
	const ours = v1alpha1.NodeMaintenanceInstigatorFinalizer
	if _, annotated := e.Annotations[ours]; annotated && !slices.Contains(instigators, ours) {
		instigators = append(instigators, ours)
	}
	return instigators
}

// HasInstigator reports whether the finalizer is that of an instigator of the Evacuation.
func HasInstigator(e *v1alpha1.Evacuation, finalizer string) bool {
	return slices.Contains(Instigators(e), finalizer)
}

// RequestByAnnotation replaces the finalizer of NodeMaintenances by an annotation of the same name, in a new Evacuation of a Pod that is
// evicted at once. The finalizer would only delay the deletion of the Evacuation by the garbage collector, and cost one more write for each
// Pod. If another actor deletes the Evacuation before the Pod terminates, the NodeMaintenance creates it again.
func RequestByAnnotation(e *v1alpha1.Evacuation) {
	Withdraw(e)
	metav1.SetMetaDataAnnotation(&e.ObjectMeta, v1alpha1.NodeMaintenanceInstigatorFinalizer, "")
}

// EvictedAtOnce reports whether nothing is known that delays the eviction of the Pod of a new Evacuation: no evacuator, no backoff, and no
// PodDisruptionBudget that selects the Pod.
func EvictedAtOnce(e *v1alpha1.Evacuation, podType v1alpha1.PodType, budgets int) bool {
	return podType == v1alpha1.PodTypeDefault && budgets == 0 && len(e.Spec.Evacuators) == 0 && e.Annotations[v1alpha1.EvacuateAfterAnnotation] == ""
}

// budgetsGrace is how long after the start of a drain its first Evacuations wait for the list of PodDisruptionBudgets, without which no Pod
// is evicted anyway.
const budgetsGrace = 2 * time.Second

// AwaitsBudgets reports whether the first Evacuations of a maintenance wait until the PodDisruptionBudgets are known, and until when: an
// Evacuation that nothing delays takes fewer writes, see EvictedAtOnce. The drain may not have started yet.
func AwaitsBudgets(m *v1alpha1.NodeMaintenance, known bool, now time.Time) (until time.Time, awaits bool) {
	until = now.Add(budgetsGrace)
	if start := m.StageStart(v1alpha1.StageDrain); start != nil {
		until = start.Add(budgetsGrace)
	}
	return until, !known && now.Before(until)
}

// Request adds NodeMaintenances as an instigator. The API server refuses it once the Evacuation has a deletionTimestamp.
func Request(e *v1alpha1.Evacuation) {
	if !slices.Contains(e.Finalizers, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		e.Finalizers = append(slices.Clone(e.Finalizers), v1alpha1.NodeMaintenanceInstigatorFinalizer)
	}
}

// Withdraw removes NodeMaintenances as an instigator.
func Withdraw(e *v1alpha1.Evacuation) {
	e.Finalizers = slices.DeleteFunc(slices.Clone(e.Finalizers), func(f string) bool { return f == v1alpha1.NodeMaintenanceInstigatorFinalizer })
	delete(e.Annotations, v1alpha1.NodeMaintenanceInstigatorFinalizer)
}

func isInstigator(finalizer string) bool {
	return strings.HasPrefix(finalizer, v1alpha1.InstigatorFinalizerPrefix)
}
