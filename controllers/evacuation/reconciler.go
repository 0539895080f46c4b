package evacuation

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/jsonpatch"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Reconciler reconciles Evacuations.
type Reconciler struct {
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Written      *expectations.Objects[*v1alpha1.Evacuation]
	Clock        clock.PassiveClock

	controller controller.TypedController[workload.Request]
	// goneSince is when the Pod of an Evacuation was first observed not to exist, by UID of the Evacuation. It is kept in memory: after a
	// restart of the manager, the wait for the garbage collector begins again.
	goneSince *expiring.Map[types.UID, time.Time]
	// nextRead is when a Pod that is not scheduled is read again, by UID of the Evacuation.
	nextRead *expiring.Map[types.UID, time.Time]
}

// goneTTL is how long goneSince is kept: longer than evacuation.AwaitCollectionFor, because a busy manager may reconcile late.
const goneTTL = time.Minute

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	r.goneSince, r.nextRead = expiring.NewMap[types.UID, time.Time](ctx), expiring.NewMap[types.UID, time.Time](ctx)
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "evacuation", r, options, r.enqueue)
	return err
}

// Watches returns the watches of a workload cluster's Evacuations, and of NodeMaintenances for changes of their terms.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("evacuation-Evacuations", r.controller, &v1alpha1.Evacuation{},
			expectations.Observing(r.Written, cluster, workload.EnqueueObjects(cluster, workload.OwnKey[*v1alpha1.Evacuation])),
			predicate.TypedResourceVersionChangedPredicate[*v1alpha1.Evacuation]{}),
		workload.Watch("evacuation-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{},
			workload.EnqueueObjects(cluster, func(ctx context.Context, m *v1alpha1.NodeMaintenance) []types.NamespacedName {
				return r.evacuationsOf(ctx, cluster, m)
			}), workload.Changed(evacuation.TermsChanged)),
	}
}

// evacuationsOf returns the Evacuations on the Nodes that a NodeMaintenance selects or that its status lists.
func (r *Reconciler) evacuationsOf(ctx context.Context, cluster types.NamespacedName, m *v1alpha1.NodeMaintenance) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the initial list of the next connection enqueues all Evacuations
	}
	keys, err := evacuationsIn(ctx, remoteClient, m)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to find the Evacuations to reconcile", "Cluster", klog.KRef(cluster.Namespace, cluster.Name))
	}
	return keys
}

func evacuationsIn(ctx context.Context, remoteClient client.Client, m *v1alpha1.NodeMaintenance) (keys []types.NamespacedName, _ error) {
	byLabel, err := selectedByLabel(ctx, remoteClient, m)
	for _, node := range append(nodeselection.KnownNodes(m), byLabel...) {
		list := &v1alpha1.EvacuationList{}
		if err := remoteClient.List(ctx, list, workload.OnNode(node), client.UnsafeDisableDeepCopy); err != nil {
			return keys, errors.Wrapf(err, "listing the Evacuations of Node %s", node)
		}
		for j := range list.Items {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[j]))
		}
	}
	return keys, err
}

// selectedByLabel returns the names of the Nodes that a NodeMaintenance selects by label, and that its status does not list, maybe because
// it was deleted before its first reconciliation. Until the Nodes are observed, it returns none: no Evacuation has been decided then.
func selectedByLabel(ctx context.Context, remoteClient client.Client, m *v1alpha1.NodeMaintenance) (names []string, _ error) {
	if _, byName := nodeselection.Names(m); byName || !workload.ObservesNodes(remoteClient) {
		return nil, nil
	}
	nodes := &corev1.NodeList{}
	if err := remoteClient.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrap(err, "listing Nodes")
	}
	listed, selected := nodeselection.NodeStatuses(m), nodeselection.Of(m)
	for i := range nodes.Items {
		if node := &nodes.Items[i]; listed[node.Name] == nil && selected(node) {
			names = append(names, node.Name)
		}
	}
	return names, nil
}

// enqueue maps a Change to Evacuations. The name of a Pod's Evacuation follows from the Pod.
func (r *Reconciler) enqueue(ctx context.Context, queue workload.Queue, change workload.Change) {
	switch change.Type {
	case workload.PodChanged, workload.PodDeleted:
		key := types.NamespacedName{Namespace: change.Pod.Namespace, Name: evacuation.Name(change.Pod.UID, change.Pod.Name)}
		queue.Add(workload.Request{Cluster: change.Cluster, Object: key})
	case workload.PodsListed, workload.DrainContinued:
		r.Clusters.EnqueueEvacuations(ctx, queue, change.Cluster, workload.OwnKey[*v1alpha1.Evacuation], workload.OnNode(change.Node))
	case workload.AllPodsAffected:
		r.Clusters.EnqueueEvacuations(ctx, queue, change.Cluster, workload.OwnKey[*v1alpha1.Evacuation])
	default: // affects no Evacuation
	}
}

// scope is the state of one reconciliation.
type scope struct {
	request    workload.Request
	client     client.Client
	evacuation *v1alpha1.Evacuation
	pod        *corev1.Pod      // nil if the Pod does not exist or is not known
	gone       bool             // the Pod does not exist
	noNode     bool             // the Pod is not scheduled, or its Node does not exist, so its Pods are not watched
	podType    v1alpha1.PodType // valid if pod is not nil
	terms      evacuation.Terms
}

// Reconcile reconciles one Evacuation:
//
//	locate the Pod ─► observe it ─► decide the next action (drain/evacuation) ─► store it
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	log := ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"Evacuation", klog.KRef(request.Object.Namespace, request.Object.Name))
	ctx = ctrl.LoggerInto(ctx, log)

	s := &scope{request: request, evacuation: &v1alpha1.Evacuation{}}
	var err error
	if s.client, err = r.Clusters.Client(ctx, request.Cluster); err != nil {
		return workload.Result(err)
	}
	if err := s.client.Get(ctx, request.Object, s.evacuation); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.Clusters.Release(request.Cluster, watchOwner(request))
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, errors.Wrapf(err, "getting Evacuation %s", request.Object)
	}
	var removed bool
	if s.evacuation, removed = r.Written.Latest(request.Cluster, s.evacuation); removed {
		return reconcile.Result{RequeueAfter: expectations.TTL}, nil // the watch delivers its deletion before, unless a backup was restored (R73)
	}
	if located, err := r.locate(ctx, s); err != nil || !located {
		return workload.Result(err)
	}
	if err := r.observe(ctx, s); err != nil {
		return workload.Result(err)
	}
	now := r.Clock.Now()
	action := evacuation.Next(r.input(s, now))
	if action.Kind == evacuation.Evict {
		// The evictor takes over: it watches the same Evacuations, comes to the same decision, evicts the Pod as PodDisruptionBudgets allow,
		// and writes this action to the status together with what the eviction waits for.
		return reconcile.Result{}, nil
	}
	if exists, err := r.endWatch(ctx, s, action); err != nil {
		return workload.Result(err)
	} else if exists {
		return reconcile.Result{RequeueAfter: evacuation.AwaitCollectionFor}, nil
	}
	if err := r.store(ctx, s, action, now); answers.IgnoreDoesNotExist(err) != nil {
		return workload.Result(err)
	}
	if s.noNode {
		return workload.RequeueAt(r.readAgain(s, now), now), nil
	}
	return workload.RequeueAt(action.Deadline, now), nil
}

// input returns what is known about the Evacuation and its Pod. It records when the Pod was first observed not to exist.
func (r *Reconciler) input(s *scope, now time.Time) evacuation.Input {
	if s.gone {
		since, known := r.goneSince.Get(s.request.Cluster, s.evacuation.UID)
		if !known {
			since = now
			r.goneSince.Set(s.request.Cluster, s.evacuation.UID, since, goneTTL)
		}
		return evacuation.Input{Evacuation: s.evacuation, Pod: evacuation.Pod{Known: true}, GoneSince: since, Now: now}
	}
	if s.pod == nil {
		return evacuation.Input{Evacuation: s.evacuation, Now: now}
	}
	return evacuators.InputOf(s.evacuation, s.pod, s.podType, s.terms, now)
}

// watchOwner returns the name of an Evacuation as an owner of drain watches.
func watchOwner(request workload.Request) string { return "Evacuation/" + request.Object.String() }

// locate finds the Node of the Pod and records it in an annotation of the Evacuation. The Evacuations of NodeMaintenances are created with
// this annotation. If using the annotation requires one more watch, locate first verifies it with the Pod (see evacuation.RecordedNode). It
// returns false if it has patched the annotation.
func (r *Reconciler) locate(ctx context.Context, s *scope) (bool, error) {
	name, recorded := s.evacuation.Annotations[v1alpha1.EvacuationNodeAnnotation]
	if recorded {
		known, err := r.observeRecordedNode(ctx, s, name)
		if err != nil || !known.NeedsPod() {
			return err == nil, err
		}
		if name == "" && r.isReadLater(s) {
			s.noNode = true
			return true, nil
		}
	}
	// A Pod that was observed not to exist while its Node was watched is not read again.
	var pod *corev1.Pod
	var err error
	if _, gone := r.goneSince.Get(s.request.Cluster, s.evacuation.UID); !gone {
		pod, err = r.livePod(ctx, s)
	}
	switch {
	case err != nil:
		return false, err
	case pod == nil:
		s.gone = true
		r.Clusters.Release(s.request.Cluster, watchOwner(s.request))
		return true, nil
	case !recorded || name != pod.Spec.NodeName:
		return false, r.recordNode(ctx, s, pod)
	}
	if name != "" {
		node, err := workload.NodeNamed(ctx, s.client, name)
		if err != nil || node != nil {
			return err == nil, err
		}
	}
	s.noNode = true
	r.Clusters.Release(s.request.Cluster, watchOwner(s.request))
	return true, nil
}

// noNodeInterval is the shortest interval at which a Pod is read that is not scheduled, or whose Node does not exist. It grows with the age
// of the Evacuation: a tenant may have thousands of Pods that are never scheduled. Kubernetes garbage-collects the latter.
const noNodeInterval, maxNoNodeInterval = time.Minute, 15 * time.Minute

// readAgain returns when a Pod is read again that has no Node, and records it.
func (r *Reconciler) readAgain(s *scope, now time.Time) (next time.Time) {
	interval := max(noNodeInterval, min(maxNoNodeInterval, now.Sub(s.evacuation.CreationTimestamp.Time)))
	r.nextRead.Update(s.request.Cluster, s.evacuation.UID, func(present time.Time, found bool) (time.Time, time.Duration) {
		if next = present; !found || !now.Before(present) {
			next = now.Add(interval)
		}
		return next, next.Sub(now)
	})
	return next
}

// isReadLater reports whether a Pod that was not scheduled is read again at a later time, however many events occur until then. A Pod on a
// watched Node is read at once.
func (r *Reconciler) isReadLater(s *scope) bool {
	if observation := r.Clusters.CurrentObservation(s.request.Cluster); observation != nil {
		if _, found := workload.PodOf(observation, s.evacuation); found {
			return false
		}
	}
	next, found := r.nextRead.Get(s.request.Cluster, s.evacuation.UID)
	return found && r.Clock.Now().Before(next)
}

// observeRecordedNode observes the Node that the annotation of the Evacuation names.
func (r *Reconciler) observeRecordedNode(ctx context.Context, s *scope, name string) (evacuation.RecordedNode, error) {
	known := evacuation.RecordedNode{Name: name, Watched: r.Clusters.Observes(s.request.Cluster, name)}
	if known.Watched || name == "" {
		return known, nil
	}
	node := &corev1.Node{}
	if err := s.client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return known, errors.Wrapf(client.IgnoreNotFound(err), "getting Node %s", name)
	}
	var err error
	known.Node = node
	known.Maintenances, err = workload.MaintenancesOf(ctx, s.client, name)
	return known, err
}

// livePod reads the Pod of the Evacuation from the API server. It returns nil if no Pod with its UID exists.
func (r *Reconciler) livePod(ctx context.Context, s *scope) (*corev1.Pod, error) {
	live, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return nil, err
	}
	pod, key := &corev1.Pod{}, types.NamespacedName{Namespace: s.evacuation.Namespace, Name: s.evacuation.Spec.PodRef.Name}
	if err := live.Get(ctx, key, pod); err != nil && !answers.DoesNotExist(err) {
		return nil, errors.Wrapf(err, "getting Pod %s", key)
	}
	if !evacuation.IsOf(s.evacuation, pod) {
		return nil, nil //nolint:nilnil // nil is a valid result
	}
	return pod, nil
}

// recordNode records the Node and the labels of the Pod on the Evacuation.
func (r *Reconciler) recordNode(ctx context.Context, s *scope, pod *corev1.Pod) error {
	changed := s.evacuation.DeepCopy()
	evacuation.Adopt(changed, pod)
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.EvacuationNodeAnnotation, pod.Spec.NodeName)
	err := s.client.Patch(ctx, changed, client.MergeFromWithOptions(s.evacuation, client.MergeFromWithOptimisticLock{}))
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "recording the Node of Pod %s on its Evacuation", klog.KObj(pod))
}

// observe watches the Pods of the Node and fills the scope with what is known about the Pod.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	if s.gone || s.noNode { // found by locate
		return nil
	}
	node := s.evacuation.Annotations[v1alpha1.EvacuationNodeAnnotation]
	observation, err := r.Clusters.Observe(ctx, s.request.Cluster, watchOwner(s.request), node)
	if err != nil {
		return err
	}
	pod, found := workload.PodOf(observation, s.evacuation)
	if !found {
		if _, listed := observation.PodsOn(node); !listed {
			return nil
		}
		return r.confirmGone(ctx, s)
	}
	if pod.Spec.NodeName != node { // NodeMaintenances find the Evacuations of their Nodes by the annotation
		return r.recordNode(ctx, s, pod)
	}
	podType, known := rules.PodTypeOf(pod, observation.DaemonSetExists)
	if !known {
		return nil
	}
	s.pod, s.podType = pod, podType
	maintenances, err := workload.MaintenancesOf(ctx, s.client, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	drained, err := workload.NodeNamed(ctx, s.client, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	suspension := r.Maintenances.Suspension(ctx, s.request.Cluster)
	s.terms = evacuation.DrainersOf(maintenances, suspension.Of).On(drained).For(planinput.RulePod(observation, pod))
	if err := suspension.Err(); err != nil {
		return err
	}
	if len(s.evacuation.Spec.Evacuators) == 0 {
		_, problems := evacuation.Resolve(evacuators.SubjectOf(s.evacuation, pod, podType, s.terms))
		for _, problem := range problems {
			r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, workload.EventInvalidEvacuator, problem.Message)
		}
	}
	return nil
}

// confirmGone decides whether a Pod that is not among those of its Node does not exist. If it has not been observed before, the watch may
// not have delivered it yet, so it is read.
func (r *Reconciler) confirmGone(ctx context.Context, s *scope) error {
	_, known := r.goneSince.Get(s.request.Cluster, s.evacuation.UID)
	if !known && !evacuation.PodWasObserved(s.evacuation) {
		pod, err := r.livePod(ctx, s)
		if err != nil || pod != nil && pod.Spec.NodeName == s.evacuation.Annotations[v1alpha1.EvacuationNodeAnnotation] {
			return err
		}
		if pod != nil {
			return r.recordNode(ctx, s, pod)
		}
	}
	s.gone = true
	return nil
}

// endWatch stops the watch for an Evacuation that ends because its Pod does not exist: the Evacuation may exist for long, with a finalizer
// of another actor. If the manager has to delete it, because the garbage collector has not, it reads the Pod first: the watch may not have
// delivered the Pod yet, although the Pod is the owner, or the annotation may name another Node. endWatch reports whether the Pod exists.
func (r *Reconciler) endWatch(ctx context.Context, s *scope, action evacuation.Action) (exists bool, err error) {
	if !s.gone || action.Kind == evacuation.AwaitCollection {
		return false, nil
	}
	if action.Kind == evacuation.Finish && action.Delete {
		pod, err := r.livePod(ctx, s)
		if err != nil {
			return false, err
		}
		if pod != nil {
			r.goneSince.Update(s.request.Cluster, s.evacuation.UID, func(since time.Time, _ bool) (time.Time, time.Duration) { return since, 0 })
			if pod.Spec.NodeName != s.evacuation.Annotations[v1alpha1.EvacuationNodeAnnotation] {
				err = r.recordNode(ctx, s, pod)
			}
			return true, err
		}
	}
	r.Clusters.Release(s.request.Cluster, watchOwner(s.request))
	return false, nil
}

// store writes the changes of the action, in the order that evacuation.Action.Apply requires: status, deletion, finalizers and spec. It
// returns the error NotFound if the Evacuation no longer exists.
func (r *Reconciler) store(ctx context.Context, s *scope, action evacuation.Action, now time.Time) error {
	before, after := s.evacuation, s.evacuation.DeepCopy()
	action.Apply(after, now)
	if err := r.patchStatus(ctx, s, before, after); err != nil {
		return err
	}
	workload.CountActivation(before, after)
	if action.Delete {
		// Without a lock, since a concurrent write does not bring the Pod back. The UID excludes an Evacuation that was recreated.
		if err := s.client.Delete(ctx, after, client.Preconditions{UID: &after.UID}); err != nil {
			return errors.Wrapf(err, "deleting Evacuation %s", klog.KObj(after))
		}
	}
	if err := r.patch(ctx, s, before, after, action.Delete); err != nil {
		return err
	}
	if len(after.Finalizers) == 0 && (action.Delete || after.DeletionTimestamp != nil) {
		r.Written.RecordDeleted(s.request.Cluster, after)
	}
	return nil
}

// patchStatus patches the status. An evacuator writes it at any time, and the watch may lag. So a patch that activates an evacuator or
// contains the list of conditions fails with a conflict if the Evacuation has changed. All other patches have no lock: they set fields that
// do not depend on what an evacuator may have written, and a conflict would delay the action.
func (r *Reconciler) patchStatus(ctx context.Context, s *scope, before, after *v1alpha1.Evacuation) error {
	if apiequality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	patched, patch := before.DeepCopy(), client.MergeFrom(before)
	patched.Status = after.Status
	if decides(before.Status, after.Status) {
		patch = client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	}
	if err := s.client.Status().Patch(ctx, patched, patch); err != nil {
		return errors.Wrapf(err, "patching the status of Evacuation %s", klog.KObj(after))
	}
	r.Written.RecordWritten(s.request.Cluster, patched)
	after.ResourceVersion = patched.ResourceVersion
	return nil
}

// decides reports whether an update of the status changes the active evacuator, its completion or the conditions.
func decides(before, after v1alpha1.EvacuationStatus) bool {
	return before.ActiveEvacuatorCompleted != after.ActiveEvacuatorCompleted ||
		!apiequality.Semantic.DeepEqual(before.ActiveEvacuatorClass, after.ActiveEvacuatorClass) ||
		!apiequality.Semantic.DeepEqual(before.Conditions, after.Conditions)
}

// patch patches finalizers and spec. It fails with a conflict if another actor has changed them, for which the cache may be stale: also
// after the deletion, which changed the resourceVersion, other actors may have added finalizers before it.
func (r *Reconciler) patch(ctx context.Context, s *scope, before, after *v1alpha1.Evacuation, deleted bool) error {
	if apiequality.Semantic.DeepEqual(before.Finalizers, after.Finalizers) && apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil
	}
	if err := patchUnchanged(ctx, s.client, before, after, deleted); err != nil {
		return errors.Wrapf(err, "patching Evacuation %s", klog.KObj(after))
	}
	r.Written.RecordWritten(s.request.Cluster, after)
	return nil
}

func patchUnchanged(ctx context.Context, c client.Client, before, after *v1alpha1.Evacuation, deleted bool) error {
	if deleted { // only finalizers change
		return jsonpatch.Finalizers(ctx, c, before, after)
	}
	original := after.DeepCopy()
	original.Finalizers, original.Spec = before.Finalizers, before.Spec
	return c.Patch(ctx, after, client.MergeFromWithOptions(original, client.MergeFromWithOptimisticLock{}))
}
