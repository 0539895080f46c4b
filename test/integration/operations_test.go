package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// settled is long enough for a manager that serves an object to show it: it serves others in that time.
const settled = 3 * time.Second

// TestWhatAManagerServes starts managers that serve a part of the management cluster. Machines that run carry the hook of the
// manager that serves them; no Node is needed for that.
func TestWhatAManagerServes(t *testing.T) {
	t.Parallel()
	f := fleet.ForTest(t, fleet.Options{WithoutManager: true})
	g := NewWithT(t)
	machine := func(namespace, name string) []client.Object {
		return kwok.NewCluster("c1").InNamespace(namespace).WithExternalControlPlane().Machine(name)
	}
	g.Expect(f.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})).To(Succeed())
	for _, ns := range []string{namespace, "other"} {
		cluster := kwok.NewCluster("c1").InNamespace(ns).WithExternalControlPlane()
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}}
		g.Expect(kwok.Create(t.Context(), f.Client, cluster.Objects(), []client.Object{policy}, machine(ns, "plain"), machine(ns, "labelled"))).To(Succeed())
		labelled := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "labelled"}}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"ours"}}}`, clusterv1.WatchLabel)
		g.Expect(f.Client.Patch(t.Context(), labelled, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
	held := func() (names []string, err error) {
		machines := &clusterv1.MachineList{}
		err = f.Client.List(t.Context(), machines)
		for i := range machines.Items {
			if _, has := machines.Items[i].Annotations[v1alpha1.PreDrainHookAnnotation]; has {
				names = append(names, client.ObjectKeyFromObject(&machines.Items[i]).String())
			}
		}
		return names, err
	}
	// serves starts a manager, and checks which Machines get its hook. Events of what it doesn't serve come as well: the policies
	// are changed.
	serves := func(t *testing.T, flag string, expected ...string) {
		t.Helper()
		g := NewWithT(t)
		g.Expect(f.StartManager(t.Context(), flag)).To(Succeed())
		defer f.KillManager()
		g.Eventually(held, eventually, pace).Should(ConsistOf(expected))
		for _, ns := range []string{namespace, "other"} {
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}}
			patch := fmt.Appendf(nil, `{"spec":{"clusterSelector":{"matchExpressions":[{"key":%q,"operator":"DoesNotExist"}]}}}`, flag[2:4])
			g.Expect(f.Client.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		}
		g.Consistently(held, settled, pace).Should(ConsistOf(expected))
	}

	t.Run("--watch-filter: Machines without the label are nobody's", func(t *testing.T) {
		serves(t, "--watch-filter=ours", "default/labelled", "other/labelled")
	})
	t.Run("--namespace: Machines of other namespaces are nobody's", func(t *testing.T) {
		serves(t, "--namespace=other", "default/labelled", "other/labelled", "other/plain")
	})
}
