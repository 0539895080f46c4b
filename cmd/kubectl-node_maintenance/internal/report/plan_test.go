package report_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

func aPlan() *report.Plan {
	return &report.Plan{
		Context: "management cluster, context prod",
		Drains: []report.Drain{{
			Machine: "default/workers-1", Cluster: "default/c1", Node: "workers-1", Policy: "default/all", DrainTimeoutSeconds: 600, Steps: 2,
			Blockers: []report.Problem{{
				Reason: "BudgetExhausted", Message: "Waiting for PodDisruptionBudget shop/web: 2 healthy Pods required", Pods: []string{"shop/web-1", "shop/web-2"},
				Fix: "Fix it.", Guide: "https://example.com/#budget",
			}},
			Delays: []report.Problem{{Reason: "WaitCompleted", Message: "Waiting for it to complete (\x1b[31mevil\u202e)", Pods: []string{"shop/job"}}},
			Warnings: []report.Warning{
				{Kind: forecast.NotRecreated, Message: "not recreated: there is no controller", Pods: []string{"shop/a\x1b[31m", "shop/b"}},
				{Kind: forecast.DataLeftBehind, Object: "Deployment shop/web", Message: "leaves data behind", Pods: []string{"shop/web-1", "shop/web-2"}},
				{Kind: forecast.DoNotDisrupt, Object: "StatefulSet shop/db", Message: "asks not to evict", Pods: []string{"shop/db-0"}, Fix: "Label it."},
				{Kind: forecast.DoNotDisrupt, Object: "StatefulSet shop/mq", Message: "asks not to evict", Pods: []string{"shop/mq-0"}, Fix: "Label it."},
			},
			Pods: []report.Pod{
				{Namespace: "shop", Name: "web-1", Outcome: forecast.Evacuated, Step: 1, Budgets: []report.Budget{{Name: "shop/web", ExpectedPods: 2}}},
				{Namespace: "shop", Name: "job", Outcome: forecast.Completes, Step: 1, Rule: "drain-label-wait-completed"},
				{
					Namespace: "shop", Name: "db-0", Outcome: forecast.Evacuated, Step: 2, Rule: "machine-drain-rule/storage", Order: 100,
					Evacuators: []string{"statefulset.apps.k8s.io"},
				},
				{Namespace: "kube-system", Name: "logs-x", Outcome: forecast.Stays, Rule: "daemonset-pods"},
			},
			Volumes: []string{"shop/data-db-0"},
		}},
		Gaps:        []string{"No right to get namespaces in Cluster default/c1"},
		WarningGaps: []string{"No right to list pods in Cluster default/c1"},
	}
}

const wantPlan = `Machine default/workers-1, Node workers-1, Cluster default/c1, MachineDrainPolicy default/all
2 Pods evacuated, 1 Pod must complete, 1 Pod left on the Node, in 2 steps; limited to 10m0s ` +
	`(nodeDrainTimeoutSeconds), then the Machine is deleted with the remaining Pods.

BLOCKS: the drain does not finish in the present state
  Pods shop/web-1, shop/web-2: Waiting for PodDisruptionBudget shop/web: 2 healthy Pods required
    Fix: Fix it.
    See: https://example.com/#budget

DELAYS: the drain waits, and continues automatically
  Pod shop/job: Waiting for it to complete (�[31mevil�)

WARNINGS: what the evictions cost applications
  Pods shop/a�[31m, shop/b: not recreated: there is no controller
  2 Pods of Deployment shop/web: leaves data behind
  Pod shop/db-0 of StatefulSet shop/db: asks not to evict
    Fix: Label it.
  Pod shop/mq-0 of StatefulSet shop/mq: asks not to evict

STEP   POD                  OUTCOME     RULE                         ORDER   BUDGET     ALLOWED   EVACUATORS
1      shop/web-1           Evacuated   -                            0       shop/web   0 of 2    -
1      shop/job             Completes   drain-label-wait-completed   0       -          -         -
2      shop/db-0            Evacuated   machine-drain-rule/storage   100     -          -         statefulset.apps.k8s.io
-      kube-system/logs-x   Stays       daemonset-pods               -       -          -         -

Volumes that must detach: shop/data-db-0

NOT READ: the prediction may be incomplete
  No right to get namespaces in Cluster default/c1

NOT READ: warnings may be missing
  No right to list pods in Cluster default/c1

Read from management cluster, context prod. Nothing was changed.
`

func TestWritePlan(t *testing.T) {
	t.Run("K2, K6, K56: blockers come first, and text from clusters does not control the terminal", func(t *testing.T) {
		var out bytes.Buffer
		report.WritePlan(&out, aPlan(), false, terminal.Style{})
		NewWithT(t).Expect(trimmed(out.String())).To(Equal(wantPlan))
	})
}

func TestLongLists(t *testing.T) {
	long := strings.Repeat("x", 250)
	var volumes, pods []string
	for i := range 40 {
		volumes = append(volumes, fmt.Sprintf("shop/data-%d-%s", i, long))
		pods = append(pods, fmt.Sprintf("shop/web-%d-%s", i, long))
	}
	written := func(wide bool) string {
		var out bytes.Buffer
		report.WritePlan(&out, &report.Plan{
			Drains: []report.Drain{{Volumes: volumes, Blockers: []report.Problem{{Pods: pods, Message: "the budget allows no disruption"}}}},
			Notes:  []string{"No surge for " + report.PodNames(pods) + ": the Deployment is paused"},
		}, wide, terminal.Style{})
		return out.String()
	}
	t.Run("K55: a list that is cut says how many more there are, and the wide format has all", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(written(false)).To(And(ContainSubstring("shop/data-9-"), Not(ContainSubstring("shop/data-10-")), ContainSubstring(" and 30 more\n")))
		g.Expect(written(true)).To(ContainSubstring("shop/data-39-"))
	})
	t.Run("K55, K56: of many warnings of a kind the first ten are written, and the wide format has all", func(t *testing.T) {
		var warnings []report.Warning
		for i := range 13 {
			object := fmt.Sprintf("Deployment shop/%d-%s", i, long)
			warnings = append(warnings, report.Warning{Kind: forecast.DataLeftBehind, Object: object, Message: "data", Pods: pods})
		}
		warnings = append(warnings, report.Warning{Kind: forecast.DoNotDisrupt, Message: "asks not to evict", Pods: pods})
		written := func(wide bool) string {
			var out bytes.Buffer
			report.WritePlan(&out, &report.Plan{Drains: []report.Drain{{Warnings: warnings}}}, wide, terminal.Style{})
			return out.String()
		}
		g := NewWithT(t)
		g.Expect(written(false)).To(And(ContainSubstring("40 Pods of Deployment shop/9-x"), Not(ContainSubstring("shop/10-x")), MatchRegexp("…: data\n"),
			ContainSubstring("\n  3 more DataLeftBehind\n  Pods shop/web-0-"), ContainSubstring("and 37 more: asks not to evict\n")))
		g.Expect(written(true)).To(And(ContainSubstring("shop/12-x"), Not(ContainSubstring("3 more DataLeftBehind"))))
	})
	t.Run("K55: long names of Pods do not hide what is said about them", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(written(false)).To(And(ContainSubstring("and 37 more: the budget allows no disruption\n"),
			ContainSubstring("and 37 more: the Deployment is paused\n")))
	})
}

func TestManualName(t *testing.T) {
	nodeOf := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	longest := strings.Repeat("a.", 120) + "b.c-d.e"
	for name, test := range map[string]struct{ node, other string }{
		"of Nodes whose long names differ at their ends": {longest + ".aaaaa", longest + ".aaaab"},
		"of a Node whose name is cut at a period":        {strings.Repeat("a.", 125) + "a", strings.Repeat("a.", 125) + "b"},
	} {
		t.Run("K55: the NodeMaintenances "+name+" have valid and different names", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(validation.IsDNS1123Subdomain(test.node)).To(BeEmpty())
			g.Expect(validation.IsDNS1123Subdomain(report.ManualName(nodeOf(test.node)))).To(BeEmpty())
			g.Expect(report.ManualName(nodeOf(test.node))).NotTo(Equal(report.ManualName(nodeOf(test.other))))
		})
	}
	t.Run("K13: the name of a NodeMaintenance has the name of its Node", func(t *testing.T) {
		NewWithT(t).Expect(report.ManualName(nodeOf("n1"))).To(Equal("kubectl-n1"))
	})
}

// trimmed removes trailing spaces, which editors remove from the expected text.
func trimmed(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestExitCode(t *testing.T) {
	problem, warning, gap := []report.Problem{{}}, []report.Warning{{Kind: forecast.NotRecreated}}, []string{"x"}
	for name, test := range map[string]struct {
		plan             report.Plan
		want, onWarnings int
	}{
		"nothing blocks":                {report.Plan{Drains: []report.Drain{{Delays: problem}}}, 0, 0},
		"a blocker":                     {report.Plan{Drains: []report.Drain{{}, {Blockers: problem}}}, 1, 1},
		"a Pod is undecided":            {report.Plan{Drains: []report.Drain{{Unknown: problem}}}, 3, 3},
		"a warning":                     {report.Plan{Drains: []report.Drain{{}, {Warnings: warning}}}, 0, 1},
		"warnings may be missing":       {report.Plan{Drains: []report.Drain{{}}, WarningGaps: gap}, 0, 3},
		"a warning, others are missing": {report.Plan{Drains: []report.Drain{{Warnings: warning}}, WarningGaps: gap}, 0, 1},
		"a warning and a missing right": {report.Plan{Drains: []report.Drain{{Warnings: warning}}, Gaps: gap}, 3, 1},
		"a warning about all drains":    {report.Plan{Drains: []report.Drain{{}}, Warnings: []report.Warning{{Kind: forecast.MayNotFitTogether}}}, 0, 1},
		"a right is missing":            {report.Plan{Drains: []report.Drain{{}}, Gaps: gap}, 3, 3},
		"a blocker and a missing right": {report.Plan{Drains: []report.Drain{{Blockers: problem}}, Gaps: gap}, 1, 1},
	} {
		t.Run("K2, K60: "+name, func(t *testing.T) {
			NewWithT(t).Expect(test.plan.ExitCode()).To(Equal(test.want))
			NewWithT(t).Expect(test.plan.ExitCodeOnWarnings(forecast.WarningKinds...)).To(Equal(test.onWarnings))
		})
	}
	t.Run("K60: the exit code is that of the kinds of warnings that the user names", func(t *testing.T) {
		g := NewWithT(t)
		plan := report.Plan{Drains: []report.Drain{{Warnings: []report.Warning{{Kind: forecast.DataLeftBehind}}}}, WarningGaps: gap}
		g.Expect(plan.ExitCodeOnWarnings(forecast.DataLeftBehind)).To(Equal(1))
		g.Expect(plan.ExitCodeOnWarnings(forecast.NotRecreated)).To(Equal(0))
		g.Expect(plan.ExitCodeOnWarnings(forecast.NotRecreated, forecast.LastReady)).To(Equal(3), "such warnings may be missing")
		plan.Warnings = []report.Warning{{Kind: forecast.MayNotFitTogether}}
		g.Expect(plan.ExitCodeOnWarnings(forecast.MayNotFitTogether)).To(Equal(1))
		g.Expect(plan.ExitCodeOnWarnings(forecast.NotRecreated)).To(Equal(0))
	})
}

func TestVolumesAfterDaemonSets(t *testing.T) {
	t.Run("K1: no volume needs to detach once the Pods of DaemonSets are drained", func(t *testing.T) {
		lifted := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{v1alpha1.VolumesDetachedAnnotation: "true"}}}
		lifted.Spec.DrainRules = rules.Compile(rules.Input{DaemonSetPods: v1alpha1.DaemonSetPodsDrain}).Rules
		attached := &volumes.Decision{Waiting: map[volumes.Kind][]string{volumes.Claimed: {"default/logs"}}}
		volumesOf := func(present *v1alpha1.NodeMaintenance) []string {
			intent := report.Intent{Policy: &v1alpha1.MachineDrainPolicy{}, Maintenance: lifted, Present: present}
			observed := forecast.Observation{Maintenance: lifted, Node: &corev1.Node{}}
			machine := &observe.Machine{Machine: &clusterv1.Machine{}, Cluster: &clusterv1.Cluster{}}
			return report.MachineDrain(machine, &corev1.Node{}, intent, observed, attached).Volumes
		}
		g := NewWithT(t)
		g.Expect(volumesOf(nil)).To(Equal([]string{"default/logs"}))
		g.Expect(volumesOf(lifted)).To(BeEmpty())
	})
}

func TestDaemonSetsOfUnreachableNode(t *testing.T) {
	t.Run("M152: the plan says that the Pods of DaemonSets stay on an unreachable Node", func(t *testing.T) {
		policy := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}}
		policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain
		w1, node := machine("w1", nil), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", UID: "1"}}
		m := &observe.Machine{
			Machine: &w1, Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}},
			Policies: []v1alpha1.MachineDrainPolicy{policy},
		}
		g := NewWithT(t)
		g.Expect(report.IntentOf(m, node, nil, nil, now).Then).NotTo(BeNil())
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		g.Expect(report.IntentOf(m, node, nil, nil, now).Then).To(BeNil())
	})
}

func TestWarn(t *testing.T) {
	t.Run("K58, K59: plan reads each Cluster with drains once, and warns without what could not be read", func(t *testing.T) {
		node, intent, observed := surging(2)
		observed.Pods[0].Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
		claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
		observed.Pods[0].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}}
		reads := map[string]sets.Set[string]{}
		plan := &report.Plan{}
		for _, cluster := range []string{"a", "unread", "a"} {
			drain := report.NodeDrain(node, intent, observed)
			drain.Cluster, drain.Node = cluster, fmt.Sprintf("n%d", len(plan.Drains))
			plan.Drains = append(plan.Drains, drain)
		}
		plan.Drains = append(plan.Drains, report.Drain{Cluster: "a", Node: "skipped"}, report.Drain{Cluster: "skipped"})
		g := NewWithT(t)
		plan.Warn(func(name string, nodes sets.Set[string], claims []types.NamespacedName) *forecast.Cluster {
			g.Expect(reads).NotTo(HaveKey(name))
			g.Expect(claims).To(ConsistOf(types.NamespacedName{Namespace: "shop", Name: "data"}))
			if reads[name] = nodes; name == "unread" {
				return nil
			}
			cluster := forecast.NewCluster(nil, nodes)
			cluster.Add(&observed.Pods[0])
			return cluster
		})
		g.Expect(reads).To(Equal(map[string]sets.Set[string]{"a": sets.New("n0", "n2", "skipped"), "unread": sets.New("n1")}))
		noPlace, last, refused := HaveField("Kind", forecast.MayFindNoNode), HaveField("Kind", forecast.LastReady), HaveField("Kind", forecast.DoNotDisrupt)
		g.Expect(plan.Drains[0].Warnings).To(ConsistOf(noPlace, last, refused))
		g.Expect(plan.Drains[1].Warnings).To(ConsistOf(refused))
		g.Expect(plan.Drains[2].Warnings).To(ConsistOf(noPlace, last, refused))
		g.Expect(plan.Warnings).To(BeEmpty())
	})

	t.Run("K63: plan warns once for each Cluster whose drains evict Pods that do not fit together", func(t *testing.T) {
		node, intent, observed := surging(2)
		plan := &report.Plan{Drains: make([]report.Drain, 5)}
		for i, cluster := range []string{"a", "b", "a", "roomy", "unread"} {
			observed.Pods = []corev1.Pod{*observed.Pods[0].DeepCopy()}
			observed.Pods[0].Name = fmt.Sprint("web-", i)
			plan.Drains[i] = report.NodeDrain(node, intent, observed)
			plan.Drains[i].Cluster = cluster
		}
		plan.Warn(func(name string, nodes sets.Set[string], _ []types.NamespacedName) *forecast.Cluster {
			if name == "unread" {
				return nil
			}
			other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
			other.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
			return forecast.NewCluster([]*corev1.Node{other}, nodes)
		})
		message := "each alone may find a place, but 1 of the 2 may find none together on 1 other Node: not enough free pods (1)"
		g := NewWithT(t)
		g.Expect(plan.Warnings).To(Equal([]report.Warning{
			{Kind: forecast.MayNotFitTogether, Object: "Cluster a", Pods: []string{"shop/web-0", "shop/web-2"}, Message: message},
		}))
		var out bytes.Buffer
		report.WritePlan(&out, plan, false, terminal.Style{})
		g.Expect(out.String()).To(ContainSubstring("\nWARNINGS: what all these drains together cost applications\n  2 Pods of Cluster a: " + message + "\n"))
	})
}
