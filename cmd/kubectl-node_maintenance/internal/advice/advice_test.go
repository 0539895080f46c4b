package advice

import (
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestReasonsOfMachines(t *testing.T) {
	for _, reason := range []string{
		v1alpha1.ReasonMachineDraining, v1alpha1.ReasonWaitingForTurn, v1alpha1.ReasonInvalidDrainRule, v1alpha1.ReasonNodeMaintenanceNameTaken,
		v1alpha1.ReasonWaitingForVolumeDetach, v1alpha1.ReasonWaitingForWorkloadCluster, v1alpha1.ReasonCRDNotServed, v1alpha1.ReasonNotManaged,
		v1alpha1.ReasonHandedOver, v1alpha1.ReasonHookRemoved, v1alpha1.ReasonReconcileFailed, v1alpha1.ReasonTimedOut, v1alpha1.ReasonSkipped,
		v1alpha1.ReasonPolicyNotDecodable, v1alpha1.ReasonWaitingForPreDrainHook, v1alpha1.ReasonCordonFailed,
	} {
		t.Run("K2: the guide explains the reason "+reason+" of a Machine", func(t *testing.T) {
			if _, section := Of(reason); section == "" {
				t.Error("no section of the guide")
			}
		})
	}
}

func TestOfObstacle(t *testing.T) {
	never := func(is forecast.Settings, noSurge surge.Refusal) forecast.Obstacle {
		return forecast.Obstacle{Reason: string(budgets.BudgetExhausted), NeverAllows: true, NoSurge: noSurge, Settings: is}
	}
	const change = "Change the budget, for example to maxUnavailable: 1"
	for _, tc := range []struct {
		name     string
		obstacle forecast.Obstacle
		want     string
	}{
		{
			"K41: a surge for a Deployment whose policy requests none", never(forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeNever}, ""),
			change + ". For a Deployment with one replica, set surge: IfSingleReplica in the MachineDrainPolicy.",
		},
		{"K41: no surge for other Pods", never(forecast.Settings{Surge: v1alpha1.SurgeNever}, ""), change + "."},
		{"K41: no surge that is requested", never(forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeAlways}, ""), change + "."},
		{"K41: no surge that is requested and refused", never(forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeAlways}, surge.Recreated), change + "."},
		{
			"K41: surge Always for more replicas", never(forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeIfSingleReplica}, surge.TooManyReplicas),
			change + ". Or set surge: Always in the MachineDrainPolicy.",
		},
		{
			"K41: the annotation where the policy allows it", never(forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeOnRequest}, ""),
			change + ". Or request a surge with the annotation evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io in the Pod template.",
		},
		{"K41: more replicas only if they help", never(forecast.Settings{AllowsWithMorePods: true}, ""), change + ", or add replicas."},
		{
			"K41: an integer minAvailable for Pods without a controller",
			never(forecast.Settings{WithoutController: true}, ""), "Change the budget to an integer minAvailable below the number of its Pods.",
		},
		{
			"K41: AlwaysAllow where it is not set", forecast.Obstacle{Reason: string(budgets.BlockedByUnhealthyPods)},
			"Fix the Pods that are not ready, or set unhealthyPodEvictionPolicy: AlwaysAllow in the budget.",
		},
		{
			"K41: not AlwaysAllow where it is set",
			forecast.Obstacle{Reason: string(budgets.BlockedByUnhealthyPods), Settings: forecast.Settings{AlwaysAllowsUnready: true}},
			"Fix the Pods that are not ready.",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if fix, link := OfObstacle(tc.obstacle); fix != tc.want || link == "" {
				t.Errorf("got %q, %q", fix, link)
			}
		})
	}
}

func TestOfWarning(t *testing.T) {
	t.Run("K57: the label for which the drain waits, unless the NodeMaintenance ignores labels, and that a skipped Pod is lost", func(t *testing.T) {
		g := NewWithT(t)
		lost := ContainSubstring("is lost when its Machine is deleted")
		g.Expect(OfWarning(forecast.DoNotDisrupt, v1alpha1.DrainLabelPolicyHonor)).To(And(ContainSubstring("cluster.x-k8s.io/drain=wait-completed"), lost))
		g.Expect(OfWarning(forecast.DoNotDisrupt, v1alpha1.DrainLabelPolicyIgnore)).To(And(Not(ContainSubstring("cluster.x-k8s.io/drain")), lost))
		g.Expect(OfWarning(forecast.NotRecreated, v1alpha1.DrainLabelPolicyHonor)).To(BeEmpty())
	})
}

// TestGuide asserts that each link leads to a section of the guide.
func TestGuide(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile("../../../../docs/guide/stuck-drains.md")
	g.Expect(err).NotTo(HaveOccurred())
	notInAnchor := regexp.MustCompile(`[^a-z0-9 -]`)
	var sections []string
	for line := range strings.SplitSeq(string(content), "\n") {
		if title, found := strings.CutPrefix(line, "### "); found {
			sections = append(sections, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
		}
	}
	g.Expect(byReason).To(HaveKey(v1alpha1.ReasonWaitingForReplica), "the reasons of built-in evacuators")
	for _, known := range byReason {
		g.Expect(sections).To(ContainElement(known.section))
	}
}
