package command

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// TestEndedDrains has a management cluster whose only Machine was drained and deleted.
func TestEndedDrains(t *testing.T) {
	group, machines := v1alpha1.GroupVersion.String(), "/apis/"+clusterv1.GroupVersion.String()+"/namespaces/default/machines"
	policies := "/apis/" + group + "/namespaces/default/machinedrainpolicies"
	policy := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}}
	policy.Status.RecentDrains = []v1alpha1.RecentDrain{{Machine: "w1", MachineUID: "uid", Cluster: "prod", Node: "n1", DrainOutcome: v1alpha1.DrainOutcome{
		EndTime: metav1.NewTime(time.Now().Add(-20 * time.Minute)), Pods: v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1},
	}}}
	answers := map[string]any{
		machines: clusterv1.MachineList{TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineList"}},
		policies: v1alpha1.MachineDrainPolicyList{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "MachineDrainPolicyList"}, Items: []v1alpha1.MachineDrainPolicy{policy},
		},
	}
	status := func(t *testing.T, args ...string) (stdout, stderr string, code int) {
		t.Helper()
		address, _ := serving(t, answers, "Machine", "Cluster")
		return run(append([]string{"status", "--server", address, "--kubeconfig", os.DevNull}, args...)...)
	}
	for _, args := range [][]string{nil, {"cluster", "prod"}, {"machine", "w1"}, {"node", "n1"}} {
		t.Run("K61: status says what became of the evicted Pods of a Machine that is deleted", func(t *testing.T) {
			g := NewWithT(t)
			stdout, stderr, code := status(t, args...)
			g.Expect(code).To(BeZero(), stderr)
			g.Expect(stdout).To(ContainSubstring("Machine default/w1, ended 20m ago: 1 evicted: 1 not replaced; not read yet\n"))
		})
	}
	for _, args := range [][]string{{"cluster", "other"}, {"machine", "w2"}, {"node", "n2"}, {"machinedeployment", "w1"}} {
		t.Run("K61: status of another "+args[0]+" says nothing about it", func(t *testing.T) {
			g := NewWithT(t)
			_, stderr, code := status(t, args...)
			g.Expect(code).To(Equal(3))
			g.Expect(stderr).To(ContainSubstring("no Machine matches"))
		})
	}
	t.Run("K61: the recording of a MachineDeployment has the drains of the Machines that it has observed", func(t *testing.T) {
		g, all := NewWithT(t), []v1alpha1.MachineDrainPolicy{policy}
		g.Expect(endedDrains(all, "machinedeployment", "workers", sets.New("default/w1"))).To(HaveLen(1))
		g.Expect(endedDrains(all, "machinedeployment", "workers", sets.New("other/w1"))).To(BeEmpty())
	})
	// watched returns what the live view shows. drained are Machines that it has shown before.
	watched := func(t *testing.T, kind string, drained ...string) func() *report.Status {
		t.Helper()
		address, _ := serving(t, answers, "Machine", "Cluster")
		c, err := observe.NewConnections(t.Context(), &rest.Config{Host: address}, "test", "")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		w, err := observe.NewWatch(t.Context(), c, machineSelection("default", kind, "workers"))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return func() *report.Status { return watchedStatus(t.Context(), c, w, kind, "workers", sets.New(drained...)) }
	}
	ofProd := HaveField("Clusters", HaveExactElements(HaveField("Ended", HaveExactElements(HaveField("Machine", "default/w1")))))
	t.Run("K75: the live view has the drains of Machines that are deleted", func(t *testing.T) {
		NewWithT(t).Eventually(watched(t, ""), "1m").Should(HaveValue(ofProd))
	})
	t.Run("K75: the live view of a MachineDeployment has the drains of the Machines that it has shown", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(watched(t, "machinedeployment", "default/w1"), "1m").Should(HaveValue(ofProd))
		g.Consistently(watched(t, "machinedeployment", "default/w2"), "1s").Should(HaveValue(Not(ofProd)))
	})
	for name, answer := range map[string]metav1.Status{
		"that the user may not list":    {Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden},
		"that the server fails to list": {Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError},
	} {
		t.Run("K61, K75: policies "+name+" are a gap", func(t *testing.T) {
			g := NewWithT(t)
			answers[policies] = answer
			stdout, stderr, code := status(t)
			g.Expect(code).To(BeZero(), stderr)
			g.Expect(stdout).To(MatchRegexp("NOT READ\n.*(machinedrainpolicies|MachineDrainPolicies)"))
			g.Eventually(watched(t, ""), "1m").Should(HaveField("Gaps", ContainElement(ContainSubstring("MachineDrainPolicy"))))
		})
	}
}
