package report_test

import (
	"bytes"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

type surroundings struct{}

func (surroundings) NamespaceLabels(string) (map[string]string, bool) { return nil, true }

func (surroundings) DaemonSetExists(_, _ string, _ types.UID) (exists, known bool) { return true, true }

// surging is the drain of a Node with Pod shop/web-abc-0 of Deployment shop/web.
func surging(replicas int32) (*corev1.Node, report.Intent, forecast.Observation) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	intent := report.ManualIntent(node, nil)
	intent.Maintenance.Spec.Evacuation.Surge = v1alpha1.SurgeIfSingleReplica
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-abc-0", UID: "pod", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "abc"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "set", Controller: ptr.To(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: "one"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	d.Status = appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas}
	return node, intent, forecast.Observation{
		Maintenance: intent.Maintenance, Node: node, Surroundings: surroundings{}, Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod},
		Surges: map[types.NamespacedName]surge.Observation{{Namespace: "shop", Name: "web"}: {Deployment: d}}, Now: time.Now(),
	}
}

func TestSurge(t *testing.T) {
	const refusal = "Surge policy IfSingleReplica does not apply: Deployment shop/web declares 2 replicas."
	t.Run("K30: plan notes why a Deployment does not surge", func(t *testing.T) {
		g := NewWithT(t)
		drain := report.NodeDrain(surging(2))
		g.Expect(drain.Delays).To(BeEmpty())
		g.Expect(drain.Notes).To(Equal([]string{"No surge for Pod shop/web-abc-0: " + refusal}))
		g.Expect(drain.Pods[0].Surge).To(Equal(&report.Surge{Refusal: "MoreThanOneReplica", Message: refusal}))
	})

	t.Run("K30: plan says to how many replicas a Deployment surges", func(t *testing.T) {
		g := NewWithT(t)
		drain := report.NodeDrain(surging(1))
		g.Expect(drain.Delays).To(HaveLen(1))
		g.Expect(drain.Delays[0].Message).To(HaveSuffix("Deployment shop/web is scaled from 1 to 2 replicas"))
		g.Expect(drain.Notes).To(BeEmpty())
	})

	t.Run("K30: why says whether the Deployment of the Pod surges", func(t *testing.T) {
		g := NewWithT(t)
		_, intent, observed := surging(2)
		why, found := report.ExplainPod("shop", "web-abc-0", intent, observed, false)
		g.Expect(found).To(BeTrue())
		var out bytes.Buffer
		report.WriteWhy(&out, why, observed.Now, terminal.Style{})
		g.Expect(out.String()).To(ContainSubstring("EVACUATORS, in this order\n  -\n  No surge: " + refusal))
	})
}
