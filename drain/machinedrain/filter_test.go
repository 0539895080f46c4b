package machinedrain_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestWatchFilter(t *testing.T) {
	for _, tc := range []struct {
		name           string
		filter, hookOf machinedrain.WatchFilter // hookOf "-": no hook
		label          string
		deleted        bool
		want           machinedrain.Responsibility
	}{
		{name: "M104: an empty filter selects all Machines", hookOf: "-", label: "b", want: machinedrain.Reconciles},
		{name: "M104: selects a Machine with the label", filter: "a", hookOf: "-", label: "a", want: machinedrain.Reconciles},
		{name: "M104: takes over a Machine with the hook of another manager", filter: "a", hookOf: "b", label: "a", deleted: true, want: machinedrain.Reconciles},
		{name: "M104: ignores a Machine without the label", filter: "a", hookOf: "-", want: machinedrain.Ignores},
		{name: "M104: ignores a Machine of another manager", filter: "a", hookOf: "b", label: "b", want: machinedrain.Ignores},
		{name: "M104: ignores a deleted Machine of another manager", filter: "a", hookOf: "b", label: "b", deleted: true, want: machinedrain.Ignores},
		{name: "M104: ignores the hook of a manager without a filter", filter: "a", want: machinedrain.Ignores},
		{name: "M104: leaves a Machine whose label was removed", filter: "a", hookOf: "a", want: machinedrain.Leaves},
		{name: "M104: leaves a Machine whose label was changed", filter: "a", hookOf: "a", label: "b", want: machinedrain.Leaves},
		{name: "M104: drains a deleted Machine whose label was removed", filter: "a", hookOf: "a", deleted: true, want: machinedrain.Reconciles},
		{name: "M104: hands over a deleted Machine whose label was changed", filter: "a", hookOf: "a", label: "b", deleted: true, want: machinedrain.HandsOver},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := machine(func(m *clusterv1.Machine) {
				m.Labels = map[string]string{clusterv1.WatchLabel: tc.label}
				if tc.hookOf != "-" {
					tc.hookOf.SetHook(m)
				}
				if tc.deleted {
					m.DeletionTimestamp = ptr.To(metav1.Now())
				}
			})
			if got := tc.filter.ResponsibilityFor(m); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
	t.Run("M104: names its filter in the hook, once", func(t *testing.T) {
		m := machine()
		if !machinedrain.WatchFilter("a").SetHook(m) || machinedrain.WatchFilter("a").SetHook(m) || !machinedrain.HasHook(m) ||
			!machinedrain.WatchFilter("b").SetHook(m) {
			t.Errorf("got %v", m.Annotations)
		}
	})
	t.Run("M104: says why it does not connect to a Cluster", func(t *testing.T) {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{clusterv1.WatchLabel: "b"}}}
		if got := machinedrain.WatchFilter("a").NotSelectedMessage(cluster); !strings.Contains(got, "Cluster c does not have the label "+clusterv1.WatchLabel+"=a") {
			t.Errorf("got %q", got)
		}
		if got := machinedrain.WatchFilter("b").NotSelectedMessage(cluster); got != "" {
			t.Errorf("got %q", got)
		}
	})
}
