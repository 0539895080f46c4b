package budgets_test

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestNeverAllowsDisruption(t *testing.T) {
	for _, test := range []struct {
		name                         string
		minAvailable, maxUnavailable string
		pods                         int32
		want                         bool
	}{
		{"maxUnavailable 0", "", "0", 3, true},
		{"maxUnavailable 0%", "", "0%", 3, true},
		{"maxUnavailable 0%, no Pods counted", "", "0%", 0, true},
		{"maxUnavailable 1", "", "1", 3, false},
		{"maxUnavailable 1% is rounded up", "", "1%", 3, false},
		{"minAvailable 100%", "100%", "", 3, true},
		{"minAvailable 100%, no Pods counted", "100%", "", 0, true},
		{"minAvailable 90% of few Pods is rounded up", "90%", "", 3, true},
		{"minAvailable 90% of many Pods", "90%", "", 20, false},
		{"minAvailable 90%, no Pods counted", "90%", "", 0, false},
		{"minAvailable equal to the number of Pods", "3", "", 3, true},
		{"minAvailable greater than the number of Pods", "4", "", 3, true},
		{"minAvailable less than the number of Pods", "2", "", 3, false},
		{"minAvailable, no Pods counted", "2", "", 0, false},
		{"minAvailable 0", "0", "", 3, false},
		{"neither", "", "", 3, true},
		{"an invalid value", "many", "", 3, false},
		{"an invalid percentage", "", "9999999999999999999999%", 3, false},
	} {
		t.Run("E21: "+test.name, func(t *testing.T) {
			b := budgets.New(budget("web", wants(test.minAvailable, test.maxUnavailable), healthy(test.pods, test.pods, 0)))
			if got := b.NeverAllowsDisruption(); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestCovering(t *testing.T) {
	index := budgets.NewIndex([]*pdb{
		budget("web"), nil, budget("all", covers(&metav1.LabelSelector{})), budget("nothing", covers(nil)), budget("invalid", invalid),
		budget("elsewhere", inNamespace("other")), budget("invalid-elsewhere", invalid, inNamespace("other")),
	}, nil)
	var got []string
	for _, b := range index.Covering(pod("p").Pod) {
		got = append(got, b.String())
	}
	if want := []string{"default/all", "default/invalid", "default/web"}; !reflect.DeepEqual(got, want) {
		t.Errorf("E20: got %v, want %v", got, want)
	}
}
