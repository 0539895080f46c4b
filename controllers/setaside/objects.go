// Package setaside sets aside objects that cannot be decoded, so that informers deliver the others. Without it, one such object makes each
// list of its kind fail and ends each watch. An object that is set aside is in no cache. For the client that Objects.Client returns, it is
// neither an object without a spec nor one that does not exist: Get returns an Error.
package setaside

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// EventReason on an object means that the manager has set it aside, because it cannot decode it.
const EventReason = "NotDecodable"

var undecodable = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "capnm_undecodable_objects",
	Help: "Objects that the manager has set aside, because it cannot decode them, by the Cluster that they are in and by kind. Objects of the management " +
		"cluster have no Cluster.",
}, []string{"cluster_namespace", "cluster", "kind"})

func init() { metrics.Registry.MustRegister(undecodable) }

// Error says that an object exists and cannot be decoded.
type Error struct {
	Kind   string
	Object types.NamespacedName
	Err    error

	resourceVersion string
}

// Error implements error.
func (e *Error) Error() string {
	name := e.Object.Name
	if e.Object.Namespace != "" {
		name = e.Object.String()
	}
	return e.Kind + " " + name + " cannot be decoded: " + text.Cut(e.Err.Error(), text.MaxMessage)
}

// Unwrap returns the error of the decoder.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether err means that an object exists and cannot be decoded.
func Is(err error) bool {
	var undecodable *Error
	return errors.As(err, &undecodable)
}

// Objects are the objects that the informers of one cache have set aside.
type Objects struct {
	cluster types.NamespacedName
	report  func(*metav1.PartialObjectMetadata, *Error)

	mu     sync.RWMutex
	byKind map[string]map[types.NamespacedName]*Error
	closed bool
}

// New returns the objects of a cache that the informers have set aside. cluster is empty for the management cluster. report is called for
// each object that is set aside, and when the error of the object changes; it must not block.
func New(cluster types.NamespacedName, report func(*metav1.PartialObjectMetadata, *Error)) *Objects {
	return &Objects{cluster: cluster, report: report, byKind: map[string]map[types.NamespacedName]*Error{}}
}

// Get returns why an object of a kind cannot be decoded. It returns nil for an object that does not exist or can be decoded.
func (o *Objects) Get(kind string, key types.NamespacedName) *Error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.byKind[kind][key]
}

// List returns the objects of a kind in a namespace, or in all namespaces, that cannot be decoded, sorted by name. A nil Objects has none.
func (o *Objects) List(kind, namespace string) []*Error {
	if o == nil {
		return nil
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := slices.Collect(maps.Values(o.byKind[kind]))
	all = slices.DeleteFunc(all, func(e *Error) bool { return namespace != "" && e.Object.Namespace != namespace })
	slices.SortFunc(all, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Object.Namespace, b.Object.Namespace), cmp.Compare(a.Object.Name, b.Object.Name))
	})
	return all
}

// Delivered records that a cache has delivered an object. If it is newer than the version that was set aside, it is no longer set aside:
// until then, the object would not exist for readers of the cache.
func (o *Objects) Delivered(kind string, object client.Object) {
	key := client.ObjectKeyFromObject(object)
	aside := o.Get(kind, key)
	if aside == nil {
		return
	}
	if order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), aside.resourceVersion); err == nil && order <= 0 {
		return
	}
	o.remove(kind, func(each types.NamespacedName) bool { return each == key })
}

// Close ends the metric of a cache that has ended, also if one of its informers is still listing.
func (o *Objects) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	undecodable.DeletePartialMatch(prometheus.Labels{"cluster_namespace": o.cluster.Namespace, "cluster": o.cluster.Name})
}

func (o *Objects) add(object *metav1.PartialObjectMetadata, err error) {
	kind, key := object.Kind, client.ObjectKeyFromObject(object)
	o.mu.Lock()
	if o.byKind[kind] == nil {
		o.byKind[kind] = map[types.NamespacedName]*Error{}
	}
	before, now := o.byKind[kind][key], &Error{Kind: kind, Object: key, Err: err, resourceVersion: object.ResourceVersion}
	o.byKind[kind][key] = now
	o.count(kind)
	o.mu.Unlock()
	if before == nil || before.Error() != now.Error() {
		o.report(object, now)
	}
}

// remove removes the matching objects of a kind.
func (o *Objects) remove(kind string, matches func(types.NamespacedName) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.byKind[kind], func(key types.NamespacedName, _ *Error) bool { return matches(key) })
	o.count(kind)
}

func (o *Objects) count(kind string) {
	if o.closed {
		return
	}
	if len(o.byKind[kind]) == 0 {
		undecodable.DeleteLabelValues(o.cluster.Namespace, o.cluster.Name, kind)
		return
	}
	undecodable.WithLabelValues(o.cluster.Namespace, o.cluster.Name, kind).Set(float64(len(o.byKind[kind])))
}

// Client returns a client for which objects that are set aside exist: Get returns an Error. cached reads from the cache.
func (o *Objects) Client(cached client.Client) client.Client { return &reading{cached, o} }

type reading struct {
	client.Client
	objects *Objects
}

// Get implements client.Reader.
func (r *reading) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := r.Client.Get(ctx, key, object, options...)
	if !apierrors.IsNotFound(err) {
		return err //nolint:wrapcheck // it is this client to its callers
	}
	if aside := r.objects.Get(kindOf(object, r.Scheme()), key); aside != nil {
		return aside
	}
	return err //nolint:wrapcheck // same
}

func kindOf(object runtime.Object, scheme *runtime.Scheme) string {
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return "" // the request has failed for the same reason
	}
	return gvk.Kind
}
