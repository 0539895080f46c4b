package rules_test

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Generators draw from few keys and values, so that matches and collisions are common.

func drawLabels() *rapid.Generator[labels] {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "cluster.x-k8s.io/drain", "app.kubernetes.io/name"}),
		rapid.SampledFrom([]string{"x", "y", "skip", "Wait-Completed", "capnm-node-agent", ""}), 0, 3)
}

func drawSelector() *rapid.Generator[*metav1.LabelSelector] {
	return rapid.Custom(func(t *rapid.T) *metav1.LabelSelector {
		switch rapid.IntRange(0, 6).Draw(t, "kind of selector") {
		case 0:
			return nil
		case 1:
			return all()
		case 2:
			return brokenSelector()
		case 3:
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key:      rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
				Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"Exists", "DoesNotExist"}).Draw(t, "operator"),
			}}}
		default:
			return matching(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value"))
		}
	})
}

func drawMDR() *rapid.Generator[clusterv1.MachineDrainRule] {
	return rapid.Custom(func(t *rapid.T) clusterv1.MachineDrainRule {
		behavior := rapid.SampledFrom([]clusterv1.MachineDrainRuleDrainBehavior{drain, skip, waitCompleted, "Shove"}).Draw(t, "behavior")
		r := mdr(rapid.StringMatching("[a-d]{1,2}").Draw(t, "name"), behavior)
		r.Namespace = rapid.SampledFrom([]string{namespace, namespace, namespace, "other"}).Draw(t, "namespace")
		if rapid.Bool().Draw(t, "has an order") {
			order(rapid.Int32().Draw(t, "order"))(&r)
		}
		for range rapid.IntRange(0, 2).Draw(t, "machine entries") {
			machines(drawSelector().Draw(t, "machines"), drawSelector().Draw(t, "clusters"))(&r)
		}
		for range rapid.IntRange(0, 2).Draw(t, "pod entries") {
			pods(drawSelector().Draw(t, "pods"), drawSelector().Draw(t, "namespaces"))(&r)
		}
		return r
	})
}

func drawRule() *rapid.Generator[v1alpha1.DrainRule] {
	return rapid.Custom(func(t *rapid.T) v1alpha1.DrainRule {
		r := v1alpha1.DrainRule{
			Name:     rapid.StringMatching("[a-z]{1,4}").Draw(t, "name"),
			Behavior: rapid.SampledFrom([]v1alpha1.DrainBehavior{"Drain", "Skip", "WaitCompleted", "Drain", "Shove"}).Draw(t, "behavior"),
			Order:    rapid.Ptr(rapid.Int32(), true).Draw(t, "order"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			r.Pods = append(r.Pods, v1alpha1.DrainRulePodSelector{
				PodType:           rapid.SampledFrom([]v1alpha1.PodType{"", "", "Default", "DaemonSet", "Static", "Odd"}).Draw(t, "podType"),
				DrainLabel:        rapid.SampledFrom([]v1alpha1.DrainBehavior{"", "", "", "Skip", "WaitCompleted", "Drain"}).Draw(t, "drainLabel"),
				Selector:          drawSelector().Draw(t, "selector"),
				NamespaceSelector: drawSelector().Draw(t, "namespaceSelector"),
			})
		}
		return r
	})
}

func drawPod() *rapid.Generator[rules.Pod] {
	return rapid.Custom(func(t *rapid.T) rules.Pod {
		p := rules.Pod{
			Namespace: "default", Name: "p",
			Labels:          drawLabels().Draw(t, "labels"),
			NamespaceLabels: drawLabels().Draw(t, "namespace labels"),
			NamespaceKnown:  rapid.Bool().Draw(t, "namespace known"),
			Type:            rapid.SampledFrom([]v1alpha1.PodType{"Default", "DaemonSet", "Static"}).Draw(t, "type"),
			TypeKnown:       rapid.Bool().Draw(t, "type known"),
			Finished:        rapid.Bool().Draw(t, "finished"),
		}
		if !p.TypeKnown {
			p.Type = v1alpha1.PodTypeDaemonSet // as PodTypeOf has it
		}
		return p
	})
}
