package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// +kubebuilder:rbac:groups="",resources=namespaces;nodes;pods,verbs=get;list,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=evacuations;nodemaintenances,verbs=list,roleName=capnm-plugin-workload-reader

const (
	parallelReads = 8
	// pageSize limits the size of one response.
	pageSize = 500
	// manyNamespaces is the number of Namespaces from which on all of them are listed in one request instead of one request for each.
	manyNamespaces = 20
	// maxNodes is the number of Nodes whose Pods are read for one prediction.
	maxNodes = 32
	// maxTurnNodes is the number of Nodes that are read for maxParallelDrains.
	maxTurnNodes = 100
)

// Workload is a workload cluster and what was read of it, each object once.
type Workload struct {
	*Cluster

	mu           sync.Mutex
	nodes        map[string]*corev1.Node // nil: does not exist
	allNodes     bool
	pods         map[string][]corev1.Pod // by Node
	maintenances []v1alpha1.NodeMaintenance
	evacuations  []v1alpha1.Evacuation

	maintenancesListed, evacuationsListed bool
	// maintenancesUnread means that the user may not list NodeMaintenances.
	maintenancesUnread bool
	// isOverridden means that the user has named the cluster, which may be another one than that of the Machine.
	isOverridden bool
	// namespace is read if the user may not read all Namespaces, see In. It is empty for commands that need all.
	namespace string

	namespaces map[string]map[string]string
	daemonSets map[types.UID]bool // exists
	budgets    map[string][]*policyv1.PodDisruptionBudget
	surges     map[types.NamespacedName]surge.Observation
	sets       map[types.NamespacedName]*appsv1.StatefulSet // nil: does not exist

	receivers     signals.Receivers
	receiversRead bool

	unscheduled map[string][]corev1.Pod // Pods without a Node, by Namespace

	volumes map[types.NamespacedName]*corev1.PersistentVolume // by claim
}

func newWorkload(c *Cluster) *Workload {
	return &Workload{
		Cluster: c, nodes: map[string]*corev1.Node{}, pods: map[string][]corev1.Pod{}, namespaces: map[string]map[string]string{},
		daemonSets: map[types.UID]bool{}, budgets: map[string][]*policyv1.PodDisruptionBudget{},
		surges: map[types.NamespacedName]surge.Observation{}, sets: map[types.NamespacedName]*appsv1.StatefulSet{},
		unscheduled: map[string][]corev1.Pod{}, volumes: map[types.NamespacedName]*corev1.PersistentVolume{},
	}
}

// In lets the reads of Pods and Evacuations fall back to one Namespace, where the user may not list them in all. The missing right is a
// gap.
func (w *Workload) In(namespace string) *Workload {
	w.namespace = namespace
	return w
}

// IsUnread reports whether the user may not read a Node, of which only the name is known then.
func IsUnread(node *corev1.Node) bool { return node.UID == "" }

// Selects reports whether a NodeMaintenance selects a Node. Where the Node was not read, its name or the status of the NodeMaintenance
// decides.
func Selects(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if !IsUnread(node) {
		return nodeselection.Selects(m, node)
	}
	names, byName := nodeselection.Names(m)
	return byName && slices.Contains(names, node.Name) || nodeselection.HasNodeStatus(m, node.Name)
}

// Node returns a Node, nil if it does not exist. If the user may not read it, that is a gap, and the Node has only its name: see IsUnread.
func (w *Workload) Node(ctx context.Context, name string) (*corev1.Node, error) {
	if node, known := w.nodes[name]; known || w.allNodes {
		return node, nil
	}
	node, err := w.readNode(ctx, name)
	if err == nil {
		w.nodes[name] = node
	}
	return node, err
}

// NodeOf returns the Node of a Machine, nil if it does not exist. With --workload-kubeconfig, a Node that does not exist, or that belongs
// to another Cluster, is an error: the file may be that of another Cluster.
func (w *Workload) NodeOf(ctx context.Context, m *Machine) (*corev1.Node, error) {
	node, err := w.Node(ctx, m.Status.NodeRef.Name)
	if err != nil || !w.isOverridden {
		return node, err
	}
	cluster, name := m.ClusterKey(), m.Status.NodeRef.Name
	if node == nil {
		return nil, errors.Errorf("Node %s does not exist in the cluster of --workload-kubeconfig: check that this is Cluster %s", name, cluster)
	}
	is := types.NamespacedName{Namespace: node.Annotations[clusterv1.ClusterNamespaceAnnotation], Name: node.Annotations[clusterv1.ClusterNameAnnotation]}
	if is.Name != "" && is != cluster {
		return nil, errors.Errorf("Node %s of --workload-kubeconfig belongs to Cluster %s, and the Machine to Cluster %s", name, is, cluster)
	}
	return node, nil
}

// SomeNodes returns the first 100 Nodes of those with the names, by name, nil for one that does not exist. It returns those that could be
// read.
func (w *Workload) SomeNodes(ctx context.Context, names []string) map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	_ = each(ctx, names[:min(len(names), maxTurnNodes)], func(ctx context.Context, name string) error {
		w.mu.Lock()
		node, known := w.nodes[name]
		w.mu.Unlock()
		if !known {
			var err error
			if node, err = w.readNode(ctx, name); err != nil {
				return nil // it is left out
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.nodes[name], nodes[name] = node, node
		return nil
	})
	return nodes
}

// readNode reads a Node, nil if it does not exist. It has only its name if the user may not read it.
func (w *Workload) readNode(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	exists, known, err := w.readOne(ctx, types.NamespacedName{Name: name}, node, "nodes")
	if known && !exists {
		return nil, nil
	}
	node.Name = name // nothing else is known of one that may not be read
	return node, err
}

// Nodes returns all Nodes, by name.
func (w *Workload) Nodes(ctx context.Context) ([]*corev1.Node, error) {
	if !w.allNodes {
		list := &corev1.NodeList{}
		if err := w.listAll(ctx, list, func() {
			for i := range list.Items {
				list.Items[i].Status.Images, list.Items[i].ManagedFields = nil, nil // most of a Node, and nothing reads them
				w.nodes[list.Items[i].Name] = list.Items[i].DeepCopy()
			}
		}); err != nil {
			return nil, errors.Wrapf(err, "listing the Nodes of %s", w.Name)
		}
		w.allNodes = true
	}
	nodes := slices.DeleteFunc(slices.Collect(maps.Values(w.nodes)), func(node *corev1.Node) bool { return node == nil })
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// Maintenances returns all NodeMaintenances and Evacuations. There are none if the cluster does not serve them yet.
func (w *Workload) Maintenances(ctx context.Context) ([]v1alpha1.NodeMaintenance, []v1alpha1.Evacuation, error) {
	if _, err := w.MaintenancesOnly(ctx); err != nil {
		return nil, nil, err
	}
	if w.evacuationsListed || !w.HasMaintenances {
		return w.maintenances, w.evacuations, nil
	}
	list, evacuations := &v1alpha1.EvacuationList{}, []v1alpha1.Evacuation(nil)
	_, err := w.tolerate(w.visible("evacuations.maintenance.cluster.x-k8s.io", func(in ...client.ListOption) error {
		return w.listAll(ctx, list, func() { evacuations = append(evacuations, list.Items...) }, in...)
	}), "list", "evacuations.maintenance.cluster.x-k8s.io")
	if w.evacuationsListed = err == nil; w.evacuationsListed {
		w.evacuations = evacuations
	}
	return w.maintenances, w.evacuations, errors.Wrapf(err, "listing the Evacuations of %s", w.Name)
}

// MaintenancesOnly returns all NodeMaintenances.
func (w *Workload) MaintenancesOnly(ctx context.Context) ([]v1alpha1.NodeMaintenance, error) {
	if w.maintenancesListed || !w.HasMaintenances {
		return w.maintenances, nil
	}
	list, maintenances := &v1alpha1.NodeMaintenanceList{}, []v1alpha1.NodeMaintenance(nil)
	err := w.listAll(ctx, list, func() { maintenances = append(maintenances, list.Items...) })
	read, err := w.tolerate(err, "list", "nodemaintenances.maintenance.cluster.x-k8s.io")
	w.maintenancesListed, w.maintenancesUnread = err == nil, !read
	if w.maintenancesListed {
		w.maintenances = maintenances
	}
	return w.maintenances, errors.Wrapf(err, "listing the NodeMaintenances of %s", w.Name)
}

// MaintenancesUnread reports whether the user may not list the NodeMaintenances, so that there may be others than those that Maintenances
// returns.
func (w *Workload) MaintenancesUnread() bool { return w.maintenancesUnread }

// Forecast reads what the forecast of the drain of a Node by a NodeMaintenance depends on. now is the time of the observation.
func (w *Workload) Forecast(ctx context.Context, maintenance *v1alpha1.NodeMaintenance, node *corev1.Node, now time.Time) (forecast.Observation, error) {
	o := forecast.Observation{Maintenance: maintenance, Node: node, Surroundings: w, Now: now, NodeAgent: true}
	maintenances, evacuations, err := w.Maintenances(ctx)
	if err != nil {
		return o, err
	}
	o.All, o.Evacuations = maintenances, evacuations
	if o.Nodes, err = w.selected(ctx, maintenance); err != nil {
		return o, err
	}
	if o.Others, err = w.drainsBeside(ctx, maintenance, o.Nodes, maintenances); err != nil {
		return o, err
	}
	nodes := forecast.NodesOf(o)
	if len(nodes) > maxNodes {
		w.gaps.Add(fmt.Sprintf("%d Nodes share NodeMaintenances with Node %s; the order among their Pods and the limit maxParallelNodes are not predicted",
			len(nodes), node.Name))
		o.Nodes, o.Others, nodes = nil, nil, []string{node.Name}
	}
	if err := w.readPods(ctx, nodes); err != nil {
		return o, err
	}
	for _, name := range nodes {
		o.Pods = append(o.Pods, w.pods[name]...)
	}
	if err := w.readSurroundings(ctx, o.Pods); err != nil {
		return o, err
	}
	if err := w.readSurges(ctx, forecast.DeploymentsOf(o)); err != nil {
		return o, err
	}
	if err := w.readSets(ctx, forecast.StatefulSetsOf(o)); err != nil {
		return o, err
	}
	o.Surges, o.Sets = w.surges, w.sets
	if o.Budgets, err = w.budgetsOf(ctx, w.pods[node.Name]); err != nil {
		return o, err
	}
	if o.Receivers, err = w.receiversFor(ctx, o); err != nil || o.Budgets == nil {
		return o, err
	}
	o.Unscheduled, err = w.readUnscheduled(ctx, forecast.WaitingNamespaces(o))
	return o, err
}

// readUnscheduled reads the Pods of Namespaces that have no Node, by a field selector.
func (w *Workload) readUnscheduled(ctx context.Context, namespaces []string) ([]corev1.Pod, error) {
	missing := slices.DeleteFunc(slices.Clone(namespaces), func(namespace string) bool { _, known := w.unscheduled[namespace]; return known })
	if err := each(ctx, missing, func(ctx context.Context, namespace string) error {
		list := &corev1.PodList{}
		read, err := w.tolerate(w.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": ""}, client.Limit(pageSize)), "list", "pods")
		if read {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.unscheduled[namespace] = list.Items
		}
		return errors.Wrapf(err, "listing the Pods of Namespace %s of %s that have no Node", namespace, w.Name)
	}); err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	for _, namespace := range namespaces {
		pods = append(pods, w.unscheduled[namespace]...)
	}
	return pods, nil
}

// drainsBeside returns the other NodeMaintenances in stage Drain that share Nodes with this one, directly or through others.
func (w *Workload) drainsBeside(ctx context.Context, maintenance *v1alpha1.NodeMaintenance, selected []*corev1.Node,
	all []v1alpha1.NodeMaintenance,
) ([]planinput.Drain, error) {
	var drains []planinput.Drain
	seen, known := sets.New(maintenance.Name), map[string]*corev1.Node{}
	for _, node := range selected {
		known[node.Name] = node
	}
	for found := true; found; {
		found = false
		for i := range all {
			m := &all[i]
			selects := func(node *corev1.Node) bool { return Selects(m, node) }
			if seen.Has(m.Name) || !m.Drains() || !slices.ContainsFunc(slices.Collect(maps.Values(known)), selects) {
				continue
			}
			nodes, err := w.selected(ctx, m)
			if err != nil {
				return nil, err
			}
			seen.Insert(m.Name)
			found = true
			drains = append(drains, planinput.Drain{Maintenance: m, Nodes: nodes})
			for _, selected := range nodes {
				known[selected.Name] = selected
			}
		}
	}
	return drains, nil
}

// selected returns the Nodes that a NodeMaintenance selects: those that its status lists, if it selects by label and the user may not list
// Nodes.
func (w *Workload) selected(ctx context.Context, m *v1alpha1.NodeMaintenance) ([]*corev1.Node, error) {
	selects := nodeselection.Of(m)
	names, byName := nodeselection.Names(m)
	if !byName || len(names) > maxNodes {
		all, err := w.Nodes(ctx)
		if read, err := w.tolerate(err, "list", "nodes"); read || err != nil {
			return slices.DeleteFunc(all, func(node *corev1.Node) bool { return !selects(node) }), err
		}
		names = nil
		for i := range m.Status.NodeStatuses[:min(len(m.Status.NodeStatuses), maxNodes+1)] {
			names = append(names, m.Status.NodeStatuses[i].NodeRef.Name)
		}
	}
	var nodes []*corev1.Node
	for _, name := range names {
		node, err := w.Node(ctx, name)
		if err != nil {
			return nil, err
		}
		if node != nil && Selects(m, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// readPods reads the Pods of Nodes, by a field selector.
func (w *Workload) readPods(ctx context.Context, nodes []string) error {
	missing := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { _, known := w.pods[node]; return known })
	return each(ctx, missing, func(ctx context.Context, node string) error {
		list := &corev1.PodList{}
		if err := w.visible("pods", func(in ...client.ListOption) error {
			return w.List(ctx, list, append(in, client.MatchingFields{"spec.nodeName": node})...)
		}); err != nil {
			return errors.Wrapf(err, "listing the Pods of Node %s of %s", node, w.Name)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pods[node] = list.Items
		return nil
	})
}

// readSurroundings reads the Namespaces and the DaemonSets of Pods.
func (w *Workload) readSurroundings(ctx context.Context, pods []corev1.Pod) error {
	namespaces, daemonSets := sets.New[string](), map[types.UID]types.NamespacedName{}
	for i := range pods {
		if _, known := w.namespaces[pods[i].Namespace]; !known {
			namespaces.Insert(pods[i].Namespace)
		}
		if owner := metav1.GetControllerOfNoCopy(&pods[i]); owner != nil && owner.Kind == "DaemonSet" {
			if _, known := w.daemonSets[owner.UID]; !known {
				daemonSets[owner.UID] = types.NamespacedName{Namespace: pods[i].Namespace, Name: owner.Name}
			}
		}
	}
	if err := w.readNamespaces(ctx, namespaces); err != nil {
		return err
	}
	return each(ctx, slices.Collect(maps.Keys(daemonSets)), func(ctx context.Context, uid types.UID) error {
		set := metadata(appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
		_, known, err := w.readOne(ctx, daemonSets[uid], set, "daemonsets.apps")
		if known {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.daemonSets[uid] = set.UID == uid
		}
		return err
	})
}

func (w *Workload) readNamespaces(ctx context.Context, names sets.Set[string]) error {
	kind := corev1.SchemeGroupVersion.WithKind("Namespace")
	if names.Len() > manyNamespaces {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind("NamespaceList"))
		_, err := w.tolerate(w.listAll(ctx, list, func() {
			for i := range list.Items {
				w.namespaces[list.Items[i].Name] = list.Items[i].Labels
			}
		}), "list", "namespaces")
		return errors.Wrapf(err, "listing the Namespaces of %s", w.Name)
	}
	return each(ctx, sets.List(names), func(ctx context.Context, name string) error {
		namespace := metadata(kind)
		exists, _, err := w.readOne(ctx, types.NamespacedName{Name: name}, namespace, "namespaces")
		if exists { // else it was deleted meanwhile, or may not be read: its labels are not known
			w.mu.Lock()
			defer w.mu.Unlock()
			w.namespaces[name] = namespace.Labels
		}
		return err
	})
}

// NamespaceLabels implements planinput.Surroundings.
func (w *Workload) NamespaceLabels(namespace string) (labels map[string]string, known bool) {
	labels, known = w.namespaces[namespace]
	return labels, known
}

// DaemonSetExists implements planinput.Surroundings.
func (w *Workload) DaemonSetExists(_, _ string, uid types.UID) (exists, known bool) {
	exists, known = w.daemonSets[uid]
	return exists, known
}

// each calls read for all keys, some of them in parallel.
func each[K any](ctx context.Context, keys []K, read func(context.Context, K) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	for _, key := range keys {
		group.Go(func() error { return read(ctx, key) })
	}
	return group.Wait()
}

// visible lists objects of all Namespaces. If the user may not, and In has named a Namespace, it lists those of that Namespace.
func (w *Workload) visible(resource string, list func(in ...client.ListOption) error) error {
	err := list()
	if !apierrors.IsForbidden(err) || w.namespace == "" {
		return err
	}
	if err := list(client.InNamespace(w.namespace)); err != nil {
		return err
	}
	w.gaps.Add(fmt.Sprintf("No right to list %s of all Namespaces in %s: only those of Namespace %s are considered", resource, w.Name, w.namespace))
	return nil
}

// listAll lists in pages and calls add for each.
func (c *Cluster) listAll(ctx context.Context, list client.ObjectList, add func(), options ...client.ListOption) error {
	for {
		if err := c.List(ctx, list, append(slices.Clone(options), client.Limit(pageSize), client.Continue(list.GetContinue()))...); err != nil {
			return err
		}
		add()
		if list.GetContinue() == "" {
			return nil
		}
	}
}

func metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}
