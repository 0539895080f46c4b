package machinedrain_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestUnreadPolicy(t *testing.T) {
	b := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}}
	for _, tc := range []struct {
		name    string
		follows *v1alpha1.MachineDrainPolicy
		unread  []string
		want    string
	}{
		{"M98: without an unread policy, it is known which policy a Machine follows", b, nil, ""},
		{"M98: a policy that comes later by name does not matter", b, []string{"c"}, ""},
		{"M98: a policy that comes first by name may select the Machine", b, []string{"c", "a"}, "a"},
		{"M98: an unread policy may select a Machine that no other policy selects", nil, []string{"d", "c"}, "c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(machinedrain.UnreadPolicy(tc.follows, tc.unread)).To(Equal(tc.want))
		})
	}
}
