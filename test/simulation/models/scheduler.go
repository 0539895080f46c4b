package models

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cluster-api/controllers/noderefutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	drainvolumes "github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// scheduler binds Pods to Nodes. It prefers Nodes with few Pods of the same controller, and then Nodes with few Pods.
type scheduler struct{ random *rand.Rand }

func (s *scheduler) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	pods, nodes, err := podsAndNodes(ctx, c)
	if err != nil {
		return 0, err
	}
	load := map[string]int{}
	spread := map[types.UID]map[string]int{} // by controller and Node
	for _, pod := range pods {
		if !rules.Finished(pod) && pod.Spec.NodeName != "" {
			count(load, spread, pod, pod.Spec.NodeName)
		}
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || !isActive(pod) || len(pod.Spec.SchedulingGates) > 0 {
			continue
		}
		var suitable []*corev1.Node
		for _, node := range nodes {
			suits, err := s.suits(ctx, c, pod, node)
			if err != nil {
				return 0, err
			}
			if suits {
				suitable = append(suitable, node)
			}
		}
		if len(suitable) == 0 {
			failed = cmp.Or(failed, setStatus(ctx, c, pod, setUnschedulable))
			continue
		}
		s.random.Shuffle(len(suitable), func(i, j int) { suitable[i], suitable[j] = suitable[j], suitable[i] })
		peers := spread[controllerOf(pod)]
		chosen := slices.MinFunc(suitable, func(a, b *corev1.Node) int {
			return cmp.Or(peers[a.Name]-peers[b.Name], load[a.Name]-load[b.Name])
		})
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: chosen.Name},
		}
		err := client.IgnoreNotFound(c.SubResource("binding").Create(ctx, pod.DeepCopy(), binding))
		failed = cmp.Or(failed, errors.Wrapf(err, "binding Pod %s", pod.Name))
		count(load, spread, pod, chosen.Name)
	}
	return 0, failed
}

// count adds a Pod to the Pods of a Node.
func count(load map[string]int, spread map[types.UID]map[string]int, pod *corev1.Pod, node string) {
	load[node]++
	if owner := controllerOf(pod); owner != "" && pod.DeletionTimestamp == nil {
		if spread[owner] == nil {
			spread[owner] = map[string]int{}
		}
		spread[owner][node]++
	}
}

// controllerOf returns the UID of the controller of a Pod, or "".
func controllerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return owner.UID
	}
	return ""
}

// suits returns whether a Pod may run on a Node.
func (s *scheduler) suits(ctx context.Context, c client.Client, pod *corev1.Pod, node *corev1.Node) (bool, error) {
	if node.DeletionTimestamp != nil || !tolerates(pod, node, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute) {
		return false, nil
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !matches {
		return false, nil // an invalid affinity matches no Node
	}
	for _, claim := range drainvolumes.ClaimsOf(pod) {
		volume, err := volumeOf(ctx, c, claim)
		if err != nil {
			return false, err
		}
		if volume == nil || volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
			continue
		}
		if matches, err := corev1helpers.MatchNodeSelectorTerms(node, volume.Spec.NodeAffinity.Required); err != nil || !matches {
			return false, nil // an invalid affinity matches no Node
		}
	}
	return true, nil
}

// tolerates returns whether a Pod tolerates the taints of a Node with one of these effects, including the taints that a Node gets because
// it is cordoned or not ready.
func tolerates(pod *corev1.Pod, node *corev1.Node, effects ...corev1.TaintEffect) bool {
	taints := slices.Clone(node.Spec.Taints)
	if node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	if !noderefutil.IsNodeReady(node) {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return slices.Contains(effects, t.Effect)
	}, false)
	return !untolerated
}

func setUnschedulable(pod *corev1.Pod) {
	setPodCondition(pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no Nodes are available",
	})
}
