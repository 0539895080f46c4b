package main

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func pod(app, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: app, Name: name, UID: types.UID(name), Labels: map[string]string{appLabel: app}},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(epoch)) }

func TestReadyWebPodsAreCountedAsTheBudgetDoes(t *testing.T) {
	g := NewWithT(t)
	w := newWorld()
	for i := range webReplicas {
		g.Expect(w.web.complete).To(BeFalse())
		w.sawPod(pod(appWeb, fmt.Sprint("web-", i)), false, epoch)
		w.sawPod(pod(appStorage, fmt.Sprint("storage-", i)), false, epoch)
	}
	g.Expect(w.web).To(Equal(webCount{ready: webReplicas, complete: true, least: webReplicas}))
	w.sawPod(pod(appWeb, "web-0", terminating), false, epoch)
	w.sawPod(pod(appWeb, "web-0", terminating), true, epoch)
	w.sawPod(pod(appWeb, "web-1", func(p *corev1.Pod) { p.Status.Conditions = nil }), false, epoch)
	w.sawPod(pod(appWeb, "web-new"), false, epoch)
	g.Expect(w.web).To(Equal(webCount{ready: webReplicas - 1, complete: true, least: webReplicas - 2}))
}

func TestANodeThatIsSchedulableAgainIsRemembered(t *testing.T) {
	g := NewWithT(t)
	w := newWorld()
	node := func(unschedulable bool) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
	}
	w.sawNode(node(false), false, epoch)
	w.sawNode(node(true), false, epoch)
	g.Expect(w.evidence().Uncordoned).To(BeEmpty())
	w.sawNode(node(false), false, epoch)
	w.sawNode(node(true), true, epoch)
	g.Expect(w.evidence().Uncordoned).To(Equal([]string{"n"}))
}

// The demo's MachineDrainRules, compiled and matched by the provider, result in the expected table.
func TestFrameOfTheScene(t *testing.T) {
	g := NewWithT(t)
	w := newWorld()
	var drainRules []clusterv1.MachineDrainRule
	for _, object := range drainIntent() {
		if rule, ok := object.(*clusterv1.MachineDrainRule); ok {
			drainRules = append(drainRules, *rule)
		}
	}
	compiled := rules.Compile(rules.Input{Machine: rules.MachineFacts{Namespace: namespace}, MachineDrainRules: drainRules})
	w.sawMaintenance(&v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "nm", Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: namespace + "/m"}},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, DrainRules: compiled.Rules},
	}, false, epoch)
	awaited := func(p *corev1.Pod) { p.Labels[clusterv1.PodDrainLabel] = "wait-completed" }
	for _, p := range []*corev1.Pod{
		pod(appMonitoring, "monitoring"), pod(appStorage, "storage-0"), pod(appReport, "report", awaited),
		pod(appWeb, "web-0"), pod(appWeb, "web-1"), pod(appWeb, "web-2", terminating),
		pod(appWeb, "web-3", func(p *corev1.Pod) { p.Spec.NodeName = "elsewhere" }),
	} {
		w.sawPod(p, false, epoch)
	}
	w.sawPod(pod(appWeb, "web-gone", terminating), true, epoch)
	w.sawEvacuation(&v1alpha1.Evacuation{
		Spec:   v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: "web-1", UID: "web-1"}},
		Status: v1alpha1.EvacuationStatus{Message: "Waiting for PodDisruptionBudget"},
	}, false, epoch)

	text := func(r podRow) string { return fmt.Sprintf("%s|%s|%s|%s|%s", r.Pod, r.Rule, r.Order, r.State, r.Why) }
	var rows []string
	for _, row := range w.frameOf("m", "n", time.Second).Pods {
		rows = append(rows, text(row))
	}
	g.Expect(rows).To(Equal([]string{
		"web-0|(none)|0|waiting|",
		"web-1|(none)|0|evacuating|Waiting for PodDisruptionBudget",
		"web-2|(none)|0|terminating|",
		"web-gone|(none)|0|deleted|",
		"report|drain-label-wait-completed|0|completing|waiting for the Pod to complete",
		"storage-0|machine-drain-rule/storage-last|100|waiting|Pods with drain order 0 must terminate first",
		"monitoring|machine-drain-rule/monitoring-stays||skipped|",
	}))
}
