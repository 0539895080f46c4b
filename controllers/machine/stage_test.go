package machine

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/exp/inplace"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func newScheme() *runtime.Scheme {
	return fakes.Scheme()
}

func TestOrphanedWithoutPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		policies []client.Object
		from     string // the management cluster in which the drain began
		deleted  bool   // according to the API server
		ended    bool
		stage    string // the stage annotation
	}{
		"M16: ends the drain of a moved Machine that no policy selects":                 {[]client.Object{ofOtherMachines("c")}, "there", false, true, ""},
		"M16: reads nothing of a workload cluster that is not watched":                  {nil, "there", false, false, ""},
		"M16: reads nothing if policies select only other Clusters":                     {[]client.Object{ofOtherMachines("other")}, "there", false, false, ""},
		"M136: ends the drain of a Machine that a snapshot has restored":                {[]client.Object{ofOtherMachines("c")}, "here", false, true, ""},
		"M136: also if a stage annotation requests a drain, without a policy":           {[]client.Object{ofOtherMachines("c")}, "here", false, true, "Drain"},
		"M136: keeps the drain of a Machine whose deletion the watch has not delivered": {[]client.Object{ofOtherMachines("c")}, "here", true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			key := types.NamespacedName{Namespace: "fleet", Name: "c"}
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{"cluster": "c"}}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			machine := runningMachine()
			if tc.stage != "" {
				machine.Annotations[v1alpha1.MachineStageAnnotation] = tc.stage
			}
			left := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: tc.from, Cluster: key, Machine: machine, Node: node})
			left.Finalizers = nil
			stored := machine.DeepCopy()
			if stored.Finalizers = []string{clusterv1.MachineFinalizer}; tc.deleted {
				stored.DeletionTimestamp = new(metav1.Now())
			}
			byName := func(object client.Object) []string { return []string{object.GetName()} }
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, machine).WithObjects(tc.policies...).Build()
			remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, left).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, key), clock.RealClock{})
			r.APIReader = fake.NewClientBuilder().WithScheme(newScheme()).WithIndex(stored, "metadata.name", byName).WithObjects(stored).Build()
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			err = remote.Get(t.Context(), client.ObjectKeyFromObject(left), left)
			if tc.ended {
				g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
			} else {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(left.Spec.Stage).To(Equal(v1alpha1.StageDrain))
			}
		})
	}
}

func TestPolicyChangeDuringUpdate(t *testing.T) {
	ignores := &v1alpha1.MachineDrainPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}, Spec: v1alpha1.MachineDrainPolicySpec{InPlaceUpdates: v1alpha1.InPlaceUpdatesIgnore},
	}
	allowed := map[string]string{clusterv1.UpdateInProgressAnnotation: "", v1alpha1.UpdateAllowedAnnotation: v1alpha1.ReasonMachineDrained + "/m"}
	for name, tc := range map[string]struct {
		policies    []client.Object
		annotations map[string]string
		ended       bool
	}{
		"is deleted":                {nil, allowed, false},
		"requires nothing any more": {[]client.Object{ignores}, allowed, false},
		"is deleted, until the update has completed": {
			nil, map[string]string{v1alpha1.UpdateAllowedAnnotation: v1alpha1.ReasonMachineDrained + "/m"}, true,
		},
		"is deleted, if the update has not been allowed": {nil, map[string]string{clusterv1.UpdateInProgressAnnotation: ""}, true},
		"is deleted, if it has the permission of another Machine": {
			nil, map[string]string{clusterv1.UpdateInProgressAnnotation: "", v1alpha1.UpdateAllowedAnnotation: v1alpha1.ReasonMachineDrained + "/other"}, true,
		},
		"requires nothing any more, until a stage annotation says Complete": {[]client.Object{ignores}, map[string]string{
			clusterv1.UpdateInProgressAnnotation: "", v1alpha1.UpdateAllowedAnnotation: v1alpha1.ReasonMachineDrained + "/m",
			v1alpha1.MachineStageAnnotation: string(v1alpha1.StageComplete),
		}, true},
	} {
		t.Run("M84: an update in place keeps the maintenance of the Node when the policy "+name, func(t *testing.T) {
			g, key := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			machine, node := runningMachine(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			machine.Annotations, machine.Status.Conditions = maps.Clone(tc.annotations), []metav1.Condition{{
				Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMachineDrained, LastTransitionTime: metav1.Unix(1, 0),
			}}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: machine, Node: node, For: v1alpha1.RequestedForStage})
			management := managementCluster(machine).WithObjects(tc.policies...).Build()
			remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, m).Build()
			now := time.Now()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, key), clocktesting.NewFakePassiveClock(now))
			g.Expect(reconcileAt(t, r, machine, now)).To(Succeed())
			g.Expect(reconcileAt(t, r, machine, now.Add(rules.GoneCounts))).To(Succeed())
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			ended := m.Spec.Stage == v1alpha1.StageComplete
			g.Expect(ended).To(Equal(tc.ended))
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			_, isAllowed := machine.Annotations[v1alpha1.UpdateAllowedAnnotation]
			g.Expect(isAllowed).NotTo(Equal(tc.ended))
			if !tc.ended {
				g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonMachineDrained))
			}
		})
	}
}

// TestPolicyThatIsReplacedDuringUpdate: tools replace a policy by deleting and creating it.
func TestPolicyThatIsReplacedDuringUpdate(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ignores := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "default"}}
	for name, tc := range map[string]struct {
		stage  v1alpha1.NodeMaintenanceStage
		action v1alpha1.InPlaceUpdatesPolicy
		others []client.Object
	}{
		"the drain":  {v1alpha1.StageDrain, v1alpha1.InPlaceUpdatesDrain, nil},
		"the cordon": {v1alpha1.StageCordon, v1alpha1.InPlaceUpdatesCordon, nil},
		"the drain, also if another policy selects the Machine meanwhile,": {v1alpha1.StageDrain, v1alpha1.InPlaceUpdatesDrain, []client.Object{ignores}},
	} {
		t.Run("M166: "+name+" before an update in place continues for three seconds after its policy was deleted", func(t *testing.T) {
			g, m, stage := NewWithT(t), deletedWorkers(start, "a")[0], tc.stage
			m.DeletionTimestamp, m.Finalizers = nil, nil
			m.Annotations[clusterv1.UpdateInProgressAnnotation] = ""
			policy := func() *v1alpha1.MachineDrainPolicy {
				all := policyForAll()
				all.Spec.InPlaceUpdates = tc.action
				return all
			}
			management, remote := managementCluster(m).WithObjects(policy()).WithObjects(tc.others...).Build(), workloadCluster(m).Build()
			r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
			t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
			stored := &clusterv1.Machine{}
			mayUpdate := func() bool {
				decision, err := inplace.Check(t.Context(), management, client.ObjectKeyFromObject(m))
				g.Expect(err).NotTo(HaveOccurred())
				return decision.Allowed
			}
			at := func(after time.Duration) v1alpha1.NodeMaintenanceStage {
				g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
				all := &v1alpha1.NodeMaintenanceList{}
				g.Expect(remote.List(t.Context(), all)).To(Succeed())
				if len(all.Items) == 0 {
					return ""
				}
				return all.Items[0].Spec.Stage
			}
			g.Expect(at(0)).To(Equal(stage))
			requested := stored.Annotations[v1alpha1.DrainRequestedAnnotation]
			g.Expect(mayUpdate()).To(BeFalse())

			g.Expect(management.Delete(t.Context(), policy())).To(Succeed())
			g.Expect(mayUpdate()).To(BeFalse(), "before the manager observes the deletion")
			g.Expect(at(time.Second)).To(Equal(stage))
			g.Expect(mayUpdate()).To(BeFalse())
			g.Expect(at(3 * time.Second)).To(Equal(stage))
			g.Expect(stored.Annotations[v1alpha1.DrainRequestedAnnotation]).To(Equal(requested), "the Machine keeps its place and its timeout")

			g.Expect(management.Create(t.Context(), policy())).To(Succeed())
			g.Expect(at(4 * time.Second)).To(Equal(stage))
			g.Expect(management.Delete(t.Context(), policy())).To(Succeed())
			g.Expect(at(5 * time.Second)).To(Equal(stage))
			if len(tc.others) == 0 {
				live := r.APIReader
				r.APIReader = apiServerOf(nil, provisionedCluster(), policy())
				g.Expect(at(8*time.Second)).To(Equal(stage), "the policy exists, and the watch has not delivered it")
				r.APIReader = live
			}
			g.Expect(at(9 * time.Second)).NotTo(Equal(stage))
			g.Expect(mayUpdate()).To(BeTrue())
		})
	}
}

func TestStageWithoutPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		present v1alpha1.NodeMaintenanceStage // of the NodeMaintenance, empty if it does not exist
		want    string
	}{
		"has no effect": {"", "No MachineDrainPolicy selects the Machine, so the annotation maintenance.cluster.x-k8s.io/stage has no effect"},
		"does not end the drain, and the condition says so": {v1alpha1.StageDrain, "No MachineDrainPolicy selects the Machine any more: NodeMaintenance " +
			"node-ec9ec6e4 continues in stage Drain until the annotation maintenance.cluster.x-k8s.io/stage is removed"},
		"has no effect after a user has completed the maintenance": {
			v1alpha1.StageComplete, "No MachineDrainPolicy selects the Machine, so the annotation maintenance.cluster.x-k8s.io/stage has no effect",
		},
	} {
		t.Run("M145: without a policy, a stage annotation "+name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			machine.DeletionTimestamp, machine.Annotations = nil, map[string]string{v1alpha1.MachineStageAnnotation: string(v1alpha1.StageDrain)}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			remote := workloadCluster().WithObjects(node)
			if tc.present != "" {
				remote.WithObjects(machinedrain.Maintenance(machinedrain.Request{
					ManagementCluster: "here", Cluster: clusterKey, Machine: machine, Node: node, Stage: tc.present, For: v1alpha1.RequestedForStage,
				}))
			}
			management := managementCluster(machine).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote.Build(), clusterKey), clock.RealClock{})
			reconcileOnce(t, r, machine)
			g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonNotManaged))
			g.Expect(conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(tc.want))
		})
	}
}

func TestStageWhilePolicyIsReplaced(t *testing.T) {
	t.Run("M17: the drain of a stage annotation and its condition stay as they are until no policy selects the Machine for certain", func(t *testing.T) {
		g, start, m := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), deletedWorkers(time.Now(), "a")[0]
		m.DeletionTimestamp, m.Finalizers = nil, nil
		m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
		policy := policyForAll()
		management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		reasonAt := func(after time.Duration) string {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			drains, _ := drainingIn(t, remote)
			g.Expect(drains).To(HaveLen(1))
			return conditions.GetReason(m, v1alpha1.MachineNodeMaintenance)
		}
		g.Expect(reasonAt(0)).To(Equal(v1alpha1.ReasonMachineDraining))
		g.Expect(management.Delete(t.Context(), policy.DeepCopy())).To(Succeed())
		g.Expect(reasonAt(time.Second)).To(Equal(v1alpha1.ReasonMachineDraining), "the policy may be replaced")
		live := r.APIReader
		r.APIReader = apiServerOf(nil, provisionedCluster(), policy)
		g.Expect(reasonAt(10*time.Second)).To(Equal(v1alpha1.ReasonMachineDraining), "the watch has not delivered it")
		r.APIReader = live
		g.Expect(reasonAt(20 * time.Second)).To(Equal(v1alpha1.ReasonNotManaged))
	})
}

func TestMachineOutsideRollout(t *testing.T) {
	member := map[string]string{clusterv1.MachineDeploymentNameLabel: "md"}
	for name, tc := range map[string]struct {
		labels map[string]string
		ended  bool
	}{
		"M25: withdraws what a rollout requests for a Machine that has left its MachineDeployment": {nil, true},
		"M25: keeps what a rollout requests for a Machine of its MachineDeployment":                {member, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			machine := deletedMachine()
			machine.DeletionTimestamp, machine.Labels = nil, tc.labels
			node, policy := nodeOf(machine), policyForAll()
			node.Name = machine.Status.NodeRef.Name
			cordoned := machinedrain.Maintenance(machinedrain.Request{
				ManagementCluster: "here", Cluster: clusterKey, Machine: machine, Node: node, Stage: v1alpha1.StageCordon, For: v1alpha1.RequestedForRollout,
			})
			remote := workloadCluster().WithObjects(node, cordoned).Build()
			r := newReconciler(t, managementCluster(machine).WithObjects(policy).Build(), connectedTo(remote, time.Now()), clock.RealClock{})
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(cordoned), cordoned)).To(Succeed())
			g.Expect(cordoned.Spec.Stage == v1alpha1.StageComplete && !cordoned.DeletionTimestamp.IsZero()).To(Equal(tc.ended))
		})
	}
}

func TestCordonAfterAnnouncement(t *testing.T) {
	for name, tc := range map[string]struct {
		announced v1alpha1.DrainPlanDefaults
		ended     bool
	}{
		"M125: recreates an announcement with another drain plan before it cordons the Node": {v1alpha1.DrainPlanDefaultsNone, true},
		"M125: continues an announcement with the drain plan of the policy":                  {v1alpha1.DrainPlanDefaultsPriorityTiers, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			machine := deletedMachine()
			machine.DeletionTimestamp, machine.Annotations[v1alpha1.MachineStageAnnotation] = nil, string(v1alpha1.StageCordon)
			node, policy := nodeOf(machine), policyForAll()
			node.Name = machine.Status.NodeRef.Name
			policy.Spec.DrainPlanDefaults = tc.announced
			announced := machinedrain.Maintenance(machinedrain.Request{
				ManagementCluster: "here", Cluster: clusterKey, Machine: machine, Node: node, Policy: policy, Stage: v1alpha1.StageIdle, For: v1alpha1.RequestedForStage,
			})
			policy.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsPriorityTiers
			remote := workloadCluster().WithObjects(node, announced).Build()
			r := newReconciler(t, managementCluster(machine).WithObjects(policy).Build(), connectedTo(remote, time.Now()), clock.RealClock{})
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(announced), announced)).To(Succeed())
			g.Expect(announced.Spec.Stage).To(Equal(map[bool]v1alpha1.NodeMaintenanceStage{true: v1alpha1.StageComplete, false: v1alpha1.StageCordon}[tc.ended]))
			g.Expect(!announced.DeletionTimestamp.IsZero()).To(Equal(tc.ended))
		})
	}
}

func TestMaintenanceWaitsForNode(t *testing.T) {
	for _, stage := range []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle, v1alpha1.StageCordon, v1alpha1.StageDrain} {
		t.Run("M30: looks for a Node that was deleted and is created again in stage "+string(stage), func(t *testing.T) {
			g, machine := NewWithT(t), runningMachine()
			machine.Annotations[v1alpha1.MachineStageAnnotation] = string(stage)
			management := managementCluster(machine).WithObjects(policyForAll()).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(workloadCluster().Build(), clusterKey), clock.RealClock{})
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(BeNumerically("~", pollInterval, time.Second))
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonMachineCordoning))
		})
	}
}

// ofOtherMachines returns a policy that selects a Cluster and none of its Machines.
func ofOtherMachines(cluster string) *v1alpha1.MachineDrainPolicy {
	p := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "others"}}
	p.Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"cluster": v1alpha1.LabelValue(cluster)}}
	p.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"drained": "yes"}}
	return p
}

// TestDrainedInPlaceWithUnobservedPod drains the Pods of DaemonSets, too, while the API server lists a Pod that the watch has not
// delivered.
func TestDrainedInPlaceWithUnobservedPod(t *testing.T) {
	for name, timeout := range map[string]int32{"without a timeout": 0, "with one": 600} {
		t.Run("M95: the Node is not drained while a Pod was not observed: "+name, func(t *testing.T) {
			machine := deletedMachine()
			machine.DeletionTimestamp = nil
			machine.Annotations[v1alpha1.MachineStageAnnotation] = "Drain"
			machinedrain.RequestDrain(time.Now().Add(-time.Minute))(machine)
			if timeout > 0 {
				machine.Spec.Deletion.NodeDrainTimeoutSeconds = &timeout
			}
			policy := v1alpha1.MachineDrainPolicySpec{DaemonSetPods: v1alpha1.DaemonSetPodsDrain}
			lifted := rules.Compile(rules.Input{DaemonSetPods: v1alpha1.DaemonSetPodsDrain}).Rules
			request := machinedrain.Request{ManagementCluster: "here", For: v1alpha1.RequestedForStage, Rules: lifted}
			f := newDatabaseFixture(t, machine, policy, request, interceptor.Funcs{})
			for range 3 {
				f.confirm()
				stored, err := f.pass()
				f.g.Expect(err).NotTo(HaveOccurred())
				f.g.Expect(conditions.IsTrue(stored, v1alpha1.MachineNodeMaintenance)).To(BeFalse(), "a user may work on the Node, on which the database runs")
			}
		})
	}
}

// TestFirstListAfterTheDrain reconciles a Machine whose drain had ended, while the Pods of its Node are listed again: after a restart, a
// lost contact, or the end of a pause or hold of another Machine of the Cluster.
func TestFirstListAfterTheDrain(t *testing.T) {
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	prepare := func(t *testing.T, machine *clusterv1.Machine, purpose string) *databaseFixture {
		t.Helper()
		machine.Spec.Deletion.NodeDrainTimeoutSeconds, machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = new(int32(600)), new(int32(300))
		machine.Annotations[v1alpha1.DrainStartedAnnotation], machine.Annotations[v1alpha1.DrainEndedAnnotation] = ago(9*time.Minute), ago(4*time.Minute)
		f := newDatabaseFixture(t, machine, v1alpha1.MachineDrainPolicySpec{},
			machinedrain.Request{ManagementCluster: "here", For: purpose, Rules: rules.Compile(rules.Input{}).Rules}, interceptor.Funcs{})
		notObserved := f.maintenance.DeepCopy()
		f.g.Expect(f.remote.Get(t.Context(), client.ObjectKeyFromObject(f.maintenance), notObserved)).To(Succeed())
		notObserved.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodsNotObserved, LastTransitionTime: metav1.Now(),
		}}
		f.g.Expect(f.remote.Status().Update(t.Context(), notObserved)).To(Succeed())
		return f
	}
	t.Run("M94: the wait for volumes does not start again", func(t *testing.T) {
		machine := deletedMachine()
		machine.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(-10 * time.Minute).Truncate(time.Second)))
		began := ago(4 * time.Minute)
		machine.Annotations[v1alpha1.VolumeWaitStartedAnnotation] = began
		f := prepare(t, machine, v1alpha1.RequestedForDeletion)
		stored, err := f.pass()
		f.g.Expect(err).NotTo(HaveOccurred())
		f.g.Expect(stored.Annotations).To(HaveKeyWithValue(v1alpha1.VolumeWaitStartedAnnotation, began))
	})
	t.Run("M94: a Machine that was drained in place keeps its condition", func(t *testing.T) {
		machine := deletedMachine()
		machine.DeletionTimestamp = nil
		machine.Annotations[v1alpha1.MachineStageAnnotation] = "Drain"
		machinedrain.RequestDrain(time.Now().Add(-10 * time.Minute))(machine)
		machine.Status.Conditions = []metav1.Condition{machinedrain.ResultCondition(v1alpha1.ReasonMachineDrained, "The Node is drained")}
		f := prepare(t, machine, v1alpha1.RequestedForStage)
		stored, err := f.pass()
		f.g.Expect(err).NotTo(HaveOccurred())
		f.g.Expect(conditions.IsTrue(stored, v1alpha1.MachineNodeMaintenance)).To(BeTrue())
	})
}
