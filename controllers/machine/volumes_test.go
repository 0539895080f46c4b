package machine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// starting is the observation of a manager that has just started: the Pods and VolumeAttachments are listed, the Namespaces are not.
type starting struct {
	workload.Observation
	pods            []*corev1.Pod
	attachments     []*storagev1.VolumeAttachment
	namespacesKnown bool
}

func (o starting) PodsOn(string) ([]*corev1.Pod, bool) { return o.pods, true }
func (o starting) AttachmentsTo(string) ([]*storagev1.VolumeAttachment, bool) {
	return o.attachments, true
}
func (o starting) NamespaceLabels(string) (map[string]string, bool) { return nil, o.namespacesKnown }
func (o starting) DaemonSetExists(string, string, types.UID) (bool, bool) {
	return false, true
}

func TestVolumesOfFinishedPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "jobs", Name: "backup"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	pod.Spec.Volumes = []corev1.Volume{{
		Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	}}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1"}}
	attachment.Spec.Source.PersistentVolumeName = ptr.To("pv")
	attachment.Status.Attached = true
	m := &v1alpha1.NodeMaintenance{}
	m.Spec.DrainRules = []v1alpha1.DrainRule{{Name: "machine-drain-rule/system", Behavior: v1alpha1.DrainBehaviorSkip,
		Pods: []v1alpha1.DrainRulePodSelector{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"system": "true"}}}}}}
	claim := types.NamespacedName{Namespace: "jobs", Name: "data"}
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("M20: waits for the volumes of a finished Pod that no rule skips; Namespaces known: %t", known), func(t *testing.T) {
			seen, _ := observeNode(starting{pods: []*corev1.Pod{pod}, attachments: []*storagev1.VolumeAttachment{attachment}, namespacesKnown: known}, &corev1.Node{}, m)
			seen.Facts = volumes.Facts{Volumes: map[string]volumes.Volume{"pv": {Found: true, Claim: &claim}}}
			if decision := volumes.Decide(seen); decision.Detached() {
				t.Errorf("released although PV pv is attached: ignored %v", decision.Ignored)
			}
		})
	}
}

func TestDeletedVolumeAttachment(t *testing.T) {
	for name, tc := range map[string]struct{ attached, deleted, waits bool }{
		"M19: waits for a VolumeAttachment that is attached":                       {attached: true, waits: true},
		"M19: waits for one that is being deleted and still attached":              {attached: true, deleted: true, waits: true},
		"M19: does not wait for one that is being deleted and not attached":        {deleted: true},
		"M19: does not wait for one that is not attached, although it is not gone": {},
	} {
		t.Run(name, func(t *testing.T) {
			attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1", Finalizers: []string{"external-attacher/driver"}}}
			attachment.Spec.Source.PersistentVolumeName = ptr.To("pv")
			attachment.Status.Attached = tc.attached
			if tc.deleted {
				attachment.DeletionTimestamp = new(metav1.Now())
			}
			seen, _ := observeNode(starting{attachments: []*storagev1.VolumeAttachment{attachment}}, &corev1.Node{}, &v1alpha1.NodeMaintenance{})
			seen.Facts = volumes.Facts{Volumes: map[string]volumes.Volume{"pv": {Found: true}}}
			if decision := volumes.Decide(seen); decision.Detached() == tc.waits {
				t.Errorf("waits for %v", decision.Waiting)
			}
		})
	}
}

func TestVolumeFacts(t *testing.T) { // M20, M23
	facts := &volumeFacts{}
	machine := types.NamespacedName{Namespace: "default", Name: "m"}
	for i := range 600 { // each time, a skipped Pod with a generic ephemeral volume has replaced the previous one
		claim, volume := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("agent-%d-scratch", i)}, fmt.Sprintf("pv-%d", i)
		seen := volumes.Observation{
			Attachments: []volumes.Attachment{{Name: "csi-" + volume, PersistentVolume: volume}},
			Pods:        []volumes.Pod{{Skipped: true, Claims: []types.NamespacedName{claim}}},
			Facts:       facts.of(machine),
		}
		decision := volumes.Decide(seen)
		for ; !decision.Missing.None(); decision = volumes.Decide(seen) {
			for _, name := range decision.Missing.Volumes {
				seen.Volumes[name] = volumes.Volume{Found: true, Claim: &claim}
			}
			for _, key := range decision.Missing.Claims {
				seen.Claims[key] = volumes.Claim{Volume: volume}
			}
		}
		facts.keep(machine, seen, decision)
		if !decision.Detached() {
			t.Fatalf("after %d Pods, with one volume attached: waits for %v (cached: %d)", i, decision.Waiting, len(facts.of(machine).Volumes))
		}
	}
}

func TestRecreatedClaim(t *testing.T) {
	t.Run("M20: does not wait for the volume of a skipped Pod whose claim was recreated with the same name", func(t *testing.T) {
		g, facts, machine := NewWithT(t), volumeFacts{}, types.NamespacedName{Namespace: "fleet", Name: "m"}
		claim, waits := types.NamespacedName{Namespace: "default", Name: "data"}, []bool{}
		for _, attached := range []string{"old", "old new", "new"} { // the claim is bound to the last one
			seen := volumes.Observation{
				Attached: strings.Fields(attached), Pods: []volumes.Pod{{Skipped: true, Claims: []types.NamespacedName{claim}}}, Facts: facts.of(machine),
			}
			decision := volumes.Decide(seen)
			for ; !decision.Missing.None(); decision = volumes.Decide(seen) {
				for _, key := range decision.Missing.Claims {
					seen.Claims[key] = volumes.Claim{Volume: seen.Attached[len(seen.Attached)-1]}
				}
				for _, name := range decision.Missing.Volumes {
					seen.Volumes[name] = volumes.Volume{Found: true, UniqueNames: []string{name}, Claim: &claim}
				}
			}
			facts.keep(machine, seen, decision)
			waits = append(waits, !decision.Detached())
		}
		g.Expect(waits).To(Equal([]bool{false, true, false}), "it waits until it has read the claim again")
	})
}

func TestAttachedVolumes(t *testing.T) {
	t.Run("M132: a volume that was detached is progress, and one that was attached is not", func(t *testing.T) {
		g, facts, machine := NewWithT(t), volumeFacts{}, types.NamespacedName{Namespace: "fleet", Name: "m"}
		g.Expect(facts.lastDetached(machine)).To(BeZero(), "not observed")
		for second, step := range []struct{ count, since int }{{3, 0}, {3, 0}, {2, 2}, {4, 2}, {4, 2}, {0, 5}} {
			facts.count(machine, step.count, time.Unix(int64(second), 0))
			g.Expect(facts.lastDetached(machine)).To(Equal(time.Unix(int64(step.since), 0)), "%d", second)
		}
		facts.forget(machine)
		g.Expect(facts.lastDetached(machine)).To(BeZero())
	})
}

func TestVolumesOfUnreachableNode(t *testing.T) {
	now, uid := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), types.UID("1")
	prepare := func(t *testing.T, change func(*clusterv1.Machine)) (*Reconciler, *scope) {
		t.Helper()
		machine := deletedMachine()
		machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
		machine.Spec.Deletion.NodeDrainTimeoutSeconds, machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = new(int32(600)), new(int32(300))
		change(machine)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: uid}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		management := managementCluster(machine).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster().WithObjects(node).Build(), now), clocktesting.NewFakePassiveClock(now))
		NewWithT(t).Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
		s := &scope{machine: machine, cluster: provisionedCluster(), node: node, now: now}
		drained := machinedrain.Maintenance(machinedrain.Request{
			ManagementCluster: "here", Cluster: clusterKey, Machine: machine, Node: node, Rules: rules.Compile(rules.Input{}).Rules,
		})
		drained.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
		s.observe(drained)
		return r, s
	}
	pass := func(t *testing.T, r *Reconciler, s *scope) {
		t.Helper()
		g := NewWithT(t)
		result, err := r.awaitVolumesDetached(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.action).To(Equal(proceed))
		g.Expect(s.volumesOver).To(BeFalse(), "Cluster API waits for them if the Node is reachable again")
		g.Expect(s.course().WaitsForVolumes).To(BeFalse())
		g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
	}
	t.Run("M119: nodeVolumeDetachTimeoutSeconds applies in an outage although the Node was unreachable before", func(t *testing.T) {
		r, s := prepare(t, func(*clusterv1.Machine) {})
		s.IsDrained = true
		pass(t, r, s)
		clock := machinedrain.ClockIn(machinedrain.Situation{}, s.machine, now.Add(time.Hour))
		at, part := clock.BlindDeadline(s.machine, now, time.Time{})
		NewWithT(t).Expect(part).To(Equal(machinedrain.PartVolumes))
		NewWithT(t).Expect(at).To(HaveValue(BeTemporally("==", now.Add(5*time.Minute))))
	})
	t.Run("M39: a drain that has timed out ends the wait in an outage at once", func(t *testing.T) {
		r, s := prepare(t, func(machine *clusterv1.Machine) { machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = nil })
		s.drainTimedOut("a budget")
		pass(t, r, s)
		_, part := machinedrain.ClockIn(machinedrain.Situation{}, s.machine, now.Add(time.Hour)).BlindDeadline(s.machine, now, time.Time{})
		NewWithT(t).Expect(part).To(Equal(machinedrain.PartDrain))
	})
	t.Run("M80: the volumes of an unreachable Node that is drained in place are waited for if it is reachable again before the end", func(t *testing.T) {
		r, s := prepare(t, func(machine *clusterv1.Machine) {
			machine.DeletionTimestamp, machine.Finalizers, machine.Annotations[v1alpha1.MachineStageAnnotation] = nil, nil, "Drain"
			machinedrain.RequestDrain(now.Add(-time.Hour))(machine)
		})
		s.IsDrained = true
		pass(t, r, s)
		NewWithT(t).Expect(machinedrain.WasDrained(s.machine)).To(BeFalse())
	})
}

// configured is a ClusterCache whose workload cluster serves no watch.
type configured struct{ clustercache.ClusterCache }

func (configured) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return &rest.Config{Host: "http://127.0.0.1:1"}, nil
}

func TestVolumesThatAreNotInTheCache(t *testing.T) {
	node := func(ready corev1.ConditionStatus, attached ...corev1.UniqueVolumeName) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
		for _, name := range attached {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
		}
		return n
	}
	again := node(corev1.ConditionTrue)
	again.UID = "2"
	for name, tc := range map[string]struct {
		cached, stored *corev1.Node
		answer         error
		timedOut       bool // the drain
		want           action
	}{
		"M19: waits for a volume of the Node that the watch has not delivered": {
			cached: node(corev1.ConditionTrue), stored: node(corev1.ConditionTrue, "v"), want: wait,
		},
		"M19: waits for the volumes of a Node that the watch reports to be unreachable": {
			cached: node(corev1.ConditionUnknown), stored: node(corev1.ConditionTrue, "v"), want: wait,
		},
		"M19: does not wait if the API server reports no volume, either": {
			cached: node(corev1.ConditionTrue), stored: node(corev1.ConditionTrue), want: proceed,
		},
		"M14: does not wait for the volumes of a Node that is unreachable": {
			cached: node(corev1.ConditionUnknown), stored: node(corev1.ConditionUnknown, "v"), want: proceed,
		},
		"M109: waits until another Node of the same name is observed":                {cached: node(corev1.ConditionTrue), stored: again, want: wait},
		"M57: holds the Machine if the Node cannot be read, also beyond the timeout": {cached: node(corev1.ConditionTrue), answer: errConnectionRefused, want: wait},
		"M39: releases it then if the drain has timed out": {
			cached: node(corev1.ConditionUnknown), answer: errConnectionRefused, timedOut: true, want: release,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewWithT(t), time.Now()
			stored := fake.NewClientBuilder().WithScheme(newScheme())
			if tc.stored != nil {
				stored = stored.WithObjects(tc.stored)
			}
			remote := interceptor.NewClient(stored.Build(), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if tc.answer != nil {
						return tc.answer
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			r := readingThrough(configured{connectedTo(remote, now)})
			machine := deletedMachine()
			t.Cleanup(func() { r.Clusters.ReleaseAll(watchOwner(client.ObjectKeyFromObject(machine))) })
			machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
			machine.Spec.Deletion.NodeDrainTimeoutSeconds, machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = new(int32(60)), new(int32(60))
			machine.Annotations[v1alpha1.DrainStartedAnnotation] = now.Add(-50 * time.Minute).Format(time.RFC3339)
			s := &scope{machine: machine, cluster: provisionedCluster(), node: tc.cached, now: now}
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m", Generation: 1}}
			m.Spec.DrainRules = []v1alpha1.DrainRule{{Name: rules.RuleDaemonSetPods, Behavior: v1alpha1.DrainBehaviorSkip}}
			s.observe(m)
			if s.IsDrained = !tc.timedOut; tc.timedOut {
				s.drainTimedOut("a budget")
			} else {
				s.VolumeWaitStart = new(now.Add(-50 * time.Minute))
			}
			r.blocked.Store(client.ObjectKeyFromObject(machine), block{since: now.Add(-10 * time.Minute)})

			result, err := r.confirmVolumes(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			if result.blind {
				result = r.limit(t.Context(), s, result)
			}
			g.Expect(result.action).To(Equal(tc.want))
			g.Expect(result.at.IsZero()).To(Equal(tc.want != wait), "it is reconciled again")
		})
	}
}
