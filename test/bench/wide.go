package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// wideLoad combines what is large: the Nodes of one NodeMaintenance, the Machines that are deleted meanwhile, the Namespaces, and the
// Evacuations that wait for budgets. Costs that are a product of two of them show here, and in no other scenario.
var wideLoad = load{nodes: 500, podsPerNode: 12, drained: 500, apps: 12, landings: 10, readyDelay: time.Second, deletionDelay: time.Second}

const (
	// wideNamespaces is the default of -namespaces.
	wideNamespaces = 2000
	// wideParallelNodes is the maxParallelNodes of the NodeMaintenance, which is decided with the Pods of all Nodes.
	wideParallelNodes = 10
	// wideRest is how long the manager is observed while all Evacuations wait.
	wideRest = 30 * time.Second
)

func measureWide(ctx context.Context, a *arena, f *figures, o options) error {
	namespaces := cmp.Or(o.namespaces, wideNamespaces)
	t, err := a.reset(ctx)
	if err != nil {
		return err
	}
	if err := a.widen(ctx, namespaces); err != nil {
		return err
	}
	if err := a.manage(ctx, t.nodes); err != nil {
		return err
	}
	f.add("nodes", len(t.nodes), "selected by one NodeMaintenance; their Machines are deleted at once")
	f.add("pods", len(t.pods), "on them")
	f.add("namespaces", namespaces, "")
	if err := a.measureRequests(ctx, f, t); err != nil {
		return err
	}
	return a.measureWideRestart(ctx, f)
}

// widen creates the Namespaces, budgets that allow no disruption, and the NodeMaintenance.
func (a *arena) widen(ctx context.Context, namespaces int) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelWrites)
	for i := range namespaces {
		group.Go(func() error {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("wide-%04d", i)}}
			return errors.Wrap(a.workload.Client.Create(groupCtx, namespace), "creating a Namespace")
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, app := range a.load.appNames() {
		if err := a.workload.Client.Create(ctx, budgetOf(appNamespace, app, a.load.maxUnavailable)); err != nil {
			return errors.Wrap(err, "creating a budget")
		}
	}
	pool := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: v1alpha1.NodeMaintenanceSpec{
		Stage: v1alpha1.StageDrain, Reason: "benchmark", MaxParallelNodes: ptr.To(intstr.FromInt32(wideParallelNodes)),
	}}
	pool.Spec.NodeSelector.NodeSelectorTerms = []v1alpha1.NodeSelectorTerm{{ // the Nodes for evicted Pods have no zone
		MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpExists}},
	}}
	return errors.Wrap(a.workload.Client.Create(ctx, pool), "creating the NodeMaintenance of all Nodes")
}

// measureRequests deletes the Machines and waits until each Pod has an Evacuation.
func (a *arena) measureRequests(ctx context.Context, f *figures, t target) error {
	ours := programOf(a.Manager)
	before, err := ours.cpu()
	if err != nil {
		return err
	}
	peak, began := ours.watchPeak(ctx), time.Now()
	progress("deleting the Machines")
	if err := deleteAll(ctx, a.Client, a.keysOf(t.nodes)); err != nil {
		return err
	}
	reported := time.Now()
	err = poll(ctx, "for an Evacuation of each Pod", func(ctx context.Context) (bool, error) {
		evacuations := &metav1.PartialObjectMetadataList{}
		evacuations.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("EvacuationList"))
		if err := a.workload.Client.List(ctx, evacuations); err != nil {
			return false, errors.Wrap(err, "listing Evacuations")
		}
		if time.Since(reported) > 20*time.Second {
			reported = time.Now()
			progress("%d of %d Evacuations", len(evacuations.Items), len(t.pods))
		}
		return len(evacuations.Items) >= len(t.pods), pause(ctx, time.Second)
	})
	if err != nil {
		return err
	}
	f.add("seconds_until_requested", time.Since(began).Seconds(), "from the deletion of the Machines until each Pod has an Evacuation")
	requested, err := ours.cpu()
	if err != nil {
		return err
	}
	f.add("cpu_seconds_until_requested", (requested - before).Seconds(), "of our manager")
	if err := pause(ctx, wideRest); err != nil {
		return err
	}
	rested, err := ours.cpu()
	if err != nil {
		return err
	}
	f.add("cpu_at_rest", (rested-requested).Seconds()/wideRest.Seconds(), "CPUs of our manager while all Evacuations wait")
	f.add("peak_rss_mb", peak.stop(), "of our manager")
	return nil
}

// measureWideRestart kills our manager, has the budgets allow disruptions, and starts it again.
func (a *arena) measureWideRestart(ctx context.Context, f *figures) error {
	a.KillManager()
	for _, app := range a.load.appNames() {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: appNamespace, Name: app}}
		open := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"maxUnavailable":"100%"}}`))
		if err := a.workload.Client.Patch(ctx, budget, open); err != nil {
			return errors.Wrap(err, "changing a budget")
		}
	}
	mark, err := a.workload.Audit().Mark()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := a.StartManager(ctx); err != nil {
		return err
	}
	ours := programOf(a.Manager)
	peak := ours.watchPeak(ctx)
	var evictions controlplane.Events
	err = poll(ctx, "for an eviction after the restart", func(ctx context.Context) (bool, error) {
		events, err := a.workload.Audit().Since(mark)
		if err != nil {
			return false, err
		}
		evictions = events.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction")
		return len(evictions) > 0, pause(ctx, time.Second)
	})
	if err != nil {
		return err
	}
	metrics, err := fleet.Scrape(ctx, ours.metrics)
	if err != nil {
		return err
	}
	used, err := ours.cpu()
	if err != nil {
		return err
	}
	f.add("seconds_until_first_eviction", evictions[0].Requested.Sub(began).Seconds(), "after a restart")
	f.add("enqueued_evacuations", int(metrics.Sum("workqueue_adds_total", map[string]string{"name": "evacuation"})), "until then; merged requests count once")
	f.add("cpu_seconds_after_restart", used.Seconds(), "until then")
	f.add("peak_rss_mb_after_restart", peak.stop(), "")
	a.KillManager() // a drain of this size does not end within the grace period of a stop
	return nil
}
