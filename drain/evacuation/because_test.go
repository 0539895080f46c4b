package evacuation_test

import (
	"strings"
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
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
		{"E33: a long reason is cut", []string{ours}, []*v1alpha1.NodeMaintenance{draining("a", strings.Repeat("é", 1000))}, "NodeMaintenance a drains Node one (" + strings.Repeat("é", 199) + "…)"},
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

func TestDrains(t *testing.T) {
	m := &v1alpha1.NodeMaintenance{}
	m.Spec.Stage = v1alpha1.StageDrain
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one"}}}
	if !evacuation.Drains(m, "one") || evacuation.Drains(m, "two") {
		t.Error("E33: a maintenance in stage Drain drains the Nodes of its status")
	}
	m.Spec.Stage = v1alpha1.StageCordon
	if evacuation.Drains(m, "one") {
		t.Error("E33: a maintenance in stage Cordon drains no Node")
	}
}
