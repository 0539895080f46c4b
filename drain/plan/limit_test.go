package plan_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func TestPublishedRowsBeyondTheLimit(t *testing.T) { // R24: rows of other maintenances that were published stay
	g := NewWithT(t)
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	target := func(label string) v1alpha1.DrainTarget {
		return v1alpha1.DrainTarget{
			PodType: v1alpha1.PodTypeDefault, PodPriority: math.MaxInt32, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": label}},
		}
	}
	other := func(name string) plan.Maintenance { // the most selectors that the API server accepts, all of them reached on Node n
		m := plan.Maintenance{
			Name: name, Created: created, Nodes: []string{"n"}, PlanDefaults: v1alpha1.DrainPlanDefaultsNone, Published: map[string][]v1alpha1.DrainTarget{},
		}
		for i := range 64 {
			row := target(fmt.Sprintf("%s-%03d", name, i))
			m.Plan = append(m.Plan, v1alpha1.DrainPlanEntry{PodType: row.PodType, PodPriority: row.PodPriority, PodSelector: specOf(row.PodSelector)})
			m.Published["n"] = append(m.Published["n"], row)
		}
		return m
	}
	verdicts := map[string]plan.Verdict{}
	for _, name := range []string{"m", "a", "b", "z"} {
		verdicts[name] = plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
	}
	o := plan.Observation{
		Maintenances: []plan.Maintenance{{Name: "m", Created: created, Nodes: []string{"n"}}, other("z")},
		Pods:         []plan.Pod{{UID: "p", Name: "p", Node: "n", Type: v1alpha1.PodTypeDefault, Verdicts: verdicts}},
	}
	rows := plan.Decide(o).Maintenances["m"].Nodes["n"].Targets
	o.Maintenances[0].Published = map[string][]v1alpha1.DrainTarget{"n": rows}
	o.Maintenances = append(o.Maintenances, other("a"), other("b"))
	now := plan.Decide(o).Maintenances["m"].Nodes["n"].Targets
	g.Expect(len(now)).To(BeNumerically("<=", 192))
	for _, row := range rows {
		g.Expect(now).To(ContainElement(row))
	}
}
