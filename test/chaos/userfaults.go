package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// laterFaults is the end of the table of faults.
func laterFaults() []fault {
	return []fault{
		{"cluster-annotated", "cluster", annotateCluster},
		{"machine-paused", "machines", pauseMachine},
		{withoutManager, "manager", deleteBudgetWithoutManager},
		{"evacuations-refused", "webhooks", refuseEvacuations(func(ctx context.Context, r *run) (heal, error) {
			return refuseRule(ctx, r, admissionregistrationv1.Rule{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"evacuations"}})
		})},
		{evictionsRefused, "webhooks", refuseEvictions(func(ctx context.Context, r *run) (heal, error) { return refuseRule(ctx, r, refusals[2]) })},
		{hookAdded, "machines", addHook},
	}
}

// annotateCluster sets the annotation of a pause on the Cluster until the end of the run. It pauses no Machine.
func annotateCluster(ctx context.Context, r *run, _ uint64) (heal, error) {
	if r.hasEnded() { // it would delay the deletion of the Cluster
		return nil, errors.New("the Cluster was deleted")
	}
	return nil, r.setAnnotation(ctx, `""`)
}

func (r *run) setAnnotation(ctx context.Context, value string) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: r.home(), Name: clusterName}}
	err := patch(ctx, r.fleet.Client, cluster, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, value))
	return client.IgnoreNotFound(errors.Cause(err))
}

// pauseMachine pauses a Machine by its annotation.
func pauseMachine(ctx context.Context, r *run, pick uint64) (heal, error) {
	return annotateMachine(ctx, r, pick, clusterv1.PausedAnnotation)
}

// hookAdded is the fault in which another owner adds a pre-drain hook to a Machine, which holds its drain.
const hookAdded = "hook-added"

func addHook(ctx context.Context, r *run, pick uint64) (heal, error) {
	return annotateMachine(ctx, r, pick, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other")
}

// annotateMachine sets an annotation of a Machine, and later removes it.
func annotateMachine(ctx context.Context, r *run, pick uint64, annotation string) (heal, error) {
	machine, err := choose(ctx, r.fleet.Client, &clusterv1.MachineList{}, pick, r.isDrained)
	if err != nil {
		return nil, err
	}
	set := func(ctx context.Context, value string) error {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: machine.GetNamespace(), Name: machine.GetName()}}
		err := patch(ctx, r.fleet.Client, m, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value))
		return client.IgnoreNotFound(errors.Cause(err))
	}
	return func(ctx context.Context) error { return set(ctx, "null") }, set(ctx, `""`)
}

// withoutManager is the fault in which a budget is deleted while no manager runs.
const withoutManager = "budget-deleted-without-manager"

// deleteBudgetWithoutManager kills a manager, and deletes a budget that allows no disruption before the manager is started again: it does
// not know that Pods waited for the budget, and that they may be evicted now. If it can, it does so after all final eviction attempts of a
// Node.
func deleteBudgetWithoutManager(ctx context.Context, r *run, pick uint64) (heal, error) {
	m := r.managers[pick%uint64(len(r.managers))]
	attempted := func(o client.Object) bool {
		return meta.IsStatusConditionTrue(o.(*v1alpha1.NodeMaintenance).Status.Conditions, v1alpha1.NodeMaintenanceFinalEvictionAttempt)
	}
	_ = eventually(ctx, injecting/2, "the Pods of a Node have had their final eviction attempts", func(ctx context.Context) error {
		_, err := choose(ctx, r.workload.Client, &v1alpha1.NodeMaintenanceList{}, pick, attempted)
		return err
	})
	m.kill()
	budget, err := choose(ctx, r.workload.Client, &policyv1.PodDisruptionBudgetList{}, pick, func(o client.Object) bool {
		return r.isLoad(o) && o.(*policyv1.PodDisruptionBudget).Status.DisruptionsAllowed == 0 && (o.GetName() == blocking || !r.schedule.Turns)
	})
	if err != nil {
		return m.start, err
	}
	return m.start, deleteObject(ctx, r.workload.Client, budget)
}

const evictionsRefused = "evictions-refused"

// refuseEvictions makes the API server of the workload cluster refuse evictions. Afterwards, a user sets short timeouts on the Machines
// that are drained: they may have passed, while the Pods wait for the backoff of their refused evictions.
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

// refuseEvacuations makes the API server refuse Evacuations. Then a user protects some of the Pods that need one from all drains.
func refuseEvacuations(refuse func(ctx context.Context, r *run) (heal, error)) func(context.Context, *run, uint64) (heal, error) {
	return func(ctx context.Context, r *run, pick uint64) (heal, error) {
		undo, err := refuse(ctx, r)
		return func(ctx context.Context) error {
			nodes, pods, evacuations := &corev1.NodeList{}, &corev1.PodList{}, &v1alpha1.EvacuationList{}
			for _, list := range []client.ObjectList{nodes, pods, evacuations} {
				if err := r.workload.Client.List(ctx, list); err != nil {
					return errors.Wrapf(err, "listing %T", list)
				}
			}
			for i := range pods.Items {
				pod := &pods.Items[i]
				isCordoned := slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName && n.Spec.Unschedulable })
				isRequested := slices.ContainsFunc(evacuations.Items, func(e v1alpha1.Evacuation) bool { return e.Spec.PodRef.UID == string(pod.UID) })
				if !r.isLoad(pod) || isOfDaemonSet(pod) || !isCordoned || isRequested || (uint64(i)+pick)%3 != 0 {
					continue
				}
				err := patch(ctx, r.workload.Client, pod, fmt.Sprintf(`{"metadata":{"labels":{%q:"skip"}}}`, clusterv1.PodDrainLabel))
				if client.IgnoreNotFound(errors.Cause(err)) != nil {
					return err
				}
			}
			return undo(ctx)
		}, err
	}
}

// editBudget makes a budget allow one disruption that allows none, and the reverse.
func editBudget(ctx context.Context, r *run, pick uint64) (heal, error) {
	object, err := choose(ctx, r.workload.Client, &policyv1.PodDisruptionBudgetList{}, pick, r.isLoad)
	if err != nil {
		return nil, err
	}
	original := object.DeepCopyObject().(*policyv1.PodDisruptionBudget)
	set := func(ctx context.Context, change func(*policyv1.PodDisruptionBudget)) error {
		budget := &policyv1.PodDisruptionBudget{}
		if err := r.workload.Client.Get(ctx, client.ObjectKeyFromObject(original), budget); err != nil {
			return errors.Wrap(client.IgnoreNotFound(err), "getting a PodDisruptionBudget")
		}
		change(budget)
		return errors.Wrap(r.workload.Client.Update(ctx, budget), "editing a PodDisruptionBudget")
	}
	undo := func(ctx context.Context) error {
		return set(ctx, func(b *policyv1.PodDisruptionBudget) { b.Spec = original.Spec })
	}
	return undo, set(ctx, func(b *policyv1.PodDisruptionBudget) {
		allowed := intstr.FromInt32(0)
		if original.Status.DisruptionsAllowed == 0 {
			allowed = intstr.FromInt32(1)
		}
		b.Spec.MinAvailable, b.Spec.MaxUnavailable = nil, &allowed
	})
}

func deleteBudget(ctx context.Context, r *run, pick uint64) (heal, error) {
	object, err := choose(ctx, r.workload.Client, &policyv1.PodDisruptionBudgetList{}, pick, r.isLoad)
	if err != nil {
		return nil, err
	}
	return recreate(r.workload.Client, object), deleteObject(ctx, r.workload.Client, object)
}

// editRule makes a rule skip Pods that it drained, and drain those that it did not.
func editRule(ctx context.Context, r *run, pick uint64) (heal, error) {
	object, err := choose(ctx, r.fleet.Client, &clusterv1.MachineDrainRuleList{}, pick, all)
	if err != nil {
		return nil, err
	}
	original := object.(*clusterv1.MachineDrainRule)
	set := func(ctx context.Context, drain clusterv1.MachineDrainRuleDrainConfig) error {
		rule := &clusterv1.MachineDrainRule{}
		if err := r.fleet.Client.Get(ctx, client.ObjectKeyFromObject(original), rule); err != nil {
			return errors.Wrap(client.IgnoreNotFound(err), "getting a MachineDrainRule")
		}
		rule.Spec.Drain = drain
		return errors.Wrap(r.fleet.Client.Update(ctx, rule), "editing a MachineDrainRule")
	}
	changed := clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: ptr.To(int32(pick % 4))}
	if original.Spec.Drain.Behavior == clusterv1.MachineDrainRuleDrainBehaviorDrain && pick%2 == 0 {
		changed = clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip}
	}
	return func(ctx context.Context) error { return set(ctx, original.Spec.Drain) }, set(ctx, changed)
}

func deleteRule(ctx context.Context, r *run, pick uint64) (heal, error) {
	object, err := choose(ctx, r.fleet.Client, &clusterv1.MachineDrainRuleList{}, pick, all)
	if err != nil {
		return nil, err
	}
	return recreate(r.fleet.Client, object), deleteObject(ctx, r.fleet.Client, object)
}

// editLabel removes the drain label of a Pod, or adds it.
func editLabel(ctx context.Context, r *run, pick uint64) (heal, error) {
	object, err := choose(ctx, r.workload.Client, &corev1.PodList{}, pick, func(o client.Object) bool { return r.isLoad(o) && !isOfDaemonSet(o) })
	if err != nil {
		return nil, err
	}
	set := func(ctx context.Context, value string) error {
		return client.IgnoreNotFound(patch(ctx, r.workload.Client, object.DeepCopyObject().(client.Object),
			fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:%s}}}`, object.GetUID(), clusterv1.PodDrainLabel, value)))
	}
	before, changed := "null", `"skip"`
	if value, has := object.GetLabels()[clusterv1.PodDrainLabel]; has {
		before, changed = fmt.Sprintf("%q", value), "null"
	}
	undo := func(ctx context.Context) error {
		err := set(ctx, before)
		if err != nil && strings.Contains(err.Error(), "uid") { // another Pod has its name now
			return nil
		}
		return err
	}
	return undo, set(ctx, changed)
}
