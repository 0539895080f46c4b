package main

import (
	"context"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const (
	// landingPrefix is the name prefix of Nodes for the Pods of drained Nodes.
	landingPrefix = "landing-"
	// resetAttempts limits how often Pods are recreated after an uneven spread.
	resetAttempts = 3
	// parallelWrites is the number of concurrent writes of this program.
	parallelWrites = 20
)

// reset restores the initial state of a run: all Nodes exist and are schedulable, the Pods are new and exactly evenly spread, and no
// budget has disrupted Pods. It returns the next target.
func (a *arena) reset(ctx context.Context) (target, error) {
	if err := a.addMachines(ctx); err != nil {
		return target{}, err
	}
	for attempt := 1; ; attempt++ {
		if err := a.recreate(ctx); err != nil {
			return target{}, err
		}
		if err := pause(ctx, calm); err != nil {
			return target{}, err
		}
		byNode, err := a.podsByNode(ctx)
		if err != nil {
			return target{}, err
		}
		if a.isEven(byNode) {
			return a.next(ctx, byNode)
		}
		if attempt == resetAttempts {
			return target{}, errors.Errorf("the Pods are not spread evenly after %d attempts", attempt)
		}
		progress("the Pods are not spread evenly; retrying")
	}
}

// recreate replaces all Pods.
func (a *arena) recreate(ctx context.Context) error {
	if err := a.setLandings(ctx, false); err != nil {
		return err
	}
	if err := a.removePods(ctx); err != nil {
		return err
	}
	if err := a.uncordon(ctx); err != nil {
		return err
	}
	for _, app := range a.load.appNames() {
		if err := a.workload.Client.Create(ctx, a.load.deployment(app)); err != nil {
			return errors.Wrap(err, "creating a Deployment")
		}
	}
	if err := poll(ctx, "for all Pods to be ready and all budgets to allow disruptions", a.isRestored); err != nil {
		return err
	}
	return a.setLandings(ctx, true)
}

func (a *arena) removePods(ctx context.Context) error {
	c := a.workload.Client
	err := c.DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(appNamespace), client.HasLabels{appLabel},
		client.PropagationPolicy(metav1.DeletePropagationForeground))
	if err != nil {
		return errors.Wrap(err, "deleting the Deployments")
	}
	return poll(ctx, "for the Pods to be deleted", func(ctx context.Context) (bool, error) {
		deployments, pods := &appsv1.DeploymentList{}, &corev1.PodList{}
		for _, list := range []client.ObjectList{deployments, pods} {
			if err := c.List(ctx, list, client.InNamespace(appNamespace), client.HasLabels{appLabel}, client.Limit(1)); err != nil {
				return false, errors.Wrap(err, "listing what is left")
			}
		}
		return len(deployments.Items)+len(pods.Items) == 0, nil
	})
}

func (a *arena) isRestored(ctx context.Context) (bool, error) {
	deployments := &appsv1.DeploymentList{}
	if err := a.workload.Client.List(ctx, deployments, client.InNamespace(appNamespace), client.HasLabels{appLabel}); err != nil {
		return false, errors.Wrap(err, "listing the Deployments")
	}
	ready := 0
	for i := range deployments.Items {
		ready += int(deployments.Items[i].Status.ReadyReplicas)
	}
	if ready != a.load.pods() {
		return false, nil
	}
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := a.workload.Client.List(ctx, budgets, client.InNamespace(appNamespace)); err != nil {
		return false, errors.Wrap(err, "listing the budgets")
	}
	for i := range budgets.Items {
		s := budgets.Items[i].Status
		if int(s.ExpectedPods) != a.load.podsPerApp() || int(s.CurrentHealthy) != a.load.podsPerApp() ||
			int(s.DisruptionsAllowed) != min(a.load.maxUnavailable, a.load.podsPerApp()) || len(s.DisruptedPods) > 0 {
			return false, nil
		}
	}
	return a.isAttached(ctx)
}

// uncordon makes all Nodes with Pods schedulable, and waits until none has a taint: another controller removes the taint of a cordoned Node
// later.
func (a *arena) uncordon(ctx context.Context) error {
	return poll(ctx, "for all nodes to be schedulable", func(ctx context.Context) (bool, error) {
		nodes := &corev1.NodeList{}
		if err := a.workload.Client.List(ctx, nodes, client.HasLabels{controlplane.KubeletLabel}); err != nil {
			return false, errors.Wrap(err, "listing Nodes")
		}
		nodes.Items = slices.DeleteFunc(nodes.Items, func(node corev1.Node) bool { return isLanding(node.Name) })
		ready := len(nodes.Items) == a.load.nodes
		for i := range nodes.Items {
			ready = ready && !nodes.Items[i].Spec.Unschedulable && len(nodes.Items[i].Spec.Taints) == 0
		}
		return ready, setSchedulable(ctx, a.workload.Client, nodes.Items, true)
	})
}

func isLanding(node string) bool { return strings.HasPrefix(node, landingPrefix) }

// setLandings sets whether the Nodes for drained Pods are schedulable. They are not while Pods are spread.
func (a *arena) setLandings(ctx context.Context, open bool) error {
	nodes := &corev1.NodeList{}
	if err := a.workload.Client.List(ctx, nodes); err != nil {
		return errors.Wrap(err, "listing Nodes")
	}
	return setSchedulable(ctx, a.workload.Client, slices.DeleteFunc(nodes.Items, func(node corev1.Node) bool { return !isLanding(node.Name) }), open)
}

func setSchedulable(ctx context.Context, c client.Client, nodes []corev1.Node, schedulable bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelWrites)
	for i := range nodes {
		if nodes[i].Spec.Unschedulable != schedulable {
			continue
		}
		group.Go(func() error {
			changed := nodes[i].DeepCopy()
			changed.Spec.Unschedulable = !schedulable
			return errors.Wrapf(c.Patch(ctx, changed, client.MergeFrom(&nodes[i])), "changing Node %s", changed.Name)
		})
	}
	return group.Wait()
}

func (a *arena) podsByNode(ctx context.Context) (map[string][]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := a.workload.Client.List(ctx, pods, client.InNamespace(appNamespace), client.HasLabels{appLabel}); err != nil {
		return nil, errors.Wrap(err, "listing pods")
	}
	byNode := map[string][]corev1.Pod{}
	for i := range pods.Items {
		node := pods.Items[i].Spec.NodeName
		byNode[node] = append(byNode[node], pods.Items[i])
	}
	return byNode, nil
}

func (a *arena) isEven(byNode map[string][]corev1.Pod) bool {
	for _, pods := range byNode {
		perApp := map[string]int{}
		for i := range pods {
			perApp[pods[i].Labels[appLabel]]++
		}
		for _, count := range perApp {
			if count != a.load.podsPerNode/a.load.apps {
				return false
			}
		}
		if len(pods) != a.load.podsPerNode {
			return false
		}
	}
	return len(byNode) == a.load.nodes
}

// next returns the Nodes of the oldest Machines, so that Nodes are drained in turn as far as their Machines survive.
func (a *arena) next(ctx context.Context, byNode map[string][]corev1.Pod) (target, error) {
	machines := &clusterv1.MachineList{}
	if err := a.Client.List(ctx, machines, client.InNamespace(a.namespace())); err != nil {
		return target{}, errors.Wrap(err, "listing Machines")
	}
	var t target
	for i := range machines.Items {
		t.nodes = append(t.nodes, machines.Items[i].Name)
	}
	slices.Sort(t.nodes)
	t.nodes = t.nodes[:min(a.load.drained, len(t.nodes))]
	for _, node := range t.nodes {
		t.pods = append(t.pods, byNode[node]...)
	}
	return t, nil
}
