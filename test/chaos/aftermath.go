package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// expectProgress waits until each deleted Machine is gone or names what blocks it.
func (r *run) expectProgress(ctx context.Context) []string {
	since, blockers := time.Now(), r.blockers()
	if err := r.wakeKubelets(ctx); err != nil {
		return []string{err.Error()}
	}
	err := eventually(ctx, r.patience(liveness), "each deleted Machine is gone or names what blocks it", func(ctx context.Context) error {
		waiting, err := r.waiting(ctx)
		if err == nil {
			err = r.wakeCore(ctx, waiting)
		}
		if err != nil {
			return err
		}
		if err := r.unexplained(waiting, blockers); err != nil {
			since = time.Now()
			return err
		}
		if len(waiting) > 0 && time.Since(since) < excused {
			return errors.New("the conditions may still change")
		}
		return nil
	})
	if err != nil {
		r.logWaiting(ctx)
		return []string{"M27, M39: " + err.Error()}
	}
	return nil
}

// logWaiting logs what each deleted Machine waits for.
func (r *run) logWaiting(ctx context.Context) {
	waiting, err := r.waiting(ctx)
	if err != nil {
		r.logf("what the Machines wait for is not known: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		r.logf("Machine %s: %s", name, describe(conditionOf(waiting[name])))
	}
}

// unexplained returns an error if the condition of a waiting Machine names nothing that can block it.
func (r *run) unexplained(waiting map[string]*clusterv1.Machine, blockers []string) error {
	blocked, rolloutBlocked := false, false
	for name, machine := range waiting {
		blocked = blocked || Excuse(conditionOf(machine), blockers) != ""
		rolloutBlocked = rolloutBlocked || blocked || r.isUnhooked(name)
	}
	for name, machine := range waiting {
		condition := conditionOf(machine)
		switch {
		case !r.ended && (r.isUnhooked(name) || rolloutBlocked && machine.DeletionTimestamp == nil): // Cluster API drains it, or the rollout waits
		case blocked && isWaitingForTurn(condition) && !r.getsOverdueTurn(machine):
		case Excuse(condition, blockers) == "":
			return errors.Errorf("Machine %s: %s", name, describe(condition))
		}
	}
	return nil
}

// expectBundle waits until the manager has restored what it installs in the workload cluster. Only while a Machine is being deleted this
// must take less than ten minutes.
func (r *run) expectBundle(ctx context.Context) []string {
	objects, err := bundle.Bundle()
	if err != nil {
		return []string{err.Error()}
	}
	err = eventually(ctx, r.patience(liveness), "the bundle is as it was installed, or no Machine is being deleted", func(ctx context.Context) error {
		waiting, err := r.waiting(ctx)
		if err != nil || len(waiting) == 0 {
			return err
		}
		for _, object := range objects {
			present := object.DeepCopy()
			if err := r.workload.Client.Get(ctx, client.ObjectKeyFromObject(object), present); err != nil {
				return errors.Wrapf(err, "getting %s %s", object.GetKind(), object.GetName())
			}
			if !apiequality.Semantic.DeepDerivative(object.Object["spec"], present.Object["spec"]) {
				return errors.Errorf("%s %s is not as it was installed", object.GetKind(), object.GetName())
			}
		}
		return nil
	})
	if err != nil {
		return []string{"M50: " + err.Error()}
	}
	return nil
}

func conditionOf(machine *clusterv1.Machine) *metav1.Condition {
	return conditions.Get(machine, v1alpha1.MachineNodeMaintenance)
}

// getsOverdueTurn returns whether a Machine waits for a turn at most until its drain timeout has passed, whatever blocks the drains before
// it (M37). On real control planes, that would take too long.
func (r *run) getsOverdueTurn(machine *clusterv1.Machine) bool {
	return r.simulated != nil && ptr.Deref(drainTimeout(machine), 0) > 0
}

func isWaitingForTurn(condition *metav1.Condition) bool {
	return condition != nil && condition.Reason == v1alpha1.ReasonWaitingForTurn
}

func describe(condition *metav1.Condition) string {
	if condition == nil {
		return "no condition"
	}
	return condition.Reason + ": " + condition.Message
}

// waiting returns the Machines that are to be deleted and still exist: read only.
func (r *run) waiting(ctx context.Context) (map[string]*clusterv1.Machine, error) {
	if err := r.startManagers(ctx); err != nil {
		return nil, err
	}
	if err := r.startExited(ctx); err != nil {
		return nil, err
	}
	machines := &clusterv1.MachineList{}
	if err := r.fleet.Client.List(ctx, machines, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrap(err, "listing Machines")
	}
	waiting := map[string]*clusterv1.Machine{}
	for i := range machines.Items {
		if r.ended || r.isDrained(&machines.Items[i]) {
			waiting[machines.Items[i].Name] = &machines.Items[i]
		}
	}
	return waiting, nil
}

// startExited starts the components of the control planes that could not cope with a fault and have exited.
func (r *run) startExited(ctx context.Context) error {
	if r.simulated != nil {
		return nil
	}
	for _, cluster := range []string{"management", "workload"} {
		started, err := r.controlPlane(cluster).StartExited(ctx)
		if err != nil {
			return err
		}
		for _, component := range started {
			r.logf("%s of the %s cluster had exited and is started", component, cluster)
		}
	}
	return nil
}

// unblock removes what may block drains and waits until all have ended and nothing is left behind.
func (r *run) unblock(ctx context.Context) []string {
	var violations []string
	err := eventually(ctx, healing, "budgets and blocking workloads are deleted", func(ctx context.Context) error {
		if err := r.workload.Client.DeleteAllOf(ctx, &policyv1.PodDisruptionBudget{}, client.InNamespace(r.namespace)); err != nil {
			return err
		}
		for _, app := range r.schedule.Apps {
			if strings.HasSuffix(app.Protection, "-wait") {
				if err := r.deleteApp(ctx, app.labels()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		violations = append(violations, err.Error())
	}
	if err := eventually(ctx, r.patience(liveness), "all deleted Machines are gone after nothing blocks them", func(ctx context.Context) error {
		waiting, err := r.waiting(ctx)
		if err == nil {
			err = r.wakeCore(ctx, waiting)
		}
		if err != nil {
			return err
		}
		for name, machine := range waiting {
			return errors.Errorf("Machine %s: %s", name, describe(conditionOf(machine)))
		}
		return nil
	}); err != nil {
		violations = append(violations, "M27, M39: "+err.Error())
	}
	if r.ended {
		return append(violations, r.expectClusterGone(ctx)...)
	}
	if err := eventually(ctx, r.patience(liveness), "nothing is left behind", r.nothingLeft); err != nil {
		violations = append(violations, "R12, R43: "+err.Error())
	}
	return violations
}

// expectClusterGone waits until the deletion of the Cluster has completed. What is left in its workload cluster would be deleted with it.
func (r *run) expectClusterGone(ctx context.Context) []string {
	err := eventually(ctx, r.patience(liveness), "the deleted Cluster is gone", func(ctx context.Context) error {
		clusters := &clusterv1.ClusterList{}
		if err := r.fleet.Client.List(ctx, clusters); err != nil || len(clusters.Items) == 0 {
			return errors.Wrap(err, "listing Clusters")
		}
		return errors.Errorf("Cluster %s has finalizers %v", clusters.Items[0].Name, clusters.Items[0].Finalizers)
	})
	if err != nil {
		return []string{"M54: " + err.Error()}
	}
	return nil
}

// wakeKubelets makes kwok act on the Pods that it has to start or delete. Unlike a kubelet, it does not repeat a request whose connection
// was closed by a fault.
func (r *run) wakeKubelets(ctx context.Context) error {
	return eventually(ctx, healing, "Pods that start or terminate are annotated", func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := r.workload.Client.List(ctx, pods, client.InNamespace(r.namespace)); err != nil {
			return errors.Wrap(err, "listing Pods")
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.DeletionTimestamp == nil && (rules.Ready(pod) || rules.Finished(pod)) {
				continue
			}
			err := patch(ctx, r.workload.Client, pod, `{"metadata":{"annotations":{"test.capnm.dev/reconcile":""}}}`)
			if client.IgnoreNotFound(errors.Cause(err)) != nil {
				return err
			}
		}
		return nil
	})
}

// wakeCore changes the Machines without our hook that Cluster API still reports as paused, at most once a second. Its Machine controller
// does not watch for the end of a pause: without a change it reconciles such a Machine after up to ten minutes, and our manager does not
// write to it.
func (r *run) wakeCore(ctx context.Context, machines map[string]*clusterv1.Machine) error {
	change := fmt.Sprintf(`{"metadata":{"annotations":{"test.capnm.dev/reconcile":%q}}}`, time.Now().Format(time.RFC3339))
	for _, machine := range machines {
		if machinedrain.HasHook(machine) || !conditions.IsTrue(machine, clusterv1.PausedCondition) {
			continue
		}
		if err := patch(ctx, r.fleet.Client, machine.DeepCopy(), change); client.IgnoreNotFound(errors.Cause(err)) != nil {
			return err
		}
	}
	return nil
}

// nothingLeft ends the maintenance of the user, and returns an error while something of ours is left. It deletes the Nodes of deleted
// Machines, as a user has to: Cluster API deletes the Machine without its Node if the workload cluster does not answer for ten seconds.
func (r *run) nothingLeft(ctx context.Context) error {
	if err := r.workload.Client.Delete(ctx, r.userMaintenance()); client.IgnoreNotFound(err) != nil {
		return errors.Wrap(err, "deleting the maintenance of the user")
	}
	for _, drain := range r.schedule.Drains {
		switch err := r.workload.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: drain.Machine}}); {
		case err == nil:
			r.logf("Cluster API has left Node %s", drain.Machine)
		case client.IgnoreNotFound(err) != nil:
			return errors.Wrapf(err, "deleting Node %s", drain.Machine)
		}
	}
	versions, err := r.stored(ctx)
	if err != nil {
		return err
	}
	if left := Leftovers(versions); len(left) > 0 {
		return errors.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	return nil
}

// stored returns the objects of the workload cluster.
func (w *world) stored(ctx context.Context) ([]Version, error) {
	if w.simulated != nil {
		return w.remote.stored(), nil
	}
	revision, err := w.workload.StoredRevision(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := w.workload.StoredAt(ctx, revision, isRecorded)
	if err != nil {
		return nil, err
	}
	return decode(stored)
}

func (r *run) deleteApp(ctx context.Context, labels client.MatchingLabels) error {
	for _, kind := range []client.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &batchv1.Job{}, &corev1.Pod{}} {
		options := []client.DeleteAllOfOption{
			client.InNamespace(r.namespace), labels, client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground),
		}
		if err := r.workload.Client.DeleteAllOf(ctx, kind, options...); err != nil {
			return errors.Wrapf(err, "deleting the workload %v", labels)
		}
	}
	return nil
}

// clear removes the load, so that another run can follow. None follows in a simulation.
func (r *run) clear(ctx context.Context) error {
	if r.simulated != nil {
		return nil
	}
	if err := r.setAnnotation(ctx, "null"); err != nil {
		return err
	}
	if err := r.fleet.Client.DeleteAllOf(ctx, &clusterv1.MachineDrainRule{}, client.InNamespace(r.home())); err != nil {
		return errors.Wrap(err, "deleting the rules")
	}
	if err := r.fleet.Client.DeleteAllOf(ctx, &clusterv1.MachineDeployment{}, client.InNamespace(r.home())); err != nil {
		return errors.Wrap(err, "deleting the MachineDeployment")
	}
	return eventually(ctx, 2*time.Minute, "the load and the MachineDeployment are deleted", func(ctx context.Context) error {
		if err := r.deleteApp(ctx, nil); err != nil {
			return err
		}
		machines, err := r.machinesOf(ctx, r.namespace)
		if err != nil {
			return err
		}
		for i := range machines {
			if err := r.finalize(ctx, &machines[i]); err != nil {
				return err
			}
		}
		if len(machines) > 0 {
			return errors.Errorf("%d Machines exist", len(machines))
		}
		pods := &corev1.PodList{}
		if err := r.workload.Client.List(ctx, pods, client.InNamespace(r.namespace)); err != nil || len(pods.Items) == 0 {
			return err
		}
		return errors.Errorf("%d Pods exist", len(pods.Items))
	})
}

// finalize removes the finalizers of a Machine that our manager has released and whose MachineSet no longer exists: Cluster API v1.14.2
// cannot delete it ("failed to retrieve owner MachineSet").
func (r *run) finalize(ctx context.Context, machine *clusterv1.Machine) error {
	owner := metav1.GetControllerOf(machine)
	if machine.DeletionTimestamp == nil || machinedrain.HasHook(machine) || owner == nil {
		return nil
	}
	err := r.fleet.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: owner.Name}, &clusterv1.MachineSet{})
	if !apierrors.IsNotFound(err) {
		return errors.Wrapf(err, "getting the MachineSet of Machine %s", machine.Name)
	}
	return client.IgnoreNotFound(errors.Cause(patch(ctx, r.fleet.Client, machine, `{"metadata":{"finalizers":null}}`)))
}

// Leftovers returns what our manager has left behind in a workload cluster without maintenances, by the last version of each object.
func Leftovers(versions []Version) []string {
	var found []string
	for _, version := range versions {
		object := version.Object
		if object == nil {
			continue
		}
		at := func(what string) { found = append(found, version.Key+": "+what) }
		switch typed := object.(type) {
		case *v1alpha1.NodeMaintenance, *v1alpha1.Evacuation:
			at("exists, with finalizers " + strings.Join(object.GetFinalizers(), " "))
		case *corev1.Node:
			for _, condition := range typed.Status.Conditions {
				if condition.Reason == v1alpha1.ReasonNodeMaintenance && condition.Status == corev1.ConditionTrue {
					at("has condition " + string(condition.Type))
				}
			}
			if slices.ContainsFunc(typed.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.NoDaemonSetPodsTaint }) {
				at("has taint " + v1alpha1.NoDaemonSetPodsTaint)
			}
		}
		for _, annotation := range []string{
			v1alpha1.NodeOriginAnnotation, v1alpha1.ExcludedFromLoadBalancersAnnotation, v1alpha1.SurgeAnnotation, v1alpha1.DeletionCostAnnotation,
		} {
			if _, has := object.GetAnnotations()[annotation]; has {
				at("has annotation " + annotation)
			}
		}
		if _, has := object.GetLabels()[v1alpha1.SurgingLabel]; has {
			at("has label " + v1alpha1.SurgingLabel)
		}
	}
	return found
}

// Excuse says why a Machine is still being deleted: its condition names one of these objects ("namespace/name"), which block drains. Empty:
// it does not.
func Excuse(condition *metav1.Condition, blockers []string) string {
	if condition == nil {
		return ""
	}
	for _, blocker := range blockers {
		if strings.Contains(condition.Message, blocker) {
			return condition.Message
		}
	}
	return ""
}
