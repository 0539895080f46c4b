package chaos

import (
	"context"

	"github.com/pkg/errors"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// withoutManager is the fault in which a budget is deleted while no manager runs.
const withoutManager = "budget-deleted-without-manager"

// deleteBudgetWithoutManager kills a manager, and deletes a budget that allows no disruption before the manager is started again: it does
// not know that Pods waited for the budget, and that they may be evicted now.
func deleteBudgetWithoutManager(ctx context.Context, r *run, pick uint64) (heal, error) {
	m := r.managers[pick%uint64(len(r.managers))]
	m.kill()
	budget, err := choose(ctx, r.workload.Client, &policyv1.PodDisruptionBudgetList{}, pick, func(o client.Object) bool {
		return r.isLoad(o) && o.(*policyv1.PodDisruptionBudget).Status.DisruptionsAllowed == 0
	})
	if err != nil {
		return m.start, err
	}
	return m.start, deleteObject(ctx, r.workload.Client, budget)
}

// refuseEvictions makes the API server of the workload cluster refuse evictions. Afterwards, a user sets short timeouts on the Machines that
// are drained: they may have passed, while the Pods wait for the backoff of their refused evictions.
func refuseEvictions(refuse func(ctx context.Context, r *run) (heal, error)) func(context.Context, *run, uint64) (heal, error) {
	return func(ctx context.Context, r *run, pick uint64) (heal, error) {
		undo, err := refuse(ctx, r)
		return func(ctx context.Context) error {
			if err := undo(ctx); err != nil {
				return err
			}
			machines := &clusterv1.MachineList{}
			if err := r.fleet.Client.List(ctx, machines); err != nil {
				return errors.Wrap(err, "listing Machines")
			}
			for i := range machines.Items {
				m := &machines.Items[i]
				if !r.isDrained(m) || m.DeletionTimestamp == nil || metav1.GetControllerOf(m) != nil { // a MachineSet restores its timeouts
					continue
				}
				if err := patch(ctx, r.fleet.Client, m, timeouts(int32(8+pick%8))); client.IgnoreNotFound(errors.Cause(err)) != nil {
					return err
				}
			}
			return nil
		}, err
	}
}
