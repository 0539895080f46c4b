package machine

import (
	"context"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestDrainTimeoutAppliesToDaemonSets(t *testing.T) { // M13
	g := NewWithT(t)
	deletion := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(after time.Duration) string { return deletion.Add(after).Format(time.RFC3339) }
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "fleet", Name: "m", DeletionTimestamp: new(metav1.NewTime(deletion)), Finalizers: []string{clusterv1.MachineFinalizer},
			Annotations: map[string]string{
				v1alpha1.PreDrainHookAnnotation: "", v1alpha1.DrainStartedAnnotation: at(0), v1alpha1.DrainEndedAnnotation: at(time.Second),
				v1alpha1.VolumeWaitStartedAnnotation: at(time.Second),
			},
		},
		Spec: clusterv1.MachineSpec{Deletion: clusterv1.MachineDeletionSpec{
			NodeDrainTimeoutSeconds: ptr.To[int32](3600), NodeVolumeDetachTimeoutSeconds: ptr.To[int32](7200),
		}},
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
	m := machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: "here", Cluster: client.ObjectKeyFromObject(cluster), Machine: machine, Node: node,
		Rules: []v1alpha1.DrainRule{{Name: rules.RuleDaemonSetPods, Behavior: v1alpha1.DrainBehaviorSkip}},
	})
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(deletion)}}
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build()
	refused := apierrors.NewForbidden(schema.GroupResource{}, "m", errors.New("a webhook refuses it"))
	remote := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, m).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := refused; err != nil {
				refused = nil
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
	r := &Reconciler{
		Client: management, Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"},
		Recorder: tracing.NewRecorder(t.Context(), nil),
	}
	start := deletion.Add(time.Second)
	s := &scope{
		machine: machine, cluster: cluster, policy: &v1alpha1.MachineDrainPolicy{}, client: remote, node: node, now: deletion.Add(90 * time.Minute),
		Situation: machinedrain.Situation{VolumeWaitStart: &start, Turn: &machinedrain.Turn{}},
	}
	s.policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain
	g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
	g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	s.maintenance, s.found.Name = m, m.Name

	_, err := r.awaitDaemonSets(t.Context(), s)
	g.Expect(err).To(HaveOccurred())
	s.now, s.IsDrained = deletion.Add(91*time.Minute), true
	result, err := r.awaitDaemonSets(t.Context(), s)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.action).To(Equal(wait))
	g.Expect(machinedrain.DaemonSetRuleLifted(s.maintenance)).To(BeTrue())
	g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
	g.Expect(s.maintenance.Annotations).To(HaveKeyWithValue(v1alpha1.DrainStartedAnnotation, at(90*time.Minute)),
		"M134: the drain timeout counts from the first attempt, and not from the former start")
	for after, action := range map[time.Duration]action{92 * time.Minute: wait, 2 * time.Hour: wait, 150 * time.Minute: release} {
		later := &scope{machine: s.machine, cluster: cluster, policy: s.policy, now: deletion.Add(after)} // the workload cluster is unreachable
		got := later.untilDeadline(outcome{action: wait, blind: true}, time.Time{})
		g.Expect(got.action).To(Equal(action), "after %s", after)
	}
}

func TestDaemonSetsThatStay(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(s *scope)
		result  string
	}{
		"M21: the Pods of DaemonSets, among them the node plugins of CSI drivers, stay if the drain has timed out": {
			func(s *scope) { s.drainTimedOut("a budget") }, v1alpha1.ReasonTimedOut,
		},
		"M21: the Pods of DaemonSets, among them the node plugins of CSI drivers, stay if the wait for volumes has timed out": {
			func(s *scope) { s.volumesTimedOut("a volume") }, v1alpha1.ReasonTimedOut,
		},
		"M152: the Pods of DaemonSets stay on an unreachable Node, whose volumes may detach when it is reachable again": {
			func(s *scope) { s.node.Status.Conditions[0].Status = corev1.ConditionUnknown }, v1alpha1.ReasonMachineDrained,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			m := machinedrain.Maintenance(machinedrain.Request{
				ManagementCluster: "here", Cluster: clusterKey, Machine: machine, Node: node, Rules: rules.Compile(rules.Input{}).Rules,
			})
			management, remote := managementCluster(machine).Build(), workloadCluster().WithObjects(m).Build()
			r := &Reconciler{
				Client: management, Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"},
				Recorder: tracing.NewRecorder(t.Context(), nil),
			}
			s := &scope{
				machine: machine, cluster: provisionedCluster(), client: remote, node: node, now: time.Now(),
				policy:    &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{DaemonSetPods: v1alpha1.DaemonSetPodsDrain}},
				Situation: machinedrain.Situation{Turn: &machinedrain.Turn{}},
			}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			s.observe(m)
			s.found.Name = m.Name
			tc.prepare(s)
			result, err := r.awaitDaemonSets(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(proceed))
			g.Expect(machinedrain.DaemonSetRuleLifted(s.maintenance)).To(BeFalse())
			g.Expect(s.result().reason).To(Equal(tc.result))
		})
	}
}

// overdueScope returns the scope of a Machine that was deleted, and whose drain began, a time before now.
func overdueScope(now time.Time, since time.Duration, timeout int32) *scope {
	began := metav1.NewTime(now.Add(-since))
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", UID: "m", DeletionTimestamp: &began, Finalizers: []string{"f"}},
		Spec: clusterv1.MachineSpec{ClusterName: "c", Deletion: clusterv1.MachineDeletionSpec{
			NodeDrainTimeoutSeconds: ptr.To(timeout), NodeVolumeDetachTimeoutSeconds: ptr.To[int32](300),
		}},
	}
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1", Generation: 2, CreationTimestamp: began}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain},
	}
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: began}}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, ObservedGeneration: 2}}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
	s := &scope{machine: machine, cluster: cluster, now: now, node: &corev1.Node{}}
	s.observe(m)
	s.Turn = &machinedrain.Turn{}
	return s
}

// The wait for volumes begins when the drain ends, also if the attempts are confirmed before the Machine is reconciled for the first time
// after a restart or a pause.
func TestVolumeWaitAfterRestart(t *testing.T) { // M96, M13
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	for _, first := range []string{"Machine", "NodeMaintenance"} {
		t.Run(first, func(t *testing.T) {
			g, s := NewWithT(t), overdueScope(now, 50*time.Minute, 60)
			r := overdueReconciler(t, s)
			if first == "Machine" { // it waits, and its NodeMaintenance is reconciled then
				result, err := r.awaitDrained(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(result.action).To(Equal(wait))
				s = overdueScope(now, 50*time.Minute, 60)
			}
			r.Clusters.ConfirmAttempted(s.maintenanceRequest(), s.maintenance, "node")
			result, err := r.awaitDrained(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(proceed))
			g.Expect(s.timedOut).NotTo(BeEmpty())
			start := s.clock().VolumeWaitStart(s.machine, s.maintenance, s.now)
			g.Expect(start).To(Equal(now), "the Pods have terminated only now, and their volumes get nodeVolumeDetachTimeoutSeconds from now on")
		})
	}
}

// A wait that has begun under an earlier deadline does not count: the timeout was extended while the policy could not be decoded or contact
// was lost.
func TestOverdueOfEarlierDeadline(t *testing.T) { // M96
	g, now := NewWithT(t), time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	s := overdueScope(now, 65*time.Second, 60)
	r := overdueReconciler(t, s)
	result, err := r.awaitDrained(t.Context(), s)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.action).To(Equal(wait))

	later := now.Add(time.Hour)
	s = overdueScope(later, time.Hour+65*time.Second, 3600) // the present deadline passed 65 s ago, the wait began an hour ago
	result, err = r.awaitDrained(t.Context(), s)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.timedOut).To(BeEmpty(), "the final eviction attempts under the present deadline and spec get 30 s")
	g.Expect(result.action).To(Equal(wait))
}

func overdueReconciler(t *testing.T, s *scope) *Reconciler {
	t.Helper()
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(s.machine.DeepCopy(), s.cluster).Build()
	return newReconciler(t, management, clustercache.NewFakeEmptyClusterCache(), clock.RealClock{})
}

// drainFrom returns a function that reconciles a Machine up to the wait for volumes, which waits. The Machine was deleted, and its drain
// began, at start. drained is the condition of its NodeMaintenance.
func drainFrom(t *testing.T, start time.Time, timeout time.Duration) func(now time.Time, drained metav1.ConditionStatus) *scope {
	t.Helper()
	g, machine := NewWithT(t), deletedMachine()
	machine.DeletionTimestamp = new(metav1.NewTime(start))
	machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(timeout.Seconds()))
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1", Generation: 1}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain},
	}
	m.Spec.Evacuation.DrainTimeoutSeconds = machine.Spec.Deletion.NodeDrainTimeoutSeconds
	m.Status.ObservedGeneration, m.Status.StageStatuses = 1, []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build()
	r := newReconciler(t, management, clustercache.NewFakeEmptyClusterCache(), clock.RealClock{})
	g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
	return func(now time.Time, drained metav1.ConditionStatus) *scope {
		t.Helper()
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
			Type: v1alpha1.NodeMaintenanceDrained, Status: drained, Reason: v1alpha1.ReasonDraining, ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(now),
		})
		s := &scope{machine: machine, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}, now: now, node: &corev1.Node{}}
		s.Turn = &machinedrain.Turn{}
		s.observe(m.DeepCopy())
		if r.Clusters.WithdrawConfirmation(s.maintenanceRequest()); drained == metav1.ConditionTrue {
			r.Clusters.ConfirmDrained(s.maintenanceRequest(), m, "node", false, nil)
		}
		result, err := r.awaitDrained(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		if s.IsDrained {
			s.VolumeWaitStart = new(s.clock().VolumeWaitStart(machine, m, now))
		}
		g.Expect(result.action == wait || s.drainOver).To(BeTrue())
		g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
		machine = s.machine
		return s
	}
}

// TestReplacementsThatReturn: a Pod of a StatefulSet with a zonal volume tolerates all taints. It is evicted each five minutes (R44), and
// its replacement starts on the cordoned Node a moment after it is gone. In this moment the Node is drained, and its volume is still
// attached.
func TestReplacementsThatReturn(t *testing.T) {
	for _, timeout := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour} {
		t.Run("M13, M39: the drain timeout ends a drain whose Node is empty for a moment now and then, "+timeout.String(), func(t *testing.T) {
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			reconcile := drainFrom(t, start, timeout)
			records := map[string]string{}
			period := min(5*time.Minute, timeout-35*time.Second) // R44, or the final eviction attempt
			for now := start; now.Before(start.Add(3 * time.Hour)); now = now.Add(period) {
				for _, after := range []time.Duration{time.Second, period / 2, period - time.Second} {
					if s := reconcile(now.Add(after), metav1.ConditionFalse); len(s.timedOut) > 0 {
						return
					}
				}
				records = reconcile(now.Add(period), metav1.ConditionTrue).machine.Annotations
			}
			t.Errorf("the Machine is held for three hours; its records: %v", records)
		})
	}
}

// TestPodAfterAnOverdueDrain: no manager ran while the drain timeout passed. After the restart, the last Pod is evicted in the time for
// final attempts, and a volume stays attached. Minutes later, another Pod must be drained.
func TestPodAfterAnOverdueDrain(t *testing.T) { // M13, M94, M96
	g, start := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	reconcile := drainFrom(t, start, 10*time.Minute)
	reconcile(start.Add(time.Second), metav1.ConditionFalse)
	restart := start.Add(40 * time.Minute)
	g.Expect(reconcile(restart, metav1.ConditionFalse).timedOut).To(BeEmpty())
	g.Expect(reconcile(restart.Add(15*time.Second), metav1.ConditionTrue).IsDrained).To(BeTrue())
	s := reconcile(restart.Add(5*time.Minute), metav1.ConditionFalse)
	g.Expect(s.timedOut).To(BeEmpty(), "the Pod has had no eviction attempt yet")
}

func TestPauseDuringADrain(t *testing.T) { // M94, M96
	g, machine := NewWithT(t), deletedMachine()
	machine.Annotations[clusterv1.PausedAnnotation] = ""
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}}
	r := notConnected(t, fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, cluster).Build(), clock.RealClock{})
	key := client.ObjectKeyFromObject(machine)
	r.memoryOf(machine).overdue, r.memoryOf(machine).unconfirmed = time.Now(), time.Now()
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.memoryOf(machine).overdue).To(BeZero(), "the wait for the final eviction attempts begins again after the pause")
	g.Expect(r.memoryOf(machine).unconfirmed).To(BeZero(), "the wait for the NodeMaintenance of a drain that had ended begins again, too")
}

// TestTimeoutSetLateWhileAdmissionFails: the workload cluster is healthy. Only the infrastructure machine cannot be read.
func TestTimeoutSetLateWhileAdmissionFails(t *testing.T) {
	for name, tc := range map[string]struct {
		stage     v1alpha1.NodeMaintenanceStage // of the NodeMaintenance, empty if it does not exist
		nodeGone  bool                          // the Node does not exist
		began     map[string]time.Duration      // records of the Machine, and how long ago
		failsFor  time.Duration                 // since when the infrastructure machine cannot be read
		continues bool                          // the drain
	}{
		"M96: the final eviction attempts are awaited although a step before fails, set late": {
			stage: v1alpha1.StageDrain, failsFor: 20 * time.Minute, continues: true,
		},
		"M96: the final eviction attempts are awaited although a step before fails, was paused long": {
			stage: v1alpha1.StageDrain, began: map[string]time.Duration{v1alpha1.DrainStartedAnnotation: time.Hour}, failsFor: 70 * time.Second, continues: true,
		},
		"M10: no drain begins while it is not known whether the Node is drained": {failsFor: 10 * time.Second},
		"M10: none whose Node is cordoned":                                       {stage: v1alpha1.StageCordon, failsFor: 10 * time.Second},
		"M54: none is skipped because its Node does not exist":                   {stage: v1alpha1.StageDrain, nodeGone: true, failsFor: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g, key, now := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, time.Now().Truncate(time.Second)
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
			policy := policyForAll()
			machine := deletedMachine()
			machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
			machine.Labels = map[string]string{clusterv1.ClusterNameLabel: "c"}
			machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(600)) // a user has just set it
			machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
				APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "DockerMachine", Name: "m",
			}
			for annotation, ago := range tc.began {
				machine.Annotations[annotation] = now.Add(-ago).UTC().Format(time.RFC3339)
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: machine, Node: node, Policy: policy})
			m.Generation, m.Spec.Stage = 1, tc.stage
			m.Status = v1alpha1.NodeMaintenanceStatus{ // one Pod is being evicted in this moment: its grace period is ten minutes
				ObservedGeneration: 1, StageStatuses: []v1alpha1.StageStatus{{Name: tc.stage, StartTimestamp: metav1.NewTime(now.Add(-time.Hour))}},
				Conditions: []metav1.Condition{{
					Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDraining, ObservedGeneration: 1,
					LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
				}},
			}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine, controlPlaneMachine()).
				WithStatusSubresource(machine).Build()
			workloadObjects := fake.NewClientBuilder().WithScheme(newScheme())
			if !tc.nodeGone {
				workloadObjects = workloadObjects.WithObjects(node)
			}
			if tc.stage != "" {
				workloadObjects = workloadObjects.WithObjects(m)
			}
			remote := workloadObjects.Build()
			r := newReconciler(t, management, connectedTo(remote, now), clocktesting.NewFakePassiveClock(now))
			r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return errors.New("the conversion webhook of the infrastructure provider does not answer")
				},
			})
			r.memoryOf(machine).failure = workload.Failure{Since: now.Add(-tc.failsFor), Err: errors.New("as before")}
			r.blocked.Store(client.ObjectKeyFromObject(machine), block{since: now.Add(-tc.failsFor)})
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err == nil).To(Equal(tc.continues), "%v", err)
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(machine.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation), conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance))
			kept := &v1alpha1.NodeMaintenanceList{}
			g.Expect(remote.List(t.Context(), kept)).To(Succeed())
			g.Expect(kept.Items).To(HaveLen(map[bool]int{true: 1}[tc.stage != ""]))
			for _, m := range kept.Items {
				g.Expect(m.Spec.Stage).To(Equal(tc.stage))
			}
		})
	}
}

func TestAwaitDrainedBelievesThisProcess(t *testing.T) {
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	staged := func(records map[string]string) map[string]string { // before the deletion
		records[v1alpha1.MachineStageAnnotation], records[v1alpha1.DrainRequestedAnnotation] = string(v1alpha1.StageDrain), ago(50*time.Minute)
		return records
	}
	inPlace := staged(map[string]string{v1alpha1.DrainStartedAnnotation: ago(50 * time.Minute), v1alpha1.DrainEndedAnnotation: ago(49 * time.Minute)})
	for _, tc := range []struct {
		name      string
		records   map[string]string
		status    metav1.ConditionStatus
		observed  int64
		confirmed bool
		attempted bool          // this process has found that the final eviction attempts have been made
		overdue   time.Duration // for how long the Machine has waited for them
		since     time.Duration // for how long the Machine has waited for the confirmation
		action    action
		timedOut  bool
		reason    string
		started   string // the recorded start of the drain
	}{
		{
			name: "M95: proceeds if this process has found the Node to be drained", status: metav1.ConditionTrue, observed: 2, confirmed: true, action: proceed,
			started: inPlace[v1alpha1.DrainStartedAnnotation], records: inPlace,
		},
		{
			name: "M95: waits if an earlier process has", status: metav1.ConditionTrue, observed: 2, action: wait, started: inPlace[v1alpha1.DrainStartedAnnotation],
			records: inPlace,
		},
		{
			name: "M94: waits for the status of a new generation, regardless of the drain in place that has ended", status: metav1.ConditionTrue, observed: 1,
			confirmed: true, action: wait, started: inPlace[v1alpha1.DrainStartedAnnotation], records: inPlace,
		},
		{
			name: "M94: resumes the drain after a minute", status: metav1.ConditionTrue, observed: 1, since: 2 * time.Minute, action: wait,
			reason: v1alpha1.ReasonMachineDraining, started: now.Format(time.RFC3339), records: inPlace,
		},
		{
			name: "M94: resumes the drain if Pods must be drained again", status: metav1.ConditionFalse, observed: 2, action: wait,
			reason: v1alpha1.ReasonMachineDraining, started: now.Format(time.RFC3339), records: inPlace,
		},
		{
			name: "M96: waits for the final eviction attempts of a drain that has not ended", status: metav1.ConditionFalse, observed: 2, action: wait,
			reason:  v1alpha1.ReasonMachineDraining,
			started: ago(50 * time.Minute), records: staged(map[string]string{v1alpha1.DrainStartedAnnotation: ago(50 * time.Minute)}),
		},
		{
			name: "M96: waits for them for 30 s", status: metav1.ConditionFalse, observed: 2, action: wait, reason: v1alpha1.ReasonMachineDraining,
			overdue: 29 * time.Second,
			started: ago(50 * time.Minute), records: staged(map[string]string{v1alpha1.DrainStartedAnnotation: ago(50 * time.Minute)}),
		},
		{
			name: "M13: times out a drain that has not ended", status: metav1.ConditionFalse, observed: 2, action: proceed, timedOut: true, overdue: 30 * time.Second,
			started: ago(50 * time.Minute), records: staged(map[string]string{v1alpha1.DrainStartedAnnotation: ago(50 * time.Minute)}),
		},
		{
			name: "M13: times it out when this process has found that they have been made", status: metav1.ConditionFalse, observed: 2, action: proceed, timedOut: true,
			attempted: true,
			started:   ago(50 * time.Minute), records: staged(map[string]string{v1alpha1.DrainStartedAnnotation: ago(50 * time.Minute)}),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
			machine := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet", Name: "m", DeletionTimestamp: new(metav1.NewTime(now.Add(-time.Second))), Annotations: maps.Clone(tc.records),
					Finalizers: []string{"f"},
				},
				Spec: clusterv1.MachineSpec{ClusterName: "c", Deletion: clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: ptr.To[int32](60)}},
			}
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1", Generation: 2}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain},
			}
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-50 * time.Minute))}}
			m.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.NodeMaintenanceDrained, Status: tc.status, ObservedGeneration: tc.observed},
				{Type: v1alpha1.NodeMaintenanceFinalEvictionAttempt, Status: metav1.ConditionTrue, ObservedGeneration: 2}, // of an earlier process
			}
			m.Status.DrainTimeout = &v1alpha1.DrainTimeoutStatus{FinalAttemptTime: new(metav1.NewTime(now.Add(-50 * time.Minute)))}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build()
			r := newReconciler(t, management, clustercache.NewFakeEmptyClusterCache(), clock.RealClock{})
			s := &scope{machine: machine, cluster: cluster, now: now, node: &corev1.Node{}}
			s.observe(m)
			s.Turn = &machinedrain.Turn{}
			if tc.confirmed {
				r.Clusters.ConfirmDrained(s.maintenanceRequest(), m, "node", false, nil)
			}
			if tc.attempted {
				r.Clusters.ConfirmAttempted(s.maintenanceRequest(), m, "node")
			}
			if tc.overdue > 0 {
				r.memoryOf(machine).overdue = now.Add(-tc.overdue)
			}
			if tc.since > 0 {
				s.before.unconfirmed = now.Add(-tc.since)
			}
			result, err := r.awaitDrained(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(tc.action))
			g.Expect(result.reason).To(Equal(tc.reason))
			g.Expect(s.timedOut != nil).To(Equal(tc.timedOut))
			g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
			g.Expect(s.machine.Annotations).To(HaveKeyWithValue(v1alpha1.DrainStartedAnnotation, tc.started))
		})
	}
}
