package cordon_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
)

func TestUncordonedBy(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const spec = `{"f:spec":{"f:unschedulable":{}}}`
	for _, tc := range []struct {
		name    string
		managed []metav1.ManagedFieldsEntry
		want    string
	}{
		{
			name: "R14: the field's owner", managed: []metav1.ManagedFieldsEntry{entry("kubelet", `{"f:status":{}}`), entry("us", spec), entry("autoscaler", spec)},
			want: "autoscaler",
		},
		{name: "R14: no owner is recorded", managed: []metav1.ManagedFieldsEntry{entry("us", spec), {Manager: "old"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := cordon.UncordonedBy(tc.managed, "us"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("R14: the first cordon does not count", func(t *testing.T) {
		n := node(false)
		if cordon.WasUncordoned(n) {
			t.Error("uncordoned before it was cordoned")
		}
		cordon.Apply(n)
		if cordon.WasUncordoned(n) {
			t.Error("uncordoned by this manager")
		}
		if n.Spec.Unschedulable = false; !cordon.WasUncordoned(n) {
			t.Error("not uncordoned")
		}
	})
}
