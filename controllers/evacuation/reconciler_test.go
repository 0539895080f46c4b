package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestFinishedWhileTheWatchLags(t *testing.T) {
	const foreign = "example.com/keep"
	for name, tc := range map[string]struct {
		added []string // since the Evacuation was observed
		left  []string
		fails bool
	}{
		"E8: removes the finalizers of instigators": {},
		"E8: keeps a finalizer that another actor has added meanwhile": {
			added: []string{foreign}, left: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer, foreign}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			observed := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "e", UID: "uid", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
			}}
			stored := observed.DeepCopy()
			stored.Finalizers = append(stored.Finalizers, tc.added...)
			server := fakes.Builder().WithStatusSubresource(observed).WithObjects(stored).Build()
			observed.ResourceVersion = "1"
			r, now := &Reconciler{Written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim)}, time.Now()
			finish := evacuation.Next(evacuation.Input{Evacuation: observed, Pod: evacuation.Pod{Known: true, Exists: true, Finished: true}, Now: now})
			g.Expect(finish.Delete).To(BeTrue())

			err := r.store(t.Context(), &scope{client: server, evacuation: observed}, finish, now)
			g.Expect(err != nil).To(Equal(tc.fails), "%v", err)
			left := &v1alpha1.Evacuation{}
			g.Expect(client.IgnoreNotFound(server.Get(t.Context(), client.ObjectKeyFromObject(observed), left))).To(Succeed())
			g.Expect(left.Finalizers).To(Equal(tc.left))
		})
	}
}
