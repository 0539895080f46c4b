package chaos

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestIsPresent(t *testing.T) {
	present, cluster := sets.New("uid", "node", "/node", "default/c1", "default/"), types.NamespacedName{Namespace: "default", Name: "c1"}
	for _, each := range []struct {
		name      string
		key       any
		isPresent bool
	}{
		{"a UID", types.UID("uid"), true},
		{"a UID of no object", types.UID("gone"), false},
		{"what belongs to an object", types.UID("uid/kubeconfig"), true},
		{"a name", "node", true},
		{"a name of no object", "gone", false},
		{"a namespaced name", cluster, true},
		{"a namespaced name of no object", types.NamespacedName{Namespace: "other", Name: "c1"}, false},
		{"a Namespace", types.NamespacedName{Namespace: "default"}, true},
		{"an object of a workload cluster", workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "node"}}, true},
		{"no object of a workload cluster", workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "gone"}}, false},
		{"an object of no workload cluster", workload.Request{Object: types.NamespacedName{Name: "node"}}, false},
		{"a pointer", new(int), true},
		{"another key", 1, false},
	} {
		t.Run("E37: "+each.name, func(t *testing.T) {
			NewWithT(t).Expect(isPresent(present, each.key)).To(Equal(each.isPresent))
		})
	}
}
