package evacuation_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestBecause(t *testing.T) {
	draining := func(name, reason string) *v1alpha1.NodeMaintenance {
		m := &v1alpha1.NodeMaintenance{}
		m.Name, m.Spec.Reason = name, reason
		return m
	}
	a, b := draining("a", "Kernel update"), draining("b", "")
	for _, test := range []struct {
		name        string
		instigators []string
		draining    []*v1alpha1.NodeMaintenance
		want        string
	}{
		{"E33: names the NodeMaintenance and its reason", []string{ours}, []*v1alpha1.NodeMaintenance{a}, "NodeMaintenance a drains Node one (Kernel update)"},
		{"E33: a NodeMaintenance without a reason", []string{ours}, []*v1alpha1.NodeMaintenance{b}, "NodeMaintenance b drains Node one"},
		{
			"E33: names three of several NodeMaintenances", []string{ours, theirs}, []*v1alpha1.NodeMaintenance{a, b, b, b, b},
			"NodeMaintenance a drains Node one (Kernel update); NodeMaintenance b drains Node one; NodeMaintenance b drains Node one; 2 more",
		},
		{
			"E33: a long reason is cut", []string{ours}, []*v1alpha1.NodeMaintenance{draining("a", strings.Repeat("é", 1000))},
			"NodeMaintenance a drains Node one (" + strings.Repeat("é", 199) + "…)",
		},
		{"E33: an Evacuation of another instigator names the instigator", []string{theirs}, []*v1alpha1.NodeMaintenance{a}, "requested by " + theirs},
		{"E33: names the instigator when the drain has ended meanwhile", []string{ours}, nil, "requested by " + ours},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := &v1alpha1.Evacuation{}
			e.Finalizers = test.instigators
			if got := evacuation.Because(e, "one", test.draining); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestDraining(t *testing.T) {
	t.Run("E33: returns the NodeMaintenances for which the Pod may be evacuated", func(t *testing.T) {
		named := func(name string, change func(*v1alpha1.NodeMaintenance), nodes ...string) v1alpha1.NodeMaintenance {
			m := drain(change, nodes...)
			m.Name = name
			return m
		}
		all := []v1alpha1.NodeMaintenance{
			named("a", unlimited, "one"), named("elsewhere", unlimited, "two"), named("completed", completed, "one"), named("cordoning", cordoning, "one"),
			named("skipping", skipping, "one"), named("of-paused", unlimited, "one"), named("b", unlimited, "one", "two"),
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
		var got []string
		for _, m := range evacuation.DrainersOf(all, isOfPaused).On(node).Draining(rules.Pod{Type: v1alpha1.PodTypeDefault, TypeKnown: true, NamespaceKnown: true}) {
			got = append(got, m.Name)
		}
		if !slices.Equal(got, []string{"a", "b"}) {
			t.Error(got)
		}
	})
}
