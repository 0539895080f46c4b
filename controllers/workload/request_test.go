package workload

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestRetryConflicts(t *testing.T) {
	const ms = time.Millisecond
	conflict := errors.Wrap(apierrors.NewConflict(schema.GroupResource{Resource: "evacuations"}, "e", errors.New("it has changed")), "patching Evacuation e")
	other := errors.New("another error")
	request := Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: types.NamespacedName{Name: "e"}}
	t.Run("R57: a reconciliation that conflicts is repeated at intervals that double up to a second", func(t *testing.T) {
		g := NewWithT(t)
		var fails error
		reconciler := RetryConflicts(reconcile.TypedFunc[Request](func(context.Context, Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: time.Hour}, fails
		}))
		intervals := func(n int) (all []time.Duration) {
			for range n {
				result, err := reconciler.Reconcile(t.Context(), request)
				g.Expect(err).NotTo(HaveOccurred())
				all = append(all, result.RequeueAfter)
			}
			return all
		}
		fails = conflict
		g.Expect(intervals(7)).To(Equal([]time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second}))
		_, err := reconciler.Reconcile(t.Context(), Request{Cluster: request.Cluster})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(intervals(1)).To(Equal([]time.Duration{time.Second}), "other objects do not matter")
		fails = nil
		g.Expect(intervals(1)).To(Equal([]time.Duration{time.Hour}))
		fails = conflict
		g.Expect(intervals(1)).To(Equal([]time.Duration{50 * ms}), "a success ends the conflict")
		for _, fails = range []error{other, fakes.DeniedWith(http.StatusConflict, metav1.StatusReasonConflict)} {
			_, err = reconciler.Reconcile(t.Context(), request)
			g.Expect(err).To(MatchError(fails), "nothing has changed, so the cache has nothing to catch up with")
		}
	})
}

func TestRequeueAt(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name string
		at   time.Time
		want time.Duration
	}{
		{"does not reconcile without a time", time.Time{}, 0},
		{"reconciles at a time in the future", now.Add(time.Minute), time.Minute},
		{"reconciles once a second for a time in the past", now.Add(-time.Hour), time.Second},
		{"reconciles once a second for a time that is reached", now, time.Second},
	} {
		t.Run("R65: "+tc.name, func(t *testing.T) {
			if got := RequeueAt(tc.at, now); got.RequeueAfter != tc.want {
				t.Errorf("got %s, want %s", got.RequeueAfter, tc.want)
			}
		})
	}
}
