package observe

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=watch,roleName=capnm-plugin-management-reader
// +kubebuilder:rbac:groups="",resources=pods,verbs=watch,roleName=capnm-plugin-workload-reader
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
	workloads map[types.NamespacedName]*followed // nil until the cluster is connected
	details   map[types.NamespacedName]*details  // nil unless they are followed
	problems  map[string]problem                 // by the name of the cluster
}

// problem is why a cluster cannot be read.
type problem struct {
	text string
	last time.Time
}

// followed is a cluster whose objects are watched.
type followed struct {
	ctrlcache.Cache
	synced []toolscache.InformerSynced
	stop   context.CancelFunc // nil: it ends with the Watch
}

// NewWatch returns a Watch until the context is done. machines restricts which Machines it follows, if the context is that of a management
// cluster.
func NewWatch(ctx context.Context, c *Connections, machines ctrlcache.ByObject) (*Watch, error) {
	w := &Watch{
		Changed: make(chan struct{}, 1), connections: c,
		workloads: map[types.NamespacedName]*followed{}, problems: map[string]problem{},
	}
	w.notify()
	if !c.Current.HasMachines {
		return w, nil
	}
	var err error
	w.machines, err = w.follow(ctx, c.Current, ctrlcache.Options{ByObject: map[client.Object]ctrlcache.ByObject{&clusterv1.Machine{}: machines}}, &clusterv1.Machine{})
	return w, err
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
	workload, known := w.workloads[cluster]
	if !known {
		w.workloads[cluster] = nil
		go w.connect(ctx, cluster)
	}
	w.mu.Unlock()
	maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
	w.read(ctx, workload, maintenances)
	w.read(ctx, workload, evacuations)
	slices.SortFunc(maintenances.Items, func(a, b v1alpha1.NodeMaintenance) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(evacuations.Items, func(a, b v1alpha1.Evacuation) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Spec.PodRef.Name, b.Spec.PodRef.Name), cmp.Compare(a.Name, b.Name))
	})
	return maintenances.Items, evacuations.Items
}

// Problems returns why something cannot be read at the moment.
func (w *Watch) Problems() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var texts []string
	for _, each := range w.problems {
		if time.Since(each.last) < problemAge {
			texts = append(texts, each.text)
		}
	}
	slices.Sort(texts)
	return texts
}

// connect follows a workload cluster, and retries until that succeeds.
func (w *Watch) connect(ctx context.Context, cluster types.NamespacedName) {
	retry := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 6, Cap: problemAge / 2}
	_ = retry.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		workload, details, err := w.connectOnce(ctx, cluster)
		if err != nil {
			w.report(cluster.String(), err)
			return false, nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.workloads[cluster] = workload
		if details != nil {
			w.details[cluster] = details
		}
		delete(w.problems, cluster.String())
		return true, nil
	})
}

func (w *Watch) connectOnce(ctx context.Context, cluster types.NamespacedName) (_ *followed, _ *details, _ error) {
	connected := w.connections.Current
	if cluster.Name != "" {
		var err error
		if connected, err = w.connections.connectWorkload(ctx, cluster); err != nil {
			return nil, nil, err
		}
	}
	if !connected.HasMaintenances {
		return nil, nil, errors.Errorf("%s does not serve NodeMaintenances", connected.Name)
	}
	workload, err := w.follow(ctx, connected, ctrlcache.Options{}, &v1alpha1.NodeMaintenance{}, &v1alpha1.Evacuation{})
	if err != nil || w.details == nil {
		return workload, nil, err
	}
	details, err := w.followDetails(ctx, connected)
	return workload, details, err
}

// follow watches the objects of some kinds in a cluster.
func (w *Watch) follow(ctx context.Context, c *Cluster, options ctrlcache.Options, kinds ...client.Object) (*followed, error) {
	options.Scheme, options.Mapper = c.Scheme(), c.RESTMapper()
	options.DefaultTransform = ctrlcache.TransformStripManagedFields()
	// What is listed is only read.
	options.DefaultUnsafeDisableDeepCopy = ptr.To(true)
	options.DefaultWatchErrorHandler = func(_ context.Context, _ *toolscache.Reflector, err error) {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			w.report(c.Name, errors.Wrap(err, c.Name))
		}
	}
	watches, err := ctrlcache.New(c.Config, options)
	if err != nil {
		return nil, errors.Wrapf(err, "preparing to watch %s", c.Name)
	}
	f := &followed{Cache: watches}
	for _, kind := range kinds {
		informer, err := watches.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return nil, errors.Wrapf(err, "watching %T in %s", kind, c.Name)
		}
		changed := func() { w.restored(c.Name) }
		handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		})
		if err != nil {
			return nil, errors.Wrapf(err, "watching %T in %s", kind, c.Name)
		}
		f.synced = append(f.synced, handler.HasSynced)
	}
	go func() {
		_ = watches.Start(ctx)
	}()
	go func() { // an empty list causes no event
		toolscache.WaitForCacheSync(ctx.Done(), f.synced...)
		w.notify()
	}()
	return f, nil
}

// read lists what has been observed. Nothing is listed before the first list is complete.
func (w *Watch) read(ctx context.Context, f *followed, list client.ObjectList) {
	if f == nil || !f.isSynced() {
		return
	}
	if err := f.List(ctx, list); err != nil {
		w.report("", err)
	}
}

func (f *followed) isSynced() bool {
	return !slices.ContainsFunc(f.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// IsSynced reports whether the Machines are listed, and the NodeMaintenances of the workload clusters that were asked for.
func (w *Watch) IsSynced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, workload := range w.workloads {
		if workload == nil || !workload.isSynced() {
			return false
		}
	}
	return w.machines == nil || w.machines.isSynced()
}

func (w *Watch) report(cluster string, err error) {
	w.mu.Lock()
	w.problems[cluster] = problem{err.Error(), time.Now()}
	w.mu.Unlock()
	w.notify()
	time.AfterFunc(problemAge, w.notify)
}

// restored forgets the problem of a cluster that has sent an event.
func (w *Watch) restored(cluster string) {
	w.mu.Lock()
	delete(w.problems, cluster)
	w.mu.Unlock()
	w.notify()
}

func (w *Watch) notify() {
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}
