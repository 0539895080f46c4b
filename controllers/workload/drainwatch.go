package workload

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// drainWatch observes one workload cluster while something is evacuated there: the Pods of the Nodes concerned, one
// field-selected watch for each Node as its kubelet has, all PodDisruptionBudgets, and the metadata of Namespaces and
// DaemonSets that rules match. Its informers reconnect automatically.
type drainWatch struct {
	cluster types.NamespacedName
	client  kubernetes.Interface
	notify  func(Change)
	clock   clock.PassiveClock
	ctx     context.Context //nolint:containedctx // the life of the informers, which start at any time
	stop    context.CancelFunc

	budgets, namespaces, daemonSets cache.SharedIndexInformer
	absences                        *absences // of DaemonSets
	observedBudgets                 *observedBudgets
	unserved                        atomic.Bool // the API server does not serve PodDisruptionBudgets of policy/v1

	failures Failures[string] // by what cannot be listed or watched, see listedPods

	mu       sync.RWMutex
	nodes    map[string]*nodePods
	needs    map[string]sets.Set[string] // the Nodes that an owner needs
	neededBy map[string]sets.Set[string] // the owners that need a Node
	byUID    map[types.UID]*corev1.Pod
	settled  sets.Set[string]     // Nodes whose first list of Pods has arrived
	waiting  map[types.UID]string // see SetWaiting

	attachments *attachmentWatch // nil while no owner waits for volumes
}

type nodePods struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	known    sets.Set[types.UID] // those of the Pods in byUID
}

// newDrainWatch starts a drain watch. earlier are the budgets of the watch that it replaces, or nil.
func newDrainWatch(cluster types.NamespacedName, config *rest.Config, notify func(Change), now clock.PassiveClock,
	earlier *observedBudgets,
) (*drainWatch, error) {
	config = rest.CopyConfig(config)
	config.Timeout = informerTimeout // the ClusterCache's timeout would end each watch after 10 s
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrapf(err, "creating a client for drain watches in Cluster %s", cluster)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrapf(err, "creating a metadata client for drain watches in Cluster %s", cluster)
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &drainWatch{
		cluster: cluster, client: client, notify: notify, clock: now, ctx: ctx, stop: stop, observedBudgets: newObservedBudgets(earlier, now),
		nodes: map[string]*nodePods{}, needs: map[string]sets.Set[string]{}, neededBy: map[string]sets.Set[string]{}, byUID: map[types.UID]*corev1.Pod{},
		settled: sets.New[string](),
	}
	w.absences = newAbsences(ctx, daemonSetReader(metadataClient), func() { w.notify(Change{Cluster: w.cluster, Type: AllPodsAffected}) })
	pdbs := cache.NewListWatchFromClient(client.PolicyV1().RESTClient(), "poddisruptionbudgets", "", fields.Everything())
	w.budgets = cache.NewSharedIndexInformer(w.recordFailures(listedBudgets, pdbs), &policyv1.PodDisruptionBudget{}, 0, cache.Indexers{})
	if err := w.budgets.SetWatchErrorHandlerWithContext(w.budgetsFailed); err != nil {
		stop()
		return nil, errors.Wrapf(err, "preparing drain watches in Cluster %s", cluster)
	}
	w.namespaces = w.metadataInformer(listedNamespaces, metadataClient, corev1.SchemeGroupVersion.WithResource("namespaces"))
	w.daemonSets = w.metadataInformer(listedDaemonSets, metadataClient, appsv1.SchemeGroupVersion.WithResource("daemonsets"))
	if err := w.startShared(); err != nil {
		stop()
		return nil, err
	}
	return w, nil
}

func (w *drainWatch) startShared() error {
	budgetEvent := func(record func(*policyv1.PodDisruptionBudget)) func(any) {
		return func(object any) {
			if budget, ok := finalState(object).(*policyv1.PodDisruptionBudget); ok {
				record(budget)
				w.notify(Change{Cluster: w.cluster, Type: BudgetChanged, Budget: budget})
			}
		}
	}
	surroundingsChanged := func(any) { w.notify(Change{Cluster: w.cluster, Type: AllPodsAffected}) }
	budgetChanged, budgetDeleted := budgetEvent(w.observedBudgets.changed), budgetEvent(w.observedBudgets.deleted)
	for _, each := range []sharedWatch{
		{w.budgets, trimBudget, budgetChanged, budgetChanged, budgetDeleted, func(any, any) bool { return true }},
		{w.namespaces, trimNamespace, func(any) {}, surroundingsChanged, surroundingsChanged, labelsChanged},
		{w.daemonSets, trimDaemonSet, func(any) {}, surroundingsChanged, surroundingsChanged, identityChanged},
	} {
		registration, err := each.addHandler()
		if err != nil {
			return errors.Wrapf(err, "preparing drain watches in Cluster %s", w.cluster)
		}
		go each.informer.RunWithContext(w.ctx)
		go func() {
			if cache.WaitFor(w.ctx, "", registration.HasSyncedChecker()) {
				if each.informer == w.budgets {
					w.observedBudgets.listComplete()
				}
				surroundingsChanged(nil)
			}
		}()
	}
	return nil
}

// sharedWatch is a watch that all Nodes share.
type sharedWatch struct {
	informer cache.SharedIndexInformer
	trim     cache.TransformFunc
	// listed is called for each object of the first list, changed and deleted for each later change. When the list has arrived, all decisions
	// are affected in any case.
	listed, changed, deleted func(any)
	// affects reports whether an update of an object affects decisions. Tenants may update objects at any rate, and each change that affects
	// decisions reconciles all that is evacuated in the workload cluster.
	affects func(before, after any) bool
}

func (s sharedWatch) addHandler() (cache.ResourceEventHandlerRegistration, error) {
	if err := s.informer.SetTransform(s.trim); err != nil {
		return nil, err //nolint:wrapcheck // the caller adds the context
	}
	return s.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{ //nolint:wrapcheck // same
		AddFunc: func(object any, isInInitialList bool) {
			if isInInitialList {
				s.listed(object)
			} else {
				s.changed(object)
			}
		},
		UpdateFunc: func(before, after any) {
			if s.affects(before, after) {
				s.changed(after)
			}
		},
		DeleteFunc: s.deleted,
	})
}

// labelsChanged reports whether the labels of a Namespace have changed. Drain rules select Namespaces by them.
func labelsChanged(before, after any) bool {
	a, isA := before.(*metav1.PartialObjectMetadata)
	b, isB := after.(*metav1.PartialObjectMetadata)
	return !isA || !isB || !maps.Equal(a.Labels, b.Labels)
}

// identityChanged reports whether an object was recreated with the same name. The first list after an interruption of a watch delivers that
// as an update.
func identityChanged(before, after any) bool {
	a, isA := before.(metav1.Object)
	b, isB := after.(metav1.Object)
	return !isA || !isB || a.GetUID() != b.GetUID()
}

// trimNamespace drops the fields of Namespaces that no decision needs.
var trimNamespace = trimming(func(m *metav1.PartialObjectMetadata) {
	m.ObjectMeta = metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels}
})

// trimBudget drops the fields of PodDisruptionBudgets that no decision needs: tenants write them.
var trimBudget = trimming(func(b *policyv1.PodDisruptionBudget) {
	b.ObjectMeta = metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion, Generation: b.Generation}
	b.Status.Conditions = slices.DeleteFunc(b.Status.Conditions, func(c metav1.Condition) bool { return c.Type != policyv1.DisruptionAllowedCondition })
	for i := range b.Status.Conditions {
		b.Status.Conditions[i].Message = text.Cut(b.Status.Conditions[i].Message, text.MaxMessage)
	}
})

// trimDaemonSet drops the fields of DaemonSets that no decision needs: tenants write them.
var trimDaemonSet = trimming(func(m *metav1.PartialObjectMetadata) {
	m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
})

// budgetsFailed records that the API server does not serve PodDisruptionBudgets. The informer retries, because the API server may be
// upgraded.
func (w *drainWatch) budgetsFailed(ctx context.Context, reflector *cache.Reflector, err error) {
	if !answers.NotServed(err) {
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
		return
	}
	if !w.unserved.Swap(true) {
		w.notify(Change{Cluster: w.cluster, Type: AllPodsAffected})
	}
}

// observe sets the Nodes that owner needs. It stops the watches of Nodes that no owner needs any more.
func (w *drainWatch) observe(owner string, nodes []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, now := w.needs[owner], sets.New(nodes...)
	for node := range now.Difference(before) {
		if err := w.startNode(node); err != nil {
			return err
		}
		if w.neededBy[node] == nil {
			w.neededBy[node] = sets.New[string]()
		}
		w.neededBy[node].Insert(owner)
	}
	w.releaseNodes(owner, before.Difference(now))
	w.needs[owner] = now
	return nil
}

// isObservedFor reports whether the watches that owner needs are those of these Nodes, and run.
func (w *drainWatch) isObservedFor(owner string, nodes []string) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	needs, known := w.needs[owner]
	return known && needs.Equal(sets.New(nodes...))
}

// needsRelease reports whether release changes something: owner needs watches, or there is no owner.
func (w *drainWatch) needsRelease(owner string) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	_, known := w.needs[owner]
	return known || len(w.needs) == 0
}

// release removes an owner. idle reports whether there is no other.
func (w *drainWatch) release(owner string) (idle bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.releaseNodes(owner, w.needs[owner])
	w.releaseAttachments(owner)
	delete(w.needs, owner)
	return len(w.needs) == 0
}

func (w *drainWatch) releaseNodes(owner string, nodes sets.Set[string]) {
	for node := range nodes {
		w.neededBy[node].Delete(owner)
		if w.neededBy[node].Len() == 0 {
			delete(w.neededBy, node)
			w.stopNode(node)
		}
	}
}

func (w *drainWatch) watches(node string) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.nodes[node] != nil
}

func (w *drainWatch) startNode(node string) error {
	if _, started := w.nodes[node]; started {
		return nil
	}
	selector := fields.OneTermEqualSelector("spec.nodeName", node)
	pods := cache.NewListWatchFromClient(w.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, selector)
	informer := cache.NewSharedIndexInformer(w.recordFailures(listedPods(node), pods), &corev1.Pod{}, 0, cache.Indexers{})
	if err := informer.SetTransform(TrimPod); err != nil {
		return errors.Wrapf(err, "preparing the watch of the Pods on Node %s", node)
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { w.podChanged(PodChanged, node, informer, object) },
		UpdateFunc: func(before, after any) {
			if identityChanged(before, after) {
				w.podChanged(PodDeleted, node, informer, before)
			}
			w.podChanged(PodChanged, node, informer, after)
		},
		DeleteFunc: func(object any) { w.podChanged(PodDeleted, node, informer, object) },
	})
	if err != nil {
		return errors.Wrapf(err, "preparing the watch of the Pods on Node %s", node)
	}
	ctx, stop := context.WithCancel(w.ctx)
	w.nodes[node] = &nodePods{informer: informer, stop: stop, known: sets.New[types.UID]()}
	go informer.RunWithContext(ctx)
	go func() {
		if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
			return
		}
		w.mu.Lock()
		if w.nodes[node] != nil && w.nodes[node].informer == informer {
			w.settled.Insert(node)
		}
		w.mu.Unlock()
		w.notify(Change{Cluster: w.cluster, Type: PodsListed, Node: node})
		w.volumesChanged(node)
	}()
	return nil
}

func (w *drainWatch) stopNode(node string) {
	pods := w.nodes[node]
	if pods == nil {
		return
	}
	pods.stop()
	delete(w.nodes, node)
	w.forgetFailures(listedPods(node))
	w.settled.Delete(node)
	for uid := range pods.known {
		delete(w.byUID, uid)
	}
}

// stopNodes stops the watches of all Nodes. Their Pods are unknown then, and late events do not change that.
func (w *drainWatch) stopNodes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range w.nodes {
		w.stopNode(node)
	}
}

// forgetPods makes the Pods of all Nodes unknown, because the watches may have missed changes. They stay unknown until the drain watch is
// restarted, apart from those that the watches deliver.
func (w *drainWatch) forgetPods() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.settled)
	clear(w.byUID)
	for _, pods := range w.nodes {
		clear(pods.known)
	}
}

func (w *drainWatch) podChanged(change ChangeType, node string, of cache.SharedIndexInformer, object any) {
	pod, ok := finalState(object).(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	pods := w.nodes[node]
	if pods == nil || pods.informer != of { // a late event of a watch that has been stopped
		w.mu.Unlock()
		return
	}
	if before := w.byUID[pod.UID]; before != nil && !maps.Equal(before.Labels, pod.Labels) { // before the new labels can be read
		w.observedBudgets.labelsChanged(budgets.PodOf(before), budgets.PodOf(pod))
	}
	if change == PodDeleted {
		delete(w.byUID, pod.UID)
		pods.known.Delete(pod.UID)
	} else {
		w.byUID[pod.UID] = pod
		pods.known.Insert(pod.UID)
	}
	w.mu.Unlock()
	w.notify(Change{Cluster: w.cluster, Type: change, Node: node, Pod: pod})
	w.volumesChanged(node)
}

// finalState returns the last known state of an object whose deletion an informer has missed.
func finalState(object any) any {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return object
}

// PodsOn implements Observation.
func (w *drainWatch) PodsOn(node string) ([]*corev1.Pod, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !w.settled.Has(node) {
		return nil, false
	}
	var pods []*corev1.Pod
	for _, object := range w.nodes[node].informer.GetStore().List() {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods, true
}

// PodByUID implements Observation.
func (w *drainWatch) PodByUID(uid types.UID) (*corev1.Pod, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	pod, found := w.byUID[uid]
	return pod, found
}

// Budgets implements Observation.
func (w *drainWatch) Budgets() ([]*budgets.Budget, bool) {
	return w.observedBudgets.list()
}

// LossOf implements Observation.
func (w *drainWatch) LossOf(pod budgets.Pod) (budgets.Loss, bool) {
	return w.observedBudgets.lossOf(pod)
}

// BudgetsServed implements Observation.
func (w *drainWatch) BudgetsServed() bool { return w.budgets.HasSynced() || !w.unserved.Load() }

// NamespaceLabels implements Observation.
func (w *drainWatch) NamespaceLabels(namespace string) (map[string]string, bool) {
	object, found, err := w.namespaces.GetStore().GetByKey(namespace)
	if err != nil || !found {
		return nil, false
	}
	metadata, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, false
	}
	return metadata.Labels, true
}

// DaemonSetExists implements Observation.
func (w *drainWatch) DaemonSetExists(namespace, name string, uid types.UID) (exists, known bool) {
	if !w.daemonSets.HasSynced() {
		return false, false
	}
	object, found, err := w.daemonSets.GetStore().GetByKey(namespace + "/" + name)
	if err != nil {
		return false, false
	}
	if metadata, ok := object.(*metav1.PartialObjectMetadata); found && ok && metadata.UID == uid {
		return true, true
	}
	return false, w.absences.has(types.NamespacedName{Namespace: namespace, Name: name}, uid)
}

// metadataInformer watches the metadata of all objects of a resource.
func (w *drainWatch) metadataInformer(what string, client metadata.Interface, resource schema.GroupVersionResource) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(w.recordFailures(what, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(resource).List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(resource).Watch(ctx, options)
		},
	}), &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
}
