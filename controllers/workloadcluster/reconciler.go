// Package workloadcluster prepares workload clusters: it installs the bundle (CRDs, admission policies and roles) and the node agent, and
// then adds the watches of all controllers to the connection.
package workloadcluster

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Reasons of the events on Clusters.
const (
	// eventAdmissionPoliciesMissing on a Cluster means that the workload cluster does not support some of the admission policies, or has
	// disabled them.
	eventAdmissionPoliciesMissing = "AdmissionPoliciesMissing"
	// eventBundleRestored on a Cluster means that the manager has restored an object of the bundle that another actor had deleted or changed.
	eventBundleRestored = "BundleRestored"
	// eventBundleRefused on a Cluster means that the workload cluster refuses to create or update an admission policy, binding or role of the
	// bundle. Drains continue without it, or with the present one.
	eventBundleRefused = "BundleRefused"
	// eventNodeAgentNotInstalled on a Cluster means that a MachineDrainPolicy enables the node agent, but the workload cluster does not serve
	// the admission policies that limit each agent to its own Node.
	eventNodeAgentNotInstalled = "NodeAgentNotInstalled"
	// eventNodeAgentUnchanged on a Cluster means that the manager neither installs the node agent in the workload cluster nor removes it. The
	// message says why: it is not known whether a MachineDrainPolicy enables the agent, the agent holds static Pods, or another management
	// cluster has installed it.
	eventNodeAgentUnchanged = "NodeAgentUnchanged"
)

var bundleRestored = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "capnm_bundle_restored_total",
	Help: "Objects that the manager has restored in workload clusters, by kind and by what another actor had done to them: deleted, changed.",
}, []string{"kind", "change"})

func init() { metrics.Registry.MustRegister(bundleRestored) }

// Reconciler prepares each workload cluster that a MachineDrainPolicy selects. It checks the bundle on connect, when a drain begins, when a
// request of a drain fails because a kind is not served, and periodically.
type Reconciler struct {
	Client client.Client
	// APIReader reads the management cluster without a cache.
	APIReader client.Reader
	Clock     clock.PassiveClock
	Clusters  *workload.Clusters
	Watches   []workload.Watches
	Filter    machinedrain.WatchFilter
	// NodeAgentImage is the image of the node agent. If it is empty, no node agent is wanted in any workload cluster.
	NodeAgentImage string
	// Unread are the MachineDrainPolicies that cannot be decoded.
	Unread *setaside.Objects
	// ManagementCluster is the identity of this management cluster.
	ManagementCluster string

	recorder record.EventRecorder
	checks   sync.Map // of check, by the Cluster's namespace and name
	claimed  sync.Map // the Clusters whose node agent this manager has claimed since they were connected, see own
	unwanted sync.Map // since when no policy enables the node agent that is installed, of time.Time, by the Cluster's namespace and name
	holding  sync.Map // when agents to be removed were last seen to hold static Pods, of time.Time, by the Cluster's namespace and name
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager, options controller.Options) error {
	//nolint:staticcheck // CAPI's own controllers record core events, which kubectl describe shows
	r.recorder = mgr.GetEventRecorderFor("node-maintenance-cluster")
	clusters := func(_ context.Context, cluster client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(cluster)}}
	}
	selectionMayChange := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("workloadcluster").
		For(&clusterv1.Cluster{}, builder.WithPredicates(selectionMayChange)).
		Watches(&clusterv1.Cluster{}, r.Clusters.ResumeAfterPause()).
		Watches(&clusterv1.Machine{}, r.Clusters.ResumeAfterPause()).
		Watches(&v1alpha1.MachineDrainPolicy{}, r.Clusters.ResumeAfterPolicyChange(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineDrainPolicy{}, handler.EnqueueRequestsFromMapFunc(r.clustersOfNamespace),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Clusters.Source("workloadcluster", clusters)).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.Clusters.OnCheckRequested(func(cluster types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: cluster}) })
			return nil
		})).
		WithOptions(options).
		Complete(workload.RetryConflicts[reconcile.Request](r))
	return errors.Wrap(err, "setting up the workload cluster controller")
}

func (r *Reconciler) clustersOfNamespace(ctx context.Context, policy client.Object) []reconcile.Request {
	clusters := &clusterv1.ClusterList{}
	if err := r.Client.List(ctx, clusters, client.InNamespace(policy.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the Clusters of a MachineDrainPolicy's namespace")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(clusters.Items))
	for i := range clusters.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&clusters.Items[i])})
	}
	return requests
}

// Reconcile prepares one workload cluster, and restores the bundle periodically:
//
//	is it connected? ─► is it selected? ─► check the bundle ─► add the watches of the controllers ─► find leftovers ─► check the node agent
//	                                  └─ no, or one of these fails ───────────────────────────────────────────────► remove an unwanted one
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key := req.NamespacedName
	cluster, err := r.activeCluster(ctx, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	live, err := r.Clusters.UncachedClient(ctx, key)
	switch {
	case workload.IsNotConnected(err): // the next connection triggers a reconciliation
		r.disconnect(key)
		return reconcile.Result{}, nil
	case cluster == nil:
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	isManaged, err := r.isManaged(ctx, live, cluster)
	if err != nil {
		return reconcile.Result{}, err
	}
	requeueAfter, prepared := time.Duration(0), false
	if isManaged {
		requeueAfter, prepared, err = r.prepare(ctx, cluster, live)
	}
	// Last, because drains do not depend on it. It is removed also if nothing else can be done.
	agentAfter, agentErr := r.ensureNodeAgent(ctx, live, cluster, prepared)
	if err = cmp.Or(err, agentErr); err != nil {
		return workload.Result(err)
	}
	if requeueAfter == 0 || agentAfter > 0 && agentAfter < requeueAfter {
		requeueAfter = agentAfter
	}
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

// prepare installs the bundle in a workload cluster, and adds the watches of the controllers. It returns when to check the bundle again,
// and whether the workload cluster is prepared: its API server may not serve a CRD yet.
func (r *Reconciler) prepare(ctx context.Context, cluster *clusterv1.Cluster, live client.Client) (after time.Duration, prepared bool, err error) {
	key := client.ObjectKeyFromObject(cluster)
	after, served, err := r.checkBundle(ctx, cluster, live)
	if err != nil || !served {
		return after, false, err
	}
	if err := r.Clusters.Connected(ctx, key); err != nil {
		return 0, false, err
	}
	if err := r.Clusters.AddWatches(ctx, key, r.Watches); err != nil {
		return 0, false, err
	}
	if err := r.Clusters.FindLeftovers(ctx, key); err != nil {
		return 0, false, err
	}
	return after, true, nil
}

const (
	// establishRetry is the first interval of checks until the API server serves a new CRD, see retryUnserved.
	establishRetry = 100 * time.Millisecond
	// terminatingRetry is the interval of checks while a CRD is being deleted, and the longest one of those until it is served.
	terminatingRetry = 5 * time.Second
	// minCheckInterval limits the checks while many drains begin.
	minCheckInterval = 10 * time.Second
	// drainingCheckInterval is the interval of checks while a drain is in progress.
	drainingCheckInterval = 30 * time.Second
	// idleCheckInterval, extended by up to idleCheckJitter, is the interval of checks of an idle workload cluster. It is always less than ten
	// minutes, and the checks of a fleet do not coincide.
	idleCheckInterval = 8 * time.Minute
	idleCheckJitter   = 0.2
)

// checkBundle installs or restores the bundle unless it was checked a moment ago. It returns when to check it again, and whether the API
// server serves the objects of all CRDs, including those of a CRD that is being deleted.
func (r *Reconciler) checkBundle(ctx context.Context, cluster *clusterv1.Cluster, live client.Client) (after time.Duration, served bool, err error) {
	key, now := client.ObjectKeyFromObject(cluster), r.Clock.Now()
	last := r.lastCheck(key)
	if wait := last.at.Add(minCheckInterval).Sub(now); wait > 0 {
		return wait, true, nil
	}
	applied := last.applied
	if !applied.IsUnchanged(ctx, live) {
		applied, err = ApplyBundle(ctx, live)
		if observeErr := r.observeApplied(ctx, cluster, applied, err, last.at.IsZero()); err == nil {
			err = observeErr
		}
		if err != nil {
			return 0, false, err
		}
	}
	switch {
	case applied.Terminating: // a manager that has just started needs the watches to remove its finalizers, for which the deletion waits
		ctrl.LoggerFrom(ctx).Info(applied.Unserved)
		return terminatingRetry, true, nil
	case applied.Unserved != "":
		return retryUnserved(now.Sub(applied.UnservedSince)), false, nil
	}
	if !slices.Equal(applied.Missing, last.applied.Missing) {
		r.reportMissing(ctx, cluster, applied.Missing)
	}
	if refused := len(applied.Refused); refused > 0 { // one event, because the recorder limits those of a Cluster
		r.recorder.Eventf(cluster, corev1.EventTypeWarning, eventBundleRefused, "The workload cluster refuses %s of the bundle. Drains continue with those that "+
			"it has, which may protect NodeMaintenances and Evacuations less. The first refusal: %s", text.Count(refused, "object"), applied.Refused[0])
	}
	r.checks.Store(key, check{at: now, applied: applied})
	draining, err := r.hasMachine(ctx, key, machinedrain.IsDraining)
	if draining || r.Clusters.CurrentObservation(key) != nil {
		return drainingCheckInterval, true, err
	}
	return wait.Jitter(idleCheckInterval, idleCheckJitter), true, err
}

// retryUnserved returns when to check again whether a CRD is served: after a tenth of its age, which is negative if the clock of this
// manager is behind. An API server may never serve it, for example because another CRD has its names, and each check reads the bundle.
func retryUnserved(age time.Duration) time.Duration {
	return max(establishRetry, min(terminatingRetry, age.Abs()/10))
}

// observeApplied reports what was restored, also before a failure, and which CRDs are not served. isFirst means that no check has succeeded
// since the workload cluster was connected.
func (r *Reconciler) observeApplied(ctx context.Context, cluster *clusterv1.Cluster, applied Applied, failure error, isFirst bool) error {
	key := client.ObjectKeyFromObject(cluster)
	r.reportRestored(ctx, cluster, applied.Restored)
	if applied.CreatedCRDs {
		if err := r.Clusters.RestartInformers(ctx, key, r.Watches); err != nil {
			return err
		}
	}
	if unserved, changed := applied.unservedAfter(failure, isFirst); changed {
		r.Clusters.SetUnserved(key, unserved)
	}
	return nil
}

// check is the result of the last check of the bundle in a workload cluster. It is kept in memory only: the manager checks each workload
// cluster once more after a restart.
type check struct {
	at      time.Time
	applied Applied
}

func (r *Reconciler) lastCheck(cluster types.NamespacedName) check {
	if last, found := r.checks.Load(cluster); found {
		return last.(check) //nolint:forcetypeassert // nothing else is stored
	}
	return check{}
}

func (r *Reconciler) disconnect(cluster types.NamespacedName) {
	r.forget(cluster)
	r.Clusters.Disconnect(cluster)
}

// forget removes what is kept in memory while a workload cluster is connected.
func (r *Reconciler) forget(cluster types.NamespacedName) {
	r.checks.Delete(cluster)
	r.claimed.Delete(cluster)
	r.holding.Delete(cluster)
	r.unwanted.Delete(cluster)
}

// reportRestored logs and counts what was restored, and records an event on the Cluster.
func (r *Reconciler) reportRestored(ctx context.Context, cluster *clusterv1.Cluster, all []Restored) {
	for _, restored := range all {
		ctrl.LoggerFrom(ctx).Info("Restored an object of the bundle in the workload cluster, which another actor had "+restored.Change, "kind", restored.Kind,
			"name", restored.Name)
		bundleRestored.WithLabelValues(restored.Kind, restored.Change).Inc()
		r.recorder.Eventf(cluster, corev1.EventTypeWarning, eventBundleRestored,
			"Restored %s %s in the workload cluster, which another actor had %s", restored.Kind, restored.Name, restored.Change)
	}
}

// reportMissing records an event on the Cluster about admission policies that the workload cluster does not serve. An older Kubernetes does
// not prevent drains, but its administrators must restrict who may write NodeMaintenances and Evacuations.
func (r *Reconciler) reportMissing(ctx context.Context, cluster *clusterv1.Cluster, missing []string) {
	if len(missing) == 0 {
		return
	}
	ctrl.LoggerFrom(ctx).Info("The workload cluster does not support the admission policies", "missing", missing)
	r.recorder.Eventf(cluster, corev1.EventTypeWarning, eventAdmissionPoliciesMissing,
		"The workload cluster does not support %s. Every user who may write NodeMaintenances or Evacuations there can drain its Nodes: restrict who may write them",
		strings.Join(missing, ", "))
}

// activeCluster returns the Cluster. It returns nil if the Cluster does not exist, is paused, or is one of another manager.
func (r *Reconciler) activeCluster(ctx context.Context, key types.NamespacedName) (*clusterv1.Cluster, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(key)
			r.Clusters.Forget(key)
			return nil, nil
		}
		return nil, errors.Wrapf(err, "getting Cluster %s", key)
	}
	if !r.Filter.Selects(cluster) { // the label may have been changed
		r.disconnect(key)
		return nil, nil
	}
	if machinedrain.IsClusterPaused(cluster) {
		return nil, nil
	}
	return cluster, nil
}

// isManaged reports whether a MachineDrainPolicy selects or may select a Cluster, or one of its Machines may have a NodeMaintenance, or
// another one is in progress there.
func (r *Reconciler) isManaged(ctx context.Context, live client.Client, cluster *clusterv1.Cluster) (bool, error) {
	key := client.ObjectKeyFromObject(cluster)
	policies, err := listPolicies(ctx, r.Client, key.Namespace)
	if err != nil {
		return false, err
	}
	for i := range policies {
		if machinedrain.PolicyMaySelectCluster(&policies[i], cluster.Labels) {
			return true, nil
		}
	}
	if len(r.Unread.List("MachineDrainPolicy", key.Namespace)) > 0 && r.Clusters.IsOpen(key) { // the policy may select the Cluster
		return true, nil
	}
	if isBusy, err := r.hasMachine(ctx, key, machinedrain.MayHaveMaintenance); err != nil || isBusy {
		return isBusy, err
	}
	return r.maintenanceInProgress(ctx, live)
}

func listPolicies(ctx context.Context, reader client.Reader, namespace string) ([]v1alpha1.MachineDrainPolicy, error) {
	policies := &v1alpha1.MachineDrainPolicyList{}
	err := reader.List(ctx, policies, client.InNamespace(namespace))
	return policies.Items, errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", namespace)
}

// maintenanceInProgress reports whether a NodeMaintenance in a workload cluster has the finalizer of a manager, and so has changed Nodes,
// unless another management cluster completes it. It continues even if the last policy has been deleted, also after a restart.
func (r *Reconciler) maintenanceInProgress(ctx context.Context, live client.Client) (bool, error) {
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeMaintenanceList"))
	err := listMaintenances(ctx, live, all)
	return slices.ContainsFunc(all.Items, func(m metav1.PartialObjectMetadata) bool {
		owner := cmp.Or(m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], r.ManagementCluster)
		return slices.Contains(m.Finalizers, v1alpha1.MaintenanceCompletionFinalizer) && owner == r.ManagementCluster
	}), err
}

// listMaintenances lists all NodeMaintenances of a workload cluster. There are none if their CRD does not exist. That they are not served
// does not say so: a proxy gives the same answer while no API server is behind it.
func listMaintenances(ctx context.Context, live client.Client, into client.ObjectList) error {
	err := live.List(ctx, into)
	if answers.NotServed(err) || meta.IsNoMatchError(err) {
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind(crdKind))
		if answers.DoesNotExist(live.Get(ctx, types.NamespacedName{Name: "nodemaintenances." + v1alpha1.GroupVersion.Group}, crd)) {
			return nil
		}
	}
	return errors.Wrap(err, "listing NodeMaintenances")
}

// hasMachine reports whether the Cluster has a Machine that matches.
func (r *Reconciler) hasMachine(ctx context.Context, cluster types.NamespacedName, matches func(*clusterv1.Machine) bool) (bool, error) {
	list := &clusterv1.MachineList{}
	err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name},
		client.UnsafeDisableDeepCopy)
	for i := range list.Items {
		if matches(&list.Items[i]) {
			return true, nil
		}
	}
	return false, errors.Wrapf(err, "listing the Machines of Cluster %s", cluster)
}
