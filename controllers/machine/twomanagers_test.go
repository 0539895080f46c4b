package machine

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// machineWithTimeout is a deletedMachine whose drain timeout applies.
func machineWithTimeout(now time.Time) *clusterv1.Machine {
	machine := deletedMachine()
	machine.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-time.Minute)))
	machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(600))
	return machine
}

func TestTwoManagers(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	t.Run("R91: two managers that observe different things replace each other's record of a drain once a second", func(t *testing.T) {
		g, records := NewWithT(t), 0
		server := managementCluster(machineWithTimeout(start)).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				records++
				return c.Patch(ctx, object, patch, options...)
			},
		}).Build()
		connects, connected := machinedrain.Situation{BlockedSince: start.Add(-10 * time.Second)}, machinedrain.Situation{BlockEnded: true}
		manager := func() *Reconciler { return &Reconciler{Client: server, Clock: clock.RealClock{}} }
		observing := map[*Reconciler]machinedrain.Situation{manager(): connects, manager(): connected}
		const seconds, perSecond = 10, 50
		for i := range seconds * perSecond {
			for r, situation := range observing {
				s := &scope{machine: &clusterv1.Machine{}, now: start.Add(time.Duration(i) * time.Second / perSecond), Situation: situation}
				g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(deletedMachine()), s.machine)).To(Succeed())
				before, isBlocked := s.machine.ResourceVersion, metav1.HasAnnotation(s.machine.ObjectMeta, v1alpha1.DrainBlockedAnnotation)
				result, err := r.report(t.Context(), s, outcome{action: wait, reason: v1alpha1.ReasonMachineDraining})
				g.Expect(err).NotTo(HaveOccurred())
				if s.machine.ResourceVersion == before && isBlocked == situation.BlockEnded {
					g.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Second)), "it is recorded then")
				}
			}
		}
		g.Expect(records).To(BeNumerically(">", 2*seconds), "each records what it observes")
		g.Expect(records).To(BeNumerically("<=", 2*(10+seconds)))
	})
}

// TestLimitedRecords has a Machine whose records two managers have just replaced many times.
func TestLimitedRecords(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stored := func(t *testing.T, prepare func(*clusterv1.Machine)) (*Reconciler, *scope) {
		t.Helper()
		machine := machineWithTimeout(now)
		if prepare != nil {
			prepare(machine)
		}
		server := managementCluster(machine).WithInterceptorFuncs(interceptor.Funcs{
			SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
				return fakes.DeniedWithConflict() // a fake client returns no new version; the Machine is released nevertheless
			},
		}).Build()
		r := &Reconciler{Client: server, Clock: clocktesting.NewFakePassiveClock(now), events: record.NewFakeRecorder(10)}
		s := &scope{machine: &clusterv1.Machine{}, now: now}
		NewWithT(t).Expect(server.Get(t.Context(), client.ObjectKeyFromObject(machine), s.machine)).To(Succeed())
		for range 20 {
			r.records.Record(client.ObjectKeyFromObject(machine), now)
		}
		return r, s
	}
	t.Run("R91: a record that is delayed is no failure of the drain, and delays no deadline", func(t *testing.T) {
		g := NewWithT(t)
		r, s := stored(t, nil)
		s.BlockedSince = now.Add(-10 * time.Second)
		for at, again := range map[time.Time]time.Duration{{}: time.Second, now.Add(time.Hour): time.Second, now.Add(time.Second / 2): time.Second / 2} {
			result, err := r.report(t.Context(), s, outcome{action: wait, reason: v1alpha1.ReasonMachineDraining, at: at})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(Equal(again))
		}
		result, err := r.reportFailure(t.Context(), s, reconcile.Result{}, r.recordClock(t.Context(), s))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(time.Second))
		g.Expect(r.memoryOf(s.machine).failure.Err).NotTo(HaveOccurred())
		g.Expect(s.blind).To(BeTrue(), "what has blocked the drain counts further")
	})
	t.Run("R91: records that the API server refuses are not counted, and the refusal persists", func(t *testing.T) {
		g, machine := NewWithT(t), machineWithTimeout(now)
		server := managementCluster(machine).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return fakes.DeniedWithConflict()
			},
		}).Build()
		r := &Reconciler{Client: server, Clock: clock.RealClock{}}
		s := &scope{machine: machine, now: now, Situation: machinedrain.Situation{BlockedSince: now.Add(-10 * time.Second)}}
		for range 20 {
			_, err := r.report(t.Context(), s, outcome{action: wait, reason: v1alpha1.ReasonMachineDraining})
			g.Expect(err).To(MatchError(fakes.DeniedWithConflict()))
		}
	})
	live := func(t *testing.T, r *Reconciler, s *scope) *clusterv1.Machine {
		t.Helper()
		machine := &clusterv1.Machine{}
		NewWithT(t).Expect(r.Client.Get(t.Context(), client.ObjectKeyFromObject(s.machine), machine)).To(Succeed())
		return machine
	}
	t.Run("R91: the record of a running Machine is not delayed as well: mayPatch limits it", func(t *testing.T) {
		r, s := stored(t, nil)
		g := NewWithT(t)
		g.Expect(r.nextRecord(s)).To(Equal(now.Add(time.Second)))
		s.machine.DeletionTimestamp = nil
		g.Expect(r.nextRecord(s)).To(Equal(now))
	})
	t.Run("M170: the record of a hold is not delayed", func(t *testing.T) {
		r, s := stored(t, nil)
		s.HeldByHooks = true
		g := NewWithT(t)
		g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
		g.Expect(live(t, r, s).Annotations).To(HaveKey(v1alpha1.DrainHeldAnnotation))
	})
	t.Run("M170: the removal of a copied exclude annotation is not delayed", func(t *testing.T) {
		r, s := stored(t, func(m *clusterv1.Machine) {
			m.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = v1alpha1.HookOwner
		})
		g := NewWithT(t)
		g.Expect(r.patchMachine(t.Context(), s, "removing copied exclude annotations", machinedrain.RemoveExcludes)).To(Succeed())
		g.Expect(live(t, r, s).Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
	})
	t.Run("M170: the removal of the hook is not delayed, nor the exclude annotation of a completed drain", func(t *testing.T) {
		r, s := stored(t, nil)
		s.drainOver, s.node, s.policy = true, nodeOf(s.machine), &v1alpha1.MachineDrainPolicy{}
		g := NewWithT(t)
		g.Expect(r.removeHook(t.Context(), s, s.result())).To(Succeed())
		g.Expect(machinedrain.HasHook(live(t, r, s))).To(BeFalse())
		g.Expect(live(t, r, s).Annotations).To(HaveKeyWithValue(clusterv1.ExcludeNodeDrainingAnnotation, v1alpha1.HookOwner))
	})
}
