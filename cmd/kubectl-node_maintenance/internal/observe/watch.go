package observe

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=watch,roleName=capnm-plugin-management-reader
// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=machinedrainpolicies,verbs=watch,roleName=capnm-plugin-management-reader
// +kubebuilder:rbac:groups="",resources=pods,verbs=watch,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=list;watch,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=watch,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=evacuations;nodemaintenances,verbs=watch,roleName=capnm-plugin-workload-reader

// problemAge is how long the error of a watch is reported after it occurred. Watches that fail are retried more often than that.
const problemAge = time.Minute

// Watch follows Machines, and the NodeMaintenances and Evacuations of workload clusters. Once it has listed them, it sends requests only
// to renew its watches.
type Watch struct {
	// Changed receives a value when something has changed since the last value was received.
	Changed chan struct{}

	connections *Connections

	mu        sync.Mutex
	machines  *followed
	policies  *followed // nil if the cluster has none
	workloads map[types.NamespacedName]*workload
	details   map[types.NamespacedName]*details // nil unless they are followed
	problems  map[subject]problem
}

// workload is what is watched of a workload cluster. Each kind is watched on its own: a user may be allowed to watch only one. It has no
// watches until the cluster is connected.
type workload struct {
	asked                     time.Time // when Drains was called last
	maintenances, evacuations *followed
}

// subject is what cannot be read: a kind of a workload cluster, or of the cluster of the context if the name is empty. Without a kind, it
// is the connection.
type subject struct {
	cluster types.NamespacedName
	kind    string
}

// problem is why something cannot be read.
type problem struct {
	text string
	last time.Time
}

// followed is a kind of a cluster whose objects are watched.
type followed struct {
	ctrlcache.Cache
	isSynced toolscache.InformerSynced
	isLost   *atomic.Bool       // the last request failed: what is listed may be out of date
	stop     context.CancelFunc // nil: it ends with the Watch
}

// NewWatch returns a Watch until the context is done. With a context of a management cluster, it follows the Machines that machines
// selects, and the MachineDrainPolicies of the same namespaces.
func NewWatch(ctx context.Context, c *Connections, machines ctrlcache.ByObject) (*Watch, error) {
	w := &Watch{
		Changed: make(chan struct{}, 1), connections: c,
		workloads: map[types.NamespacedName]*workload{}, problems: map[subject]problem{},
	}
	w.notify()
	if !c.Current.HasMachines {
		return w, nil
	}
	var err error
	options := ctrlcache.Options{ByObject: map[client.Object]ctrlcache.ByObject{&clusterv1.Machine{}: machines}}
	if w.machines, err = w.follow(ctx, types.NamespacedName{}, c.Current, options, &clusterv1.Machine{}); err != nil {
		return nil, err
	}
	w.followPolicies(ctx, machines.Namespaces)
	return w, nil
}

// followPolicies watches the MachineDrainPolicies. What cannot be read of them is a gap, and a management cluster without this provider has
// none.
func (w *Watch) followPolicies(ctx context.Context, namespaces map[string]ctrlcache.Config) {
	c := w.connections.Current
	if !serves(c.RESTMapper(), v1alpha1.GroupVersion.WithKind("MachineDrainPolicy")) {
		return
	}
	options := ctrlcache.Options{ByObject: map[client.Object]ctrlcache.ByObject{&v1alpha1.MachineDrainPolicy{}: {Namespaces: namespaces}}}
	var err error
	if w.policies, err = w.follow(ctx, types.NamespacedName{}, c, options, &v1alpha1.MachineDrainPolicy{}); err != nil {
		c.gaps.Add(err.Error())
	}
}

// Policies returns the MachineDrainPolicies.
func (w *Watch) Policies(ctx context.Context) []v1alpha1.MachineDrainPolicy {
	list := &v1alpha1.MachineDrainPolicyList{}
	w.read(ctx, w.policies, list)
	return list.Items
}

// Machines returns the Machines, by namespace and name.
func (w *Watch) Machines(ctx context.Context) []clusterv1.Machine {
	list := &clusterv1.MachineList{}
	w.read(ctx, w.machines, list)
	slices.SortFunc(list.Items, func(a, b clusterv1.Machine) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list.Items
}

// Drains returns the NodeMaintenances and Evacuations of a workload cluster, by name. It starts to follow the cluster when it is asked for
// the first time. The zero value of cluster is the cluster of the context.
func (w *Watch) Drains(ctx context.Context, cluster types.NamespacedName) ([]v1alpha1.NodeMaintenance, []v1alpha1.Evacuation) {
	w.mu.Lock()
	known := w.workloads[cluster]
	if known == nil {
		known = &workload{}
		w.workloads[cluster] = known
		go w.connect(ctx, cluster)
	}
	known.asked = time.Now()
	watched := *known
	w.mu.Unlock()
	maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
	w.read(ctx, watched.maintenances, maintenances)
	w.read(ctx, watched.evacuations, evacuations)
	slices.SortFunc(maintenances.Items, func(a, b v1alpha1.NodeMaintenance) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(evacuations.Items, func(a, b v1alpha1.Evacuation) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Spec.PodRef.Name, b.Spec.PodRef.Name), cmp.Compare(a.Name, b.Name))
	})
	return maintenances.Items, evacuations.Items
}

// Problems returns why something cannot be read at the moment. A cluster that is no longer asked for, such as that of a deleted Cluster, is
// no problem.
func (w *Watch) Problems() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var texts []string
	for about, each := range w.problems {
		known := w.workloads[about.cluster]
		if time.Since(each.last) < problemAge && (known == nil || time.Since(known.asked) < problemAge) {
			texts = append(texts, each.text)
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// connect follows a workload cluster, and retries until that succeeds.
func (w *Watch) connect(ctx context.Context, cluster types.NamespacedName) {
	retry := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 6, Cap: problemAge / 2}
	_ = retry.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		if err := w.connectOnce(ctx, cluster); err != nil {
			w.report(subject{cluster: cluster}, err)
			return false, nil
		}
		w.restored(subject{cluster: cluster})
		return true, nil
	})
}

func (w *Watch) connectOnce(ctx context.Context, cluster types.NamespacedName) (err error) {
	connected := w.connections.Current
	if cluster.Name != "" {
		if connected, err = w.connections.connectWorkload(ctx, cluster); err != nil {
			return err
		}
	}
	if !connected.HasMaintenances {
		return errors.Errorf("%s does not serve NodeMaintenances", connected.Name)
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		if err != nil { // connect begins again
			stop()
		}
	}()
	maintenances, err := w.follow(ctx, cluster, connected, ctrlcache.Options{}, &v1alpha1.NodeMaintenance{})
	if err != nil {
		return err
	}
	evacuations, err := w.follow(ctx, cluster, connected, ctrlcache.Options{}, &v1alpha1.Evacuation{})
	if err != nil {
		return err
	}
	var followed *details
	if w.details != nil {
		followed = w.followDetails(ctx, cluster, connected)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.workloads[cluster].maintenances, w.workloads[cluster].evacuations = maintenances, evacuations
	if followed != nil {
		w.details[cluster] = followed
	}
	return nil
}

// follow watches the objects of a kind in a cluster.
func (w *Watch) follow(ctx context.Context, cluster types.NamespacedName, c *Cluster, options ctrlcache.Options, kind client.Object) (*followed, error) {
	about := subject{cluster, fmt.Sprintf("%T", kind)}
	options.Scheme, options.Mapper = c.Scheme(), c.RESTMapper()
	if options.DefaultTransform == nil {
		options.DefaultTransform = ctrlcache.TransformStripManagedFields()
	}
	// What is listed is only read.
	options.DefaultUnsafeDisableDeepCopy = ptr.To(true)
	options.DefaultWatchErrorHandler = func(_ context.Context, _ *toolscache.Reflector, err error) {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			w.report(about, errors.Wrap(err, c.Name))
		}
	}
	config, isLost := rest.CopyConfig(c.Config), &atomic.Bool{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &answers{next, isLost, func(err error) { w.report(about, errors.Wrap(err, c.Name)) }, func() { w.restored(about) }}
	})
	watches, err := ctrlcache.New(config, options)
	if err != nil {
		return nil, errors.Wrapf(err, "preparing to watch %s", c.Name)
	}
	informer, err := watches.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, errors.Wrapf(err, "watching %T in %s", kind, c.Name)
	}
	changed := func() { w.restored(about) }
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return nil, errors.Wrapf(err, "watching %T in %s", kind, c.Name)
	}
	f := &followed{Cache: watches, isSynced: handler.HasSynced, isLost: isLost}
	go func() {
		_ = watches.Start(ctx)
	}()
	go func() { // an empty list causes no event
		toolscache.WaitForCacheSync(ctx.Done(), f.isSynced)
		w.notify()
	}()
	return f, nil
}

// read lists what has been observed. Nothing is listed before the first list is complete.
func (w *Watch) read(ctx context.Context, f *followed, list client.ObjectList, options ...client.ListOption) {
	if f == nil || !f.isSynced() {
		return
	}
	if err := f.List(ctx, list, options...); err != nil {
		w.report(subject{}, err)
	}
}

// IsSynced reports whether the Machines are listed, and the NodeMaintenances of the workload clusters that were asked for.
func (w *Watch) IsSynced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range w.workloads {
		if each.maintenances == nil || !each.maintenances.isSynced() || !each.evacuations.isSynced() {
			return false
		}
	}
	return w.machines == nil || w.machines.isSynced()
}

func (w *Watch) report(about subject, err error) {
	w.mu.Lock()
	w.problems[about] = problem{err.Error(), time.Now()}
	w.mu.Unlock()
	w.notify()
	time.AfterFunc(problemAge, w.notify)
}

// restored forgets the problem of what has sent an event.
func (w *Watch) restored(about subject) {
	w.mu.Lock()
	delete(w.problems, about)
	w.mu.Unlock()
	w.notify()
}

func (w *Watch) notify() {
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}
