package machine

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// awaitPolicy sets until when the policy of a Machine may be replaced, so that no drain begins: no policy selects it, or another one than
// it has recorded. The times at which that was found are kept in memory: a restart makes the wait longer.
func (r *Reconciler) awaitPolicy(ctx context.Context, s *scope) error {
	remembered := r.memoryOf(s.machine)
	settles := func(since *time.Time, lasts bool) time.Time {
		if !lasts {
			*since = time.Time{}
			return time.Time{}
		}
		*since = cmp.Or(*since, s.now)
		return machinedrain.AwaitPolicy(*since, s.now)
	}
	isGone := s.unselected && machinedrain.HasHook(s.machine) // without the hook, no policy has selected it
	gone := settles(&remembered.policyGone, isGone)
	s.policySettles = cmp.Or(gone, settles(&remembered.otherPolicy, machinedrain.FollowsAnother(s.machine, s.policy)))
	remembered.isPolicyGone = remembered.isPolicyGone && isGone
	if !isGone || !gone.IsZero() || remembered.isPolicyGone {
		return nil
	}
	var err error
	if remembered.isPolicyGone, err = r.confirmPolicyGone(ctx, s, remembered.policyGone); err == nil && !remembered.isPolicyGone {
		s.policySettles = s.now.Add(observeRetry)
	}
	return err
}

// awaitsPolicy reports whether no policy selects the Machine, maybe for a moment only: its hook and its drain stay as they are.
func (s *scope) awaitsPolicy() bool { return s.unselected && !s.policySettles.IsZero() }

// confirmPolicyGone reports whether the API server confirms that no policy selects a Machine, as was found at a time: the watches may not
// have delivered yet that the policy was created again, or that the labels of the Cluster were restored, because the management cluster was
// not reachable meanwhile. It reports false while that is not known.
func (r *Reconciler) confirmPolicyGone(ctx context.Context, s *scope, since time.Time) (bool, error) {
	read := r.livePolicies.read(s.machine.Namespace, r.Clock.Now, func(read *policiesRead) error { return r.readPolicies(ctx, s.machine.Namespace, read) })
	switch {
	case read == nil, read.began.Before(since.Add(rules.GoneCounts - policiesShared)):
		return false, nil
	case lookup.NotServed(read.err), meta.IsNoMatchError(read.err): // without the CRD, there are no policies
		return true, nil
	case read.err != nil:
		return false, read.err
	}
	labels, found := read.clusterLabels[s.cluster.UID]
	if !found {
		return false, nil // the watch of Clusters delivers that
	}
	live, _ := r.Maintenances.PolicyFor(s.machine, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: labels}}, read.policies)
	return live == machinedrain.PolicySelection{}, nil
}

func (r *Reconciler) readPolicies(ctx context.Context, namespace string, read *policiesRead) error {
	policies, clusters := &v1alpha1.MachineDrainPolicyList{}, &metav1.PartialObjectMetadataList{}
	clusters.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("ClusterList"))
	if err := r.APIReader.List(ctx, policies, client.InNamespace(namespace)); err != nil {
		return errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s without the cache", namespace)
	}
	if err := r.APIReader.List(ctx, clusters, client.InNamespace(namespace)); err != nil {
		return errors.Wrapf(err, "listing the Clusters of namespace %s without the cache", namespace)
	}
	read.policies, read.clusterLabels = machinedrain.ParsePolicies(policies.Items), map[types.UID]map[string]string{}
	for i := range clusters.Items {
		read.clusterLabels[clusters.Items[i].UID] = clusters.Items[i].Labels
	}
	return nil
}

// policiesShared is for how long reconciliations share what one of them has read: all Machines of a namespace may lose their policy at
// once.
const policiesShared = time.Second

// policiesRead are the policies of a namespace and the labels of its Clusters as the API server had them.
type policiesRead struct {
	began, ended  time.Time // ended is zero during the request
	policies      machinedrain.Policies
	clusterLabels map[types.UID]map[string]string
	err           error
}

// livePolicies are the last reads, by namespace. The zero value is empty.
type livePolicies struct {
	mu    sync.Mutex
	reads map[string]*policiesRead
}

// read returns a read that ended less than policiesShared ago, and otherwise makes one. It returns nil, and does not wait, while another
// reconciliation makes one.
func (l *livePolicies) read(namespace string, now func() time.Time, list func(*policiesRead) error) *policiesRead {
	l.mu.Lock()
	began := now()
	maps.DeleteFunc(l.reads, func(_ string, each *policiesRead) bool {
		return !each.ended.IsZero() && began.Sub(each.ended) >= policiesShared
	})
	if present, found := l.reads[namespace]; found {
		defer l.mu.Unlock()
		if present.ended.IsZero() {
			return nil
		}
		return present
	}
	read := &policiesRead{began: began}
	if l.reads == nil {
		l.reads = map[string]*policiesRead{}
	}
	l.reads[namespace] = read
	l.mu.Unlock()
	defer func() { // also after a panic
		l.mu.Lock()
		read.ended = now()
		l.mu.Unlock()
	}()
	read.err = list(read)
	return read
}
