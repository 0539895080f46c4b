package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/tenants"
)

type (
	tenant    = *tenants.Tenant
	objectKey = client.ObjectKey
)

// landingLabel is the value of tenants.Label on Nodes for the Pods of all tenants.
const landingLabel = "landing"

// group is the set of tenants that a phase drains.
func (c *crowd) group(phase int) []tenant {
	return c.tenants[phase*c.size.drained : (phase+1)*c.size.drained]
}

// lost returns the tenants behind a link that can be cut.
func (c *crowd) lost() []tenant {
	return c.tenants[2*c.size.drained : 2*c.size.drained+c.size.unreachable]
}

func (c *crowd) clientOf(t tenant) client.WithWatch { return c.Workloads[t.Host.Name()].Client }

// plainPods is the number of Pods without a budget on each Node that is drained for the count of their writes.
const plainPods = 17

// runPods fills each tenant's Node with the Pods of a Deployment, under a budget of one.
func (c *crowd) runPods(ctx context.Context, group []tenant) error {
	objects := func(t tenant) []client.Object {
		return []client.Object{deploymentOf(t, c.size.pods), budgetOf(t.Name, appName, 1)}
	}
	return c.runOnNodes(ctx, group, objects, func(ctx context.Context, t tenant) (bool, error) {
		budget := &policyv1.PodDisruptionBudget{}
		err := c.clientOf(t).Get(ctx, objectKey{Namespace: t.Name, Name: appName}, budget)
		return int(budget.Status.CurrentHealthy) == c.size.pods && budget.Status.DisruptionsAllowed == 1, errors.Wrap(err, "getting a budget")
	})
}

// runPlainPods fills each tenant's Node with plainPods Pods of a Deployment without a budget.
func (c *crowd) runPlainPods(ctx context.Context, group []tenant) error {
	objects := func(t tenant) []client.Object { return []client.Object{deploymentOf(t, plainPods)} }
	return c.runOnNodes(ctx, group, objects, func(ctx context.Context, t tenant) (bool, error) {
		deployment := &appsv1.Deployment{}
		err := c.clientOf(t).Get(ctx, objectKey{Namespace: t.Name, Name: appName}, deployment)
		return deployment.Status.ReadyReplicas == plainPods, errors.Wrap(err, "getting a Deployment")
	})
}

// runOnNodes creates objects of each tenant, and waits until their Pods run. Meanwhile the Nodes for drained Pods are unschedulable.
func (c *crowd) runOnNodes(ctx context.Context, group []tenant, objectsOf func(tenant) []client.Object,
	running func(context.Context, tenant) (bool, error),
) error {
	if err := c.setLandings(ctx, true); err != nil {
		return err
	}
	creations, createCtx := errgroup.WithContext(ctx)
	creations.SetLimit(parallelWrites)
	for _, t := range group {
		creations.Go(func() error {
			for _, object := range objectsOf(t) {
				if err := c.clientOf(t).Create(createCtx, object); err != nil {
					return errors.Wrapf(err, "creating the Pods of %s", t.Name)
				}
			}
			return nil
		})
	}
	if err := creations.Wait(); err != nil {
		return err
	}
	for _, t := range group {
		err := poll(ctx, "for the Pods of "+t.Name, func(ctx context.Context) (bool, error) { return running(ctx, t) })
		if err != nil {
			return err
		}
	}
	progress("the pods of %d nodes run", len(group))
	if err := c.setLandings(ctx, false); err != nil {
		return err
	}
	return pause(ctx, calm)
}

const appName = "web"

// deploymentOf returns a Deployment whose Pods run on the tenant's Node or on a landing Node.
func deploymentOf(t tenant, pods int) *appsv1.Deployment {
	where := corev1.NodeSelectorRequirement{Key: tenants.Label, Operator: corev1.NodeSelectorOpIn, Values: []string{t.Name, landingLabel}}
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{where},
		}}},
	}}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Name, Name: appName},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(pods)),
			Selector: &metav1.LabelSelector{MatchLabels: labelsOf(appName)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(appName)},
				Spec:       corev1.PodSpec{Affinity: affinity, Containers: []corev1.Container{{Name: appName, Image: "example.test/web"}}},
			},
		},
	}
}

func (c *crowd) setLandings(ctx context.Context, closed bool) error {
	for _, w := range c.Workloads {
		nodes := &corev1.NodeList{}
		if err := w.Client.List(ctx, nodes, client.MatchingLabels{tenants.Label: landingLabel}); err != nil {
			return errors.Wrap(err, "listing Nodes")
		}
		if err := setSchedulable(ctx, w.Client, nodes.Items, !closed); err != nil {
			return err
		}
	}
	return nil
}

func (c *crowd) watchRooms(ctx context.Context) ([]*roomWatch, error) {
	var all []*roomWatch
	for _, w := range c.Workloads {
		watch, err := watchRoom(ctx, w.Client)
		if err != nil {
			return nil, err
		}
		all = append(all, watch)
	}
	return all, nil
}

// drain deletes the Machines of two groups at once, and returns when all Machines of the first have been released.
func (c *crowd) drain(ctx context.Context, group, others []tenant) (released map[string]time.Time, started time.Time, err error) {
	var machines []objectKey
	for _, t := range slices.Concat(others, group) {
		machines = append(machines, objectKey{Namespace: t.Cluster.Key().Namespace, Name: t.Name})
	}
	waiting := sets.New[string]()
	for _, t := range group {
		waiting.Insert(t.Name)
	}
	taken, released, err := deleteAndAwait(ctx, c.Client, machines, waiting, &clusterv1.MachineList{}, isReleased)
	return released, taken.started, err
}

// awaitReleased waits until no Machine of a group has our hook.
func (c *crowd) awaitReleased(ctx context.Context, group []tenant) error {
	for _, t := range group {
		err := poll(ctx, "for the release of Machine "+t.Name, func(ctx context.Context) (bool, error) {
			machine := &clusterv1.Machine{}
			err := c.Client.Get(ctx, objectKey{Namespace: t.Cluster.Key().Namespace, Name: t.Name}, machine)
			return !machinedrain.HasHook(machine), errors.Wrapf(client.IgnoreNotFound(err), "getting Machine %s", t.Name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitCleanUp waits until the workload clusters have no NodeMaintenances and Evacuations.
func (c *crowd) awaitCleanUp(ctx context.Context) error {
	return poll(ctx, "for NodeMaintenances and Evacuations to be removed", func(ctx context.Context) (bool, error) {
		for _, w := range c.Workloads {
			clean, err := isClean(ctx, w.Client)
			if !clean || err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// movingTimeout limits the wait for the progress of drains.
const movingTimeout = 5 * time.Minute

// awaitEvictions waits for an eviction in each cluster of a group after the mark, and returns the first of each.
func (c *crowd) awaitEvictions(ctx context.Context, since marks, group []tenant) (map[string]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, movingTimeout)
	defer cancel()
	firsts := map[string]time.Time{}
	err := poll(ctx, "for an eviction in each cluster", func(ctx context.Context) (bool, error) {
		_, workloads, err := c.since(since)
		if err != nil {
			return false, err
		}
		for _, eviction := range workloads.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction").Succeeded() {
			if _, seen := firsts[eviction.Namespace]; !seen {
				firsts[eviction.Namespace] = eviction.Requested
			}
		}
		for _, t := range group {
			if firsts[t.Name].IsZero() {
				return false, pause(ctx, time.Second)
			}
		}
		return true, nil
	})
	return firsts, err
}

// tenantOf returns the tenant whose credentials a request used.
func tenantOf(e controlplane.Event) string { return strings.TrimPrefix(e.User, tenants.UserPrefix) }
