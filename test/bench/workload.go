package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const appName = "web"

var (
	appNamespace = metav1.NamespaceDefault
	appLabels    = map[string]string{"app": appName}
	appKey       = client.ObjectKey{Namespace: appNamespace, Name: appName}
)

// deployment prefers the emptiest node for each pod. With nodes that are alike, that spreads the pods exactly evenly. A
// constraint that forbids an uneven spread would also keep replacements of evicted pods waiting, for the moments until a
// cordoned node has its taint.
func (a *arena) deployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: appNamespace, Name: appName, Labels: appLabels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(a.load.pods())),
			Selector: &metav1.LabelSelector{MatchLabels: appLabels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: appLabels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: appName, Image: "example.test/web"}},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: appLabels},
					}},
				},
			},
		},
	}
}

func (a *arena) createBudget(ctx context.Context) error {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: appNamespace, Name: appName},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt(a.load.maxUnavailable)),
			Selector:       &metav1.LabelSelector{MatchLabels: appLabels},
		},
	}
	return errors.Wrap(a.workload.Client.Create(ctx, budget), "creating the budget")
}

// resetAttempts bounds how often an uneven spread is tried again.
const resetAttempts = 3

// reset brings the arena to the state in which each run begins: all nodes there and schedulable, the pods new and exactly
// evenly spread, the whole budget free. It returns the node that comes next.
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
			node, err := a.nextNode(ctx)
			return target{node: node, pods: byNode[node]}, err
		}
		if attempt == resetAttempts {
			return target{}, errors.Errorf("the pods aren't spread evenly after %d attempts", attempt)
		}
		progress("the pods aren't spread evenly, once more")
	}
}

func (a *arena) recreate(ctx context.Context) error {
	c := a.workload.Client
	if err := c.Delete(ctx, a.deployment(), client.PropagationPolicy(metav1.DeletePropagationForeground)); client.IgnoreNotFound(err) != nil {
		return errors.Wrap(err, "deleting the Deployment")
	}
	err := poll(ctx, "for the pods to be gone", func(ctx context.Context) (bool, error) {
		pods := &corev1.PodList{}
		if err := c.List(ctx, pods, client.InNamespace(appNamespace), client.MatchingLabels(appLabels), client.Limit(1)); err != nil || len(pods.Items) > 0 {
			return false, errors.Wrap(err, "listing pods")
		}
		err := c.Get(ctx, appKey, &appsv1.Deployment{})
		return err != nil && client.IgnoreNotFound(err) == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return err
	}
	if err := a.uncordon(ctx); err != nil {
		return err
	}
	if err := c.Create(ctx, a.deployment()); err != nil {
		return errors.Wrap(err, "creating the Deployment")
	}
	return poll(ctx, "for all pods to be ready and the whole budget to be free", func(ctx context.Context) (bool, error) {
		budget := &policyv1.PodDisruptionBudget{}
		if err := c.Get(ctx, appKey, budget); err != nil {
			return false, errors.Wrap(err, "getting the budget")
		}
		s := budget.Status
		return int(s.ExpectedPods) == a.load.pods() && int(s.CurrentHealthy) == a.load.pods() &&
			int(s.DisruptionsAllowed) == a.load.maxUnavailable && len(s.DisruptedPods) == 0, nil
	})
}

// uncordon makes all nodes schedulable, and waits until none has a taint: the taint of a cordoned one is taken off by a
// controller of its own, after the fact.
func (a *arena) uncordon(ctx context.Context) error {
	return poll(ctx, "for all nodes to be schedulable", func(ctx context.Context) (bool, error) {
		nodes := &corev1.NodeList{}
		if err := a.workload.Client.List(ctx, nodes); err != nil {
			return false, errors.Wrap(err, "listing Nodes")
		}
		ready := len(nodes.Items) == a.load.nodes
		for i := range nodes.Items {
			node := &nodes.Items[i]
			ready = ready && !node.Spec.Unschedulable && len(node.Spec.Taints) == 0
			if !node.Spec.Unschedulable {
				continue
			}
			changed := node.DeepCopy()
			changed.Spec.Unschedulable = false
			if err := a.workload.Client.Patch(ctx, changed, client.MergeFrom(node)); err != nil {
				return false, errors.Wrapf(err, "uncordoning Node %s", node.Name)
			}
		}
		return ready, nil
	})
}

func (a *arena) podsByNode(ctx context.Context) (map[string][]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := a.workload.Client.List(ctx, pods, client.InNamespace(appNamespace), client.MatchingLabels(appLabels)); err != nil {
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
		if len(pods) != a.load.podsPerNode {
			return false
		}
	}
	return len(byNode) == a.load.nodes
}

// nextNode is that of the Machine that has been there longest, so that nodes take turns as far as their Machines survive.
func (a *arena) nextNode(ctx context.Context) (string, error) {
	machines := &clusterv1.MachineList{}
	if err := a.Client.List(ctx, machines, client.InNamespace(a.cluster.Key().Namespace)); err != nil {
		return "", errors.Wrap(err, "listing Machines")
	}
	first := ""
	for i := range machines.Items {
		if name := machines.Items[i].Name; first == "" || name < first {
			first = name
		}
	}
	return first, nil
}

// writeKubeconfig writes a kubeconfig for an administrator of that name.
func (a *arena) writeKubeconfig(user string) (string, error) {
	content, err := a.workload.KubeconfigFor(user, systemMasters)
	if err != nil {
		return "", err
	}
	file := filepath.Join(a.workload.Dir(), user+".kubeconfig")
	return file, errors.Wrap(os.WriteFile(file, content, 0o600), "writing a kubeconfig")
}
