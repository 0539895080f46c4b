package chaos

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// TestInvariantsOfEvacuations has histories in which a NodeMaintenance of a user ends.
func TestInvariantsOfEvacuations(t *testing.T) {
	of := func(name, node string) func(*v1alpha1.NodeMaintenance) {
		return func(m *v1alpha1.NodeMaintenance) {
			m.Name, m.Annotations, m.Spec.NodeSelector = name, nil, v1alpha1.SelectNodes(node)
		}
	}
	evacuate := func(s *story, node string, finalizers ...string) {
		s.store(&s.Workload, evacuationKeys+"default/a", &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "a", Finalizers: finalizers, Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: node},
		}})
	}
	const instigator = v1alpha1.NodeMaintenanceInstigatorFinalizer
	begin := func(s *story, evacuated string) {
		s.storeMaintenance(v1alpha1.StageDrain, of("user", "n2"))
		evacuate(s, evacuated, instigator)
	}
	end := func(s *story) {
		s.request(&s.Workload, controlplane.Event{Verb: "patch", Resource: "nodemaintenances", Name: "user", Code: 200})
		s.store(&s.Workload, maintenanceKeys+"user", nil)
	}
	expectViolations(t, []happening{
		{"E57: a NodeMaintenance is gone and still an instigator", func(s *story) {
			begin(s, "n2")
			end(s)
		}, withdrawn},
		{"E57: a NodeMaintenance has withdrawn", func(s *story) {
			begin(s, "n2")
			evacuate(s, "n2", "evacuation.coordination.k8s.io/instigator_other")
			end(s)
		}, nil},
		{"E57: another NodeMaintenance drains the Node", func(s *story) {
			begin(s, "n2")
			s.storeMaintenance(v1alpha1.StageDrain, of("other", "n2"))
			end(s)
		}, nil},
		{"E57: the Evacuation is one of another Node", func(s *story) {
			begin(s, "n1")
			end(s)
		}, nil},
		{"E57: a user removes the finalizer of a NodeMaintenance", func(s *story) {
			begin(s, "n2")
			s.store(&s.Workload, maintenanceKeys+"user", nil)
		}, nil},
		{"E57: another manager has created the Evacuation", func(s *story) {
			begin(s, "n2")
			s.Managers = append(s.Managers, s.now)
			end(s)
		}, nil},
	})
}
