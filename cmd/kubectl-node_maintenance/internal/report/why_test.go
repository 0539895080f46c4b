package report_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestMachineWhy(t *testing.T) {
	for name, test := range map[string]struct {
		deleted, paused, clusterPaused, clusterAnnotated bool
		want                                             []string
	}{
		"says that a deleted Machine is paused":            {true, true, false, false, []string{"The Machine is paused"}},
		"says that the Cluster of the Machine is paused":   {true, false, true, false, []string{"The Cluster is paused"}},
		"says nothing of a paused Machine without a drain": {false, true, true, false, nil},
		"says nothing of the annotation on the Cluster":    {true, false, false, true, nil},
	} {
		t.Run("K5: why "+name, func(t *testing.T) {
			w1 := machine("w1", nil)
			m := &observe.Machine{Machine: &w1, Cluster: &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: &test.clusterPaused}}}
			if test.clusterAnnotated {
				m.Cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			if test.deleted {
				w1.DeletionTimestamp = ptr.To(metav1.NewTime(now))
			}
			if test.paused {
				w1.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			var messages []string
			for _, problem := range report.MachineWhy(m, nil, nil, nil, nil, machinedrain.NotSkipped).Problems {
				messages = append(messages, problem.Message)
			}
			NewWithT(t).Expect(messages).To(Equal(test.want))
		})
	}
}

func TestExplainPod(t *testing.T) {
	for name, test := range map[string]struct {
		paused  []report.Problem
		limit   int
		want    string
		problem string
	}{
		"says that the Pod is to be evacuated":                 {nil, 2, "The Pod is to be evacuated now.", ""},
		"says that the drain is suspended":                     {[]report.Problem{{Message: "The Machine is paused"}}, 2, "The drain is suspended: The Machine is paused.", "The Machine is paused"},
		"says for which Nodes the drain waits until it starts": {nil, 1, "The drain of the Node has not started. Waiting for Nodes first to be drained (maxParallelNodes allows 1).", "Waiting for Nodes first to be drained (maxParallelNodes allows 1)"},
	} {
		t.Run("K34: why "+name, func(t *testing.T) {
			node, intent, observed := surging(2)
			other := observed.Pods[0].DeepCopy()
			other.Name, other.UID, other.Spec.NodeName = "web-abc-1", "other", "first"
			observed.Pods = append(observed.Pods, *other)
			observed.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, node}
			intent.Maintenance.Spec.MaxParallelNodes = ptr.To(intstr.FromInt(test.limit))
			intent.Present, intent.Paused = intent.Maintenance, test.paused
			g := NewWithT(t)
			why, found := report.ExplainPod("shop", "web-abc-0", intent, observed)
			g.Expect(found).To(BeTrue())
			g.Expect(why.Answer).To(Equal(test.want))
			if test.problem != "" {
				g.Expect(why.Problems).To(ContainElement(HaveField("Message", test.problem)))
			} else {
				g.Expect(why.Problems).To(BeEmpty())
			}
		})
	}
}
