package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestDrainTimeoutAppliesToDaemonSets(t *testing.T) {
	g := NewWithT(t)
	deletion := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(after time.Duration) string { return deletion.Add(after).Format(time.RFC3339) }
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "fleet", Name: "m", DeletionTimestamp: new(metav1.NewTime(deletion)), Finalizers: []string{clusterv1.MachineFinalizer},
			Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: "", v1alpha1.DrainStartedAnnotation: at(0), v1alpha1.VolumeWaitStartedAnnotation: at(time.Second)},
		},
		Spec: clusterv1.MachineSpec{Deletion: clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: ptr.To[int32](3600), NodeVolumeDetachTimeoutSeconds: ptr.To[int32](60)}},
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
	m := machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: "here", Cluster: client.ObjectKeyFromObject(cluster), Machine: machine, Node: node, Rules: []v1alpha1.DrainRule{{Name: rules.RuleDaemonSetPods, Behavior: v1alpha1.DrainBehaviorSkip}},
	})
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build()
	remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, m).Build()
	r := &Reconciler{Client: management, Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"}, Recorder: tracing.NewRecorder(t.Context(), nil)}
	start := deletion.Add(time.Second)
	s := &scope{machine: machine, cluster: cluster, policy: &v1alpha1.MachineDrainPolicy{}, client: remote, node: node, now: deletion.Add(10 * time.Second), volumeWaitStart: &start, turn: &machinedrain.Turn{}}
	s.policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain
	g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
	g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	s.maintenance, s.found.Name = m, m.Name

	result, err := r.awaitDaemonSets(t.Context(), s)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.action).To(Equal(wait))
	g.Expect(machinedrain.DaemonSetRuleLifted(s.maintenance)).To(BeTrue())
	g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
	for after, action := range map[time.Duration]action{2 * time.Minute: wait, time.Hour: release} {
		later := &scope{machine: s.machine, cluster: cluster, policy: s.policy, now: deletion.Add(after)} // the workload cluster is unreachable
		got := later.untilDeadline(outcome{action: wait, blind: true})
		g.Expect(got.action).To(Equal(action), "M13: after %s", after)
	}
}
