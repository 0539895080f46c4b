package machinedrain_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
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

func TestMaintenanceThatNoOtherManagerEnds(t *testing.T) {
	deleted := ptr.To(metav1.Now())
	for name, tc := range map[string]struct {
		change func(*clusterv1.Cluster, *clusterv1.Machine)
		want   bool
	}{
		"M175: ends that of a running Machine whose Cluster has the label": {func(*clusterv1.Cluster, *clusterv1.Machine) {}, true},
		"M175: not if the Cluster has another label": {func(c *clusterv1.Cluster, _ *clusterv1.Machine) {
			c.Labels[clusterv1.WatchLabel] = "b"
		}, false},
		"M175: not if the Cluster is being deleted": {func(c *clusterv1.Cluster, _ *clusterv1.Machine) { c.DeletionTimestamp = deleted }, false},
		"M175: not if the Machine is being deleted": {func(_ *clusterv1.Cluster, m *clusterv1.Machine) { m.DeletionTimestamp = deleted }, false},
		"M175: not if nothing shows a maintenance": {func(_ *clusterv1.Cluster, m *clusterv1.Machine) {
			machinedrain.EndMaintenance(m)
		}, false},
		"M175: not while an update in place continues": {func(_ *clusterv1.Cluster, m *clusterv1.Machine) {
			m.Annotations[clusterv1.UpdateInProgressAnnotation] = ""
			machinedrain.AllowUpdate(inPlace(v1alpha1.InPlaceUpdatesDrain), v1alpha1.ReasonMachineDrained)(m)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.WatchLabel: "a"}}}
			m := machine(func(m *clusterv1.Machine) { m.Labels = map[string]string{clusterv1.WatchLabel: "b"} })
			machinedrain.DisableRemediation(m)
			tc.change(cluster, m)
			if got := machinedrain.WatchFilter("a").MayStrand(cluster, m); got != tc.want {
				t.Errorf("got %v", got)
			}
			if machinedrain.WatchFilter("a").MayStrand(nil, m) {
				t.Error("there is no Cluster")
			}
		})
	}
}
