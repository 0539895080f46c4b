package nodemaintenance

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
)

// withdraw withdraws from the Evacuations of a NodeMaintenance that completes, except those of Pods that another NodeMaintenance targets:
// all NodeMaintenances share one instigator finalizer. It does not wait for Evacuations that cannot be cancelled.
func (r *Reconciler) withdraw(ctx context.Context, s *scope) (bool, error) {
	wanted := sets.New[types.UID]()
	if others := planinput.ComponentWithout(s.maintenance.Name, s.drains(), s.now); len(others.Maintenances) > 0 {
		pods, observed, err := r.observePods(ctx, s, others)
		if err != nil || !observed {
			s.requeueBy(s.now.Add(unknownInterval)) // when the watch of Pods was restarted, only NodeMaintenances that drain are enqueued
			return false, err
		}
		decision := others.Decide(planned(pods), others.Turns(planned(pods)))
		wanted = decision.Targets.Union(decision.Kept)
	}
	return true, r.withdrawAll(ctx, s, s.nodes, wanted)
}

// withdrawFromDeletedNodes withdraws from the Evacuations of Pods on Nodes that no longer exist. Kubernetes deletes these Pods after a
// while.
func (r *Reconciler) withdrawFromDeletedNodes(ctx context.Context, s *scope) (bool, error) {
	names, _ := nodeselection.Names(s.maintenance)
	var deleted []*corev1.Node
	for _, name := range names {
		switch err := s.client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}); {
		case answers.DoesNotExist(err):
			deleted = append(deleted, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		case err != nil:
			return false, errors.Wrapf(err, "getting Node %s, which may be deleted", name)
		}
	}
	return true, errors.Wrap(r.withdrawAll(ctx, s, deleted, nil), "withdrawing from the Evacuations on deleted Nodes")
}

// withdrawAll withdraws from the Evacuations of the Pods of Nodes, except the wanted ones: from those in the cache, and from those that
// this reconciler has created and that the watch has not delivered yet. It withdraws in several Namespaces at the same time, because a
// webhook may hang for the Evacuations of some.
func (r *Reconciler) withdrawAll(ctx context.Context, s *scope, nodes []*corev1.Node, wanted sets.Set[types.UID]) error {
	withdrawals, err := r.withdrawals(ctx, s, nodes, wanted)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	var mu sync.Mutex // protects hanging
	hanging := sets.New[string]()
	for namespace, all := range withdrawals {
		group.Go(func() error {
			hangs, err := r.withdrawInOrder(ctx, s, all)
			if hangs {
				mu.Lock()
				defer mu.Unlock()
				hanging.Insert(namespace)
			}
			return err
		})
	}
	err = group.Wait()
	s.hanging = hanging.Union(s.hanging)
	return err //nolint:wrapcheck // withdrawInOrder wraps it
}

// withdrawal is an Evacuation that NodeMaintenances may have requested.
type withdrawal struct {
	*v1alpha1.Evacuation

	unobserved bool // it is not in the cache, and may not exist
}

// withdrawals returns the Evacuations of the Pods of Nodes from which withdrawAll withdraws, by Namespace, without those in Namespaces that
// hang.
func (r *Reconciler) withdrawals(ctx context.Context, s *scope, nodes []*corev1.Node, wanted sets.Set[types.UID]) (map[string][]withdrawal, error) {
	all := map[string][]withdrawal{}
	add := func(w withdrawal) {
		if !s.hanging.Has(w.Namespace) {
			all[w.Namespace] = append(all[w.Namespace], w)
		}
	}
	for _, node := range nodes {
		evacuations, err := evacuationsOn(ctx, s.client, node.Name)
		if err != nil {
			return nil, err
		}
		for i := range evacuations {
			pod := types.UID(evacuations[i].Spec.PodRef.UID)
			r.created.forget(s.request, pod)
			if !wanted.Has(pod) {
				add(withdrawal{Evacuation: &evacuations[i]})
			}
		}
		for _, sent := range r.created.unobserved(s.request, node.Name) {
			if pod := types.UID(sent.Spec.PodRef.UID); wanted.Has(pod) {
				r.created.forget(s.request, pod)
			} else {
				add(withdrawal{Evacuation: sent, unobserved: true})
			}
		}
	}
	return all, nil
}

// withdrawInOrder withdraws from Evacuations of one Namespace. After a request for which the Namespace hangs, it reports that and skips the
// others. It withdraws in the order of names, so that each attempt reports the same request, see reportedMessage.
func (r *Reconciler) withdrawInOrder(ctx context.Context, s *scope, all []withdrawal) (hangs bool, err error) {
	slices.SortFunc(all, func(a, b withdrawal) int { return cmp.Compare(a.Name, b.Name) })
	for _, w := range all {
		withdraw := r.withdrawUnwanted
		if w.unobserved {
			withdraw = r.withdrawUnobserved
		}
		if hangs, err = withdraw(ctx, s, w.Evacuation); err != nil || hangs {
			return hangs, err
		}
	}
	return false, nil
}

// withdrawUnobserved withdraws from an Evacuation that may exist and is not in the cache. Its record stays until that has succeeded, so
// that the next attempt finds it.
func (r *Reconciler) withdrawUnobserved(ctx context.Context, s *scope, sent *v1alpha1.Evacuation) (hangs bool, _ error) {
	live, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return false, err
	}
	e := &v1alpha1.Evacuation{}
	switch err := live.Get(ctx, client.ObjectKeyFromObject(sent), e); {
	case answers.IgnoreDoesNotExist(err) != nil:
		return false, errors.Wrapf(err, "getting Evacuation %s", klog.KObj(sent))
	case err == nil:
		if hangs, err := r.withdrawUnwanted(ctx, s, e); err != nil || s.refusals.has(withdrawing(e)) {
			return hangs, err
		}
	}
	r.created.forget(s.request, types.UID(sent.Spec.PodRef.UID))
	return false, nil
}

// withdrawUnwanted withdraws from an Evacuation for a NodeMaintenance that ends, or no longer selects the Node. A request that fails counts
// as a refusal. It reports whether the Namespace hangs, see isHanging, so that no other request may follow there.
func (r *Reconciler) withdrawUnwanted(ctx context.Context, s *scope, e *v1alpha1.Evacuation) (hangs bool, _ error) {
	if !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		return false, nil
	}
	began := r.Clock.Now()
	err := r.setInstigator(ctx, s, e, evacuation.Withdraw)
	if err == nil || workload.IsNotConnected(err) || workload.IsPaused(err) {
		return false, err
	}
	s.recordRefusal(ctx, withdrawing(e), err)
	return isHanging(err, r.Clock.Since(began)), nil
}

// hangTime is how long an internal error of the API server takes at least if an admission webhook has timed out. Most webhooks have a
// timeout of several seconds.
const hangTime = 2 * time.Second

// isHanging reports whether an admission webhook may hang for the Evacuations of a Namespace, so that each request takes as long as this
// one, which has failed: it got no answer, or the API server has waited for the webhook's own timeout. Other refusals do not count, so that
// an Evacuation that a webhook refuses does not delay the others.
func isHanging(err error, took time.Duration) bool {
	return !answers.IsAnswer(err) || apierrors.IsInternalError(err) && took >= hangTime
}

// withdrawFrom withdraws from an Evacuation during a drain. It also collects a conflict that lasts because another actor changes the
// finalizers without pause.
func (r *Reconciler) withdrawFrom(ctx context.Context, s *scope, e *v1alpha1.Evacuation) error {
	return s.collectRepeated(ctx, withdrawing(e), r.setInstigator(ctx, s, e, evacuation.Withdraw))
}

func withdrawing(e *v1alpha1.Evacuation) string {
	return "withdraw from Evacuation " + klog.KObj(e).String()
}
