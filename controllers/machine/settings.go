package machine

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

const (
	policyKind = "MachineDrainPolicy"
	ruleKind   = "MachineDrainRule"
)

// setting names a MachineDrainPolicy or MachineDrainRule of a namespace.
type setting struct{ kind, name string }

// version identifies the spec of an object.
type version struct {
	uid        types.UID
	generation int64
}

// settings are the MachineDrainPolicies and MachineDrainRules of a namespace.
type settings map[setting]version

// clusterLabels are the labels of a Cluster. It is the zero value if the Cluster does not exist.
type clusterLabels struct {
	uid    types.UID
	labels map[string]string
}

// confirmSettings waits before a drain begins until the cache has the policies and rules that the API server has, see
// areSettingsDelivered. A rule that protects Pods may have been created just before the Machine was deleted, or in an outage of the
// management cluster. If the API server cannot be asked, the Machine continues to wait: no drain timeout limits that, as in confirmTurn.
func (r *Reconciler) confirmSettings(ctx context.Context, s *scope) outcome {
	delivered, _, err := r.areSettingsDelivered(ctx, s)
	failure := s.before.unasked.Next(err, s.now)
	r.memoryOf(s.machine).unasked = failure
	if delivered {
		return outcome{}
	}
	s.blind = true // a block that is known does not end
	waiting := outcome{action: wait, reason: v1alpha1.ReasonMachineDraining, message: machinedrain.WaitingForSettings, at: s.now.Add(observeRetry)}
	if err != nil {
		waiting.reason, waiting.message = "", "" // a transient error does not replace the condition
		ctrl.LoggerFrom(ctx).Error(err, "Failed to confirm the drain rules of the Machine. Its drain does not begin")
	}
	if failure.Persists(s.now) {
		waiting.reason, waiting.message, waiting.at = v1alpha1.ReasonReconcileFailed, machinedrain.FailureMessage(err), s.now.Add(contactRetry)
	}
	return waiting
}

// areSettingsDelivered reports whether this reconciliation decides by the policies and rules of the Machine's namespace, and the labels of
// its Cluster, that the API server had at a time: less than settingsShared before, if it answers at once. What the watches deliver during
// the request does not count: the reconciliation has read the cache before.
func (r *Reconciler) areSettingsDelivered(ctx context.Context, s *scope) (delivered bool, asOf time.Time, err error) {
	namespace := s.machine.Namespace
	stored, asOf, err := r.settings.read(ctx, types.NamespacedName{Namespace: namespace}, r.Clock.Now, func(ctx context.Context) (settings, error) {
		return r.storedSettings(ctx, namespace)
	})
	if err != nil {
		return false, asOf, err
	}
	if delivered, err = r.areLabelsDelivered(ctx, s); err != nil || !delivered {
		return false, asOf, err
	}
	return maps.Equal(stored, s.settings), asOf, nil
}

// areLabelsDelivered reports whether the watch has delivered the labels of the Machine's Cluster that the API server had a moment ago.
func (r *Reconciler) areLabelsDelivered(ctx context.Context, s *scope) (bool, error) {
	stored, _, err := r.clusterLabels.read(ctx, s.clusterKey(), r.Clock.Now, func(ctx context.Context) (clusterLabels, error) {
		live, err := r.liveCluster(ctx, s)
		if err != nil || live == nil {
			return clusterLabels{}, err
		}
		return clusterLabels{live.UID, live.Labels}, nil
	})
	return err == nil && stored.uid == s.cluster.UID && maps.Equal(stored.labels, s.cluster.Labels), err
}

// awaitsLabels reports whether a Machine has the hook although its Cluster has not the label of the filter, and the API server has not
// confirmed that: the watch of Clusters may lag after an outage of the management cluster.
func (r *Reconciler) awaitsLabels(ctx context.Context, s *scope) bool {
	if r.Filter.Selects(s.cluster) || !machinedrain.HasHook(s.machine) {
		return false
	}
	delivered, err := r.areLabelsDelivered(ctx, s)
	r.observeConfirmation(ctx, s, delivered, err)
	return !delivered
}

// storedSettings returns the settings that the API server has. Those that are known not to be decodable are left out: they hold a drain for
// another reason. Without the CRD of policies, there are none.
func (r *Reconciler) storedSettings(ctx context.Context, namespace string) (settings, error) {
	stored := settings{}
	for _, kind := range []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind(policyKind), clusterv1.GroupVersion.WithKind(ruleKind)} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := r.APIReader.List(ctx, list, client.InNamespace(namespace))
		if kind.Kind == policyKind && (answers.NotServed(err) || meta.IsNoMatchError(err)) {
			continue
		}
		if err != nil {
			return nil, errors.Wrapf(err, "listing each %s of namespace %s without the cache", kind.Kind, namespace)
		}
		for i := range list.Items {
			stored[setting{kind.Kind, list.Items[i].Name}] = version{list.Items[i].UID, list.Items[i].Generation}
		}
		for _, unread := range r.Maintenances.Unread.List(kind.Kind, namespace) {
			delete(stored, setting{kind.Kind, unread.Object.Name})
		}
	}
	return stored, nil
}

// observedSettings returns the settings that the cache has.
func (r *Reconciler) observedSettings(ctx context.Context, namespace string) (settings, error) {
	observed := settings{}
	for kind, list := range map[string]client.ObjectList{policyKind: &v1alpha1.MachineDrainPolicyList{}, ruleKind: &clusterv1.MachineDrainRuleList{}} {
		if err := r.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, errors.Wrapf(err, "listing each %s of namespace %s", kind, namespace)
		}
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object) //nolint:forcetypeassert // of one of the two kinds
			observed[setting{kind, object.GetName()}] = version{object.GetUID(), object.GetGeneration()}
			return nil
		})
	}
	return observed, nil
}

// settingsShared is for how long reconciliations share what one of them has read without the cache: hundreds of Machines may be deleted, or
// lose their policy, at once.
const settingsShared = time.Second

// sharedTimeout limits a request whose result is shared. All workers that need it wait for it.
const sharedTimeout = 5 * time.Second

// shared keeps what was read a moment ago, by namespace or Cluster. The zero value is empty.
type shared[V any] struct {
	mu    sync.Mutex
	reads map[types.NamespacedName]*sharedRead[V]
}

type sharedRead[V any] struct {
	began, ended time.Time     // ended is zero during the request
	done         chan struct{} // is closed then
	value        V
	err          error
}

// read returns what was read less than settingsShared ago, or is being read, and otherwise reads it, in sharedTimeout at most. asOf is when
// the request was sent.
func (c *shared[V]) read(
	ctx context.Context, key types.NamespacedName, now func() time.Time, get func(context.Context) (V, error),
) (value V, asOf time.Time, _ error) {
	c.mu.Lock()
	began := now()
	maps.DeleteFunc(c.reads, func(_ types.NamespacedName, each *sharedRead[V]) bool {
		return !each.ended.IsZero() && began.Sub(each.ended) >= settingsShared
	})
	read, found := c.reads[key]
	if !found {
		if c.reads == nil {
			c.reads = map[types.NamespacedName]*sharedRead[V]{}
		}
		read = &sharedRead[V]{began: began, done: make(chan struct{}), err: errors.New("the request that others wait for has panicked")}
		c.reads[key] = read
	}
	c.mu.Unlock()
	if found {
		select {
		case <-read.done:
			return read.value, read.began, read.err
		case <-ctx.Done():
			return value, began, errors.Wrap(ctx.Err(), "waiting for the request of another reconciliation")
		}
	}
	defer func() { // also after a panic
		c.mu.Lock()
		read.ended = now()
		c.mu.Unlock()
		close(read.done)
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, sharedTimeout, errors.Errorf("no answer for %s", sharedTimeout))
	defer cancel()
	read.value, read.err = get(ctx)
	return read.value, read.began, read.err
}
