// Package statefulset is the built-in evacuator of the Pods of StatefulSets, class statefulset.apps.k8s.io. It removes
// no Pods: it completes for one Pod after the other, in the order that drain/statefulset decides, so that they are evicted.
package statefulset

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/assignment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
)

// Reconciler orders the evictions of the Pods of StatefulSets, one StatefulSet at a time.
type Reconciler struct {
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Clock        clock.PassiveClock

	controller controller.TypedController[workload.Request]
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "statefulset", r, options, r.enqueue)
	return err
}

// Watches returns the watch of a workload cluster's Evacuations.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("statefulset-Evacuations", r.controller, &v1alpha1.Evacuation{}, workload.EnqueueObjects(cluster, r.setOf(cluster))),
	}
}

// setOf maps an Evacuation whose active evacuator is this one to its StatefulSet, if the Pod is known.
func (r *Reconciler) setOf(cluster types.NamespacedName) func(context.Context, *v1alpha1.Evacuation) []types.NamespacedName {
	return func(_ context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
		if !e.IsAssignedTo(v1alpha1.EvacuatorClassStatefulSet) {
			return nil
		}
		pod, _ := assignment.PodOf(r.Clusters.CurrentObservation(cluster), e)
		if pod == nil || statefulset.SetOf(pod) == "" {
			return nil // a Change enqueues it when the Pods of its Node are observed
		}
		return []types.NamespacedName{{Namespace: pod.Namespace, Name: statefulset.SetOf(pod)}}
	}
}

// enqueue maps a Change to StatefulSets: a Pod was deleted or recreated, or the Pods of a Node have become known.
func (r *Reconciler) enqueue(ctx context.Context, queue workload.Queue, change workload.Change) {
	switch change.Type {
	case workload.PodChanged, workload.PodDeleted:
		if name := statefulset.SetOf(change.Pod); name != "" {
			queue.Add(workload.Request{Cluster: change.Cluster, Object: types.NamespacedName{Namespace: change.Pod.Namespace, Name: name}})
		}
	case workload.PodsListed, workload.DrainContinued:
		r.Clusters.EnqueueEvacuations(ctx, queue, change.Cluster, r.setOf(change.Cluster), workload.OnNode(change.Node))
	default: // affects no StatefulSet
	}
}

// Reconcile decides which Pods of one StatefulSet are evicted next.
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"StatefulSet", klog.KRef(request.Object.Namespace, request.Object.Name)))
	watched, err := r.Clusters.Client(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	live, err := r.Clusters.UncachedClient(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	finder := &assignment.Finder{
		Watched: watched, Observation: r.Clusters.CurrentObservation(request.Cluster), Class: v1alpha1.EvacuatorClassStatefulSet,
		Suspension: r.Maintenances.Suspension(ctx, request.Cluster), Now: r.Clock.Now(),
	}
	found, known, err := finder.Find(ctx, request.Object.Namespace, func(pod *corev1.Pod) bool { return statefulset.SetOf(pod) == request.Object.Name })
	switch {
	case err != nil:
		return workload.Result(err)
	case !known:
		return reconcile.Result{RequeueAfter: assignment.UnknownInterval}, nil
	case len(found) == 0:
		return reconcile.Result{}, nil
	}
	observed, byPod := observe(finder.Now, found)
	if len(observed.Waiting) > 0 { // others wait for budgets, or are suspended
		if observed.Set, observed.Pods, err = read(ctx, live, request.Object); err != nil {
			return workload.Result(err)
		}
		if observed.Coming, err = r.coming(ctx, request.Cluster, finder, observed.Pods); err != nil {
			return workload.Result(err)
		}
	}
	decision := statefulset.Decide(observed)
	refused, err := r.store(ctx, finder, byPod, decision.Reports)
	switch {
	case err != nil:
		return workload.Result(err)
	case refused:
		return reconcile.Result{RequeueAfter: assignment.RefusedInterval}, nil
	}
	return workload.RequeueAt(requeueAt(decision.RequeueAt, found, finder.Now), finder.Now), nil
}

// store stores the reports of a decision, first those on Pods that wait, and then those that release Pods. A Pod whose Evacuation cannot
// change is not released itself, and must not keep the next Pod from being released, see assignment.StoreAll. It reports whether the API
// server has refused some.
func (r *Reconciler) store(ctx context.Context, finder *assignment.Finder, byPod map[types.UID]assignment.Assignment, all []statefulset.Report) (bool, error) {
	report := func(report statefulset.Report) error { return finder.Report(ctx, byPod[report.Pod], report.Apply) }
	waits := slices.DeleteFunc(slices.Clone(all), func(report statefulset.Report) bool { return report.Reason == "" })
	releases := slices.DeleteFunc(slices.Clone(all), func(report statefulset.Report) bool { return report.Reason != "" })
	refused, err := assignment.StoreAll(ctx, r.Clock, waits, report)
	if err != nil {
		return false, err //nolint:wrapcheck // it names the Evacuation
	}
	others, err := assignment.StoreAll(ctx, r.Clock, releases, report)
	return len(refused)+len(others) > 0, err //nolint:wrapcheck // it names the Evacuation
}

// requeueAt returns when a StatefulSet is reconciled again without an event: when the decision says so, and after assignment.HeldInterval
// while one of its Pods is suspended.
func requeueAt(decided time.Time, found []assignment.Assignment, now time.Time) time.Time {
	isHeld := slices.ContainsFunc(found, func(a assignment.Assignment) bool { return a.Suspended })
	if held := now.Add(assignment.HeldInterval); isHeld && (decided.IsZero() || held.Before(decided)) {
		return held
	}
	return decided
}

// observe returns the observation of the Pods of a StatefulSet whose active evacuator is this one. An Evacuation without a
// NodeMaintenance belongs to no drain: the creation time of the Evacuation counts as the start of its drain.
func observe(now time.Time, found []assignment.Assignment) (statefulset.Observation, map[types.UID]assignment.Assignment) {
	observed, byPod := statefulset.Observation{Now: now, FirstDrain: now, Evicting: map[types.UID]time.Time{}}, map[types.UID]assignment.Assignment{}
	for _, assigned := range found {
		start := ptr.Deref(assigned.Terms.DrainStart, assigned.Evacuation.CreationTimestamp.Time)
		for _, drain := range []time.Time{start, ptr.Deref(assigned.FirstDrain, start)} {
			if drain.Before(observed.FirstDrain) {
				observed.FirstDrain = drain
			}
		}
		if assigned.Expired || assigned.Passed {
			observed.Evicting[assigned.Pod.UID] = assigned.Progress
			continue
		}
		if assigned.Suspended {
			continue
		}
		byPod[assigned.Pod.UID] = assigned
		observed.Waiting = append(observed.Waiting, statefulset.Waiting{
			Name: assigned.Pod.Name, UID: assigned.Pod.UID, Progress: assigned.Progress, RenewAt: evacuation.RenewAt(assigned.Progress, assigned.Deadline),
			Message: assigned.Evacuation.Status.Message, DrainStart: start, Ordered: assigned.Terms.Ordered,
		})
	}
	return observed, byPod
}

// coming returns the Pods that are to be evicted in order: those on Nodes that a NodeMaintenance drains in order, and those on the Nodes
// of Machines that were deleted a moment ago and are not cordoned yet.
func (r *Reconciler) coming(ctx context.Context, cluster types.NamespacedName, finder *assignment.Finder, pods []corev1.Pod) (sets.Set[types.UID], error) {
	deleted, err := r.Maintenances.DeletedMachines(ctx, cluster)
	if err != nil {
		return nil, err
	}
	drained, imminent, coming := sets.New(finder.Drainers.KnownNodes()...), sets.New[string](), sets.New[types.UID]()
	cordoned := machinedrain.Cordoned(finder.Maintenances, cluster)
	for i := range deleted {
		node, _ := machinedrain.ImminentCordon(&deleted[i], cordoned, finder.Now)
		imminent.Insert(node)
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName != "" && imminent.Has(pod.Spec.NodeName) {
			coming.Insert(pod.UID)
		}
		if !drained.Has(pod.Spec.NodeName) {
			continue
		}
		// If the Node cannot be read, its Pods do not count: the order does not protect availability, and must not delay other Nodes.
		if terms, err := finder.Terms(ctx, pod); err == nil && terms.Ordered && !terms.Suspended {
			coming.Insert(pod.UID)
		}
	}
	return coming, nil
}

// read reads a StatefulSet, nil if it does not exist, and its Pods if they are evicted in order. It reads them from the API server, since
// recreated Pods run on Nodes whose Pods are not watched.
func read(ctx context.Context, live client.Client, key types.NamespacedName) (*appsv1.StatefulSet, []corev1.Pod, error) {
	set := &appsv1.StatefulSet{}
	if err := live.Get(ctx, key, set); answers.DoesNotExist(err) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, errors.Wrapf(err, "getting StatefulSet %s", key)
	}
	if !statefulset.Ordered(set) {
		return set, nil, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "reading the selector of StatefulSet %s", key)
	}
	var pods []corev1.Pod
	selected := []client.ListOption{client.InNamespace(key.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.Limit(podsPage)}
	for page := (&corev1.PodList{}); ; {
		if err := live.List(ctx, page, append(selected, client.Continue(page.Continue))...); err != nil {
			return nil, nil, errors.Wrapf(err, "listing the Pods of StatefulSet %s", key)
		}
		for i := range page.Items {
			if statefulset.SetOf(&page.Items[i]) == set.Name {
				pods = append(pods, page.Items[i])
			}
		}
		if page.Continue == "" {
			return set, pods, nil
		}
	}
}

// podsPage is the maximum number of Pods in one response: a user of the workload cluster chooses the selector, and how large the Pods are.
const podsPage = 50
