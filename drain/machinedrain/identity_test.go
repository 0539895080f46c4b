package machinedrain_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func anIdentity() machinedrain.Identity {
	return machinedrain.Identity{
		Cluster: types.NamespacedName{Namespace: "ns", Name: "c"},
		Machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "machine-uid"}},
		Node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}},
	}
}

// maintenanceOf is the NodeMaintenance that a manager creates.
func maintenanceOf(id machinedrain.Identity, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: id.Cluster, Machine: id.Machine, Node: id.Node})
	for _, change := range changes {
		change(m)
	}
	return m
}

func naming(key, value string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Annotations[key] = value }
}

func TestIdentityIs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.NodeMaintenance)
		want   bool
	}{
		{"M36: the one that a manager creates", func(*v1alpha1.NodeMaintenance) {}, true},
		{"M36: by whichever name", func(m *v1alpha1.NodeMaintenance) { m.Name = "other" }, true},
		{"M16: one that another management cluster created", naming(v1alpha1.OwnerManagementClusterAnnotation, "there"), true},
		{"M36: not one that names no management cluster", naming(v1alpha1.OwnerManagementClusterAnnotation, ""), false},
		{"M36: nor another Machine", naming(v1alpha1.OwnerMachineAnnotation, "ns/other"), false},
		{"M36: nor another Cluster", naming(v1alpha1.OwnerClusterAnnotation, "ns/other"), false},
		{"M36: nor one for another Node of the same name", naming(v1alpha1.NodeUIDAnnotation, "other"), false},
		{"M36: nor one without annotations", func(m *v1alpha1.NodeMaintenance) { m.Annotations = nil }, false},
		{"M36: nor one that selects another Node", func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes("other") }, false},
		{"M36: nor one that selects another Node, too", func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes("node", "other") }, false},
		{"M36: nor one that selects the Node only while it has a label", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions = []v1alpha1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := anIdentity().Is(maintenanceOf(anIdentity(), tc.change)); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestIdentityFind(t *testing.T) {
	id := anIdentity()
	first, second := id.Names()[0], id.Names()[1]
	ours := func(name string) *v1alpha1.NodeMaintenance {
		return maintenanceOf(id, func(m *v1alpha1.NodeMaintenance) { m.Name = name })
	}
	theirs := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("other")}}
	for _, tc := range []struct {
		name  string
		named map[string]*v1alpha1.NodeMaintenance
		found bool
		as    string
		taken []string
	}{
		{"M36: uses the first name when no NodeMaintenance exists", nil, false, first, nil},
		{"M36: it has the first name", map[string]*v1alpha1.NodeMaintenance{first: ours(first)}, true, first, nil},
		{"M36: the first name is taken: it gets the second", map[string]*v1alpha1.NodeMaintenance{first: theirs}, false, second, []string{first}},
		{"M36: it has the second name", map[string]*v1alpha1.NodeMaintenance{first: theirs, second: ours(second)}, true, second, []string{first}},
		{"M36: and keeps it when the first is free again", map[string]*v1alpha1.NodeMaintenance{second: ours(second)}, true, second, nil},
		{"M36: both are taken: there is no name left", map[string]*v1alpha1.NodeMaintenance{first: theirs, second: theirs}, false, "", []string{first, second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			found := id.Find(tc.named)
			g.Expect(found.Maintenance != nil).To(Equal(tc.found))
			g.Expect(found.Name).To(Equal(tc.as))
			g.Expect(found.Taken).To(Equal(tc.taken))
			for _, name := range tc.taken {
				g.Expect(found.TakenMessage()).To(ContainSubstring(name))
			}
			if len(tc.taken) == 0 {
				g.Expect(found.TakenMessage()).To(BeEmpty())
			}
		})
	}
	t.Run("M16: after clusterctl move it has a name that followed from another UID of the Machine", func(t *testing.T) {
		g := NewWithT(t)
		found := id.FindAmong([]v1alpha1.NodeMaintenance{*theirs, *ours("moved")}, id.Find(map[string]*v1alpha1.NodeMaintenance{first: theirs}))
		g.Expect(found.Maintenance).To(Equal(ours("moved")))
		g.Expect(found.Name).To(Equal("moved"))
	})
	t.Run("M36: the second name cannot be predicted without the UID of the Machine", func(t *testing.T) {
		other := anIdentity()
		other.Machine.UID = "other"
		g := NewWithT(t)
		g.Expect(other.Names()[0]).To(Equal(first))
		g.Expect(other.Names()[1]).NotTo(Equal(second))
	})
}
