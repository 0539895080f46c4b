// Package advice says what to do about the reasons that block drains, and which section of the guide is about them.
package advice

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// ReasonPaused is the reason of a problem that is not about a Pod.
const ReasonPaused = "Paused"

// Guide is the page about drains that are stuck.
const Guide = "https://github.com/capnm/cluster-api-node-maintenance/blob/main/docs/guide/stuck-drains.md"

// advice is what to do about a reason, and the section of the guide about it.
type advice struct {
	fix, section string
}

const (
	sectionBudget = "a-poddisruptionbudget-allows-no-disruptions"
	sectionAdmit  = "the-api-server-refuses-the-eviction"

	setSurge = " For a Deployment with one replica, set surge: IfSingleReplica in the MachineDrainPolicy."
	// FixNeverAllows is for a PodDisruptionBudget that never allows a disruption, and about which nothing else is known.
	FixNeverAllows = "Change the budget, for example to maxUnavailable: 1 (for Pods without a controller, to an integer minAvailable below their number), " +
		"or add replicas." + setSurge
)

// bySurge has the advice about the reasons for which a surge that was requested does not replace the Pods of a budget.
var bySurge = map[surge.Refusal]string{
	surge.TooManyReplicas: " Or set surge: Always in the MachineDrainPolicy.",
	surge.Edited:          " For the next drain, let the field manager that is named ignore the number of replicas, or remove the field from what it applies.",
	surge.ReplicaFailure:  " For the next drain, change the quota or the admission policy that refuses the new Pod.",
	surge.Unschedulable:   " For the next drain, add capacity for the new Pod.",
	surge.NotAvailable:    " For the next drain, check why the new Pod does not become available.",
}

// OfObstacle returns what to do about an obstacle, and the section of the guide about it, each empty if there is nothing to do. It
// recommends no setting that is made already.
func OfObstacle(o forecast.Obstacle) (fix, link string) {
	fix, link = Of(o.Reason)
	switch {
	case o.NeverAllows:
		fix = changeBudget(o.Settings) + requestSurge(o)
	case o.Reason == string(budgets.BlockedByUnhealthyPods) && o.Settings.AlwaysAllowsUnready:
		fix = "Fix the Pods that are not ready."
	}
	return fix, link
}

// changeBudget returns how to change a PodDisruptionBudget that never allows a disruption.
func changeBudget(is forecast.Settings) string {
	switch {
	case is.WithoutController:
		return "Change the budget to an integer minAvailable below the number of its Pods."
	case is.AllowsWithMorePods:
		return "Change the budget, for example to maxUnavailable: 1, or add replicas."
	default: // more replicas do not help
		return "Change the budget, for example to maxUnavailable: 1."
	}
}

// requestSurge returns how a surge could replace the Pods of a PodDisruptionBudget that never allows a disruption. It is empty if nothing
// is to be changed for that.
func requestSurge(o forecast.Obstacle) string {
	switch {
	case o.NoSurge != "":
		return bySurge[o.NoSurge]
	case !o.Settings.OfDeployment:
		return ""
	case o.Settings.Surge == v1alpha1.SurgeNever:
		return setSurge
	case o.Settings.Surge == v1alpha1.SurgeOnRequest:
		return " Or request a surge with the annotation " + v1alpha1.EvacuatorPriorityAnnotationPrefix + v1alpha1.EvacuatorClassDeployment + " in the Pod template."
	default:
		return ""
	}
}

// OfWarning returns what to do about a warning of a drain whose NodeMaintenance has a DrainLabelPolicy. It is empty if there is nothing to
// do.
func OfWarning(kind forecast.WarningKind, labels v1alpha1.DrainLabelPolicy) string {
	switch {
	case kind != forecast.DoNotDisrupt:
		return ""
	case labels == v1alpha1.DrainLabelPolicyIgnore:
		return "To have the drain wait until such a Pod has completed, add a drain rule with behavior WaitCompleted: the NodeMaintenance ignores drain " +
			"labels. With behavior Skip, the Pod stays on the Node, and is lost when its Machine is deleted."
	default:
		return "To have the drain wait until such a Pod has completed, label it with " + clusterv1.PodDrainLabel + "=wait-completed. With the value skip, the " +
			"Pod stays on the Node, and is lost when its Machine is deleted."
	}
}

// byReason has the advice about each reason of forecast, budgets, and the conditions of Machines and Evacuations.
var byReason = withEvacuators(map[string]advice{
	string(budgets.BudgetExhausted): {
		"If Pods of the budget are not ready, check why. Otherwise the drain continues when replacements are ready; more replicas or a larger " +
			"maxUnavailable make it faster.", sectionBudget,
	},
	string(budgets.BlockedByUnhealthyPods): {
		"Fix the Pods that are not ready, or set unhealthyPodEvictionPolicy: AlwaysAllow in the budget.", "pods-that-are-not-ready-block-their-budget",
	},
	string(budgets.MultipleBudgets):   {"Delete one of the budgets, or change its selector.", "two-budgets-select-one-pod"},
	string(budgets.BudgetNotObserved): {"Check that the workload cluster's kube-controller-manager runs.", "a-budget-is-not-computed"},
	string(budgets.BudgetSyncFailed):  {"Use an integer minAvailable in the budget, or check the controller of the Pods.", "a-budget-is-not-computed"},
	string(budgets.BudgetUnreadable):  {"Fix the selector of the budget.", "a-budget-is-not-computed"},
	string(budgets.BudgetRemoved):     {"", "a-budget-was-deleted-a-moment-ago"},
	string(budgets.EvictionNotServed): {"Enable policy/v1 in the API server.", "the-api-server-serves-no-evictions"},
	forecast.ReasonNeverCompletes: {
		"Remove the label or change the MachineDrainRule, or give the Pod restartPolicy Never or OnFailure.", "a-pod-must-complete",
	},
	forecast.ReasonWaitCompleted: {"", "a-pod-must-complete"},
	forecast.ReasonUndecided: {
		"Grant the missing right, or wait until the missing object exists.", "drain-rules-cannot-be-evaluated-for-a-pod",
	},
	forecast.ReasonDeletionOverdue: {"Remove the finalizers of the Pod, or check the kubelet of the Node.", "a-pod-does-not-terminate"},
	history.WaitTermination: {
		"Check its preStop hook, grace period and finalizers, and the kubelet of the Node.", "a-pod-does-not-terminate",
	},
	forecast.ReasonEvacuator: {"", "an-evacuator-is-active"},
	forecast.ReasonBackoff: {
		"Change tolerations, node affinity or nodeName in the Pod template.", "replacements-return-to-the-cordoned-node",
	},
	forecast.ReasonWaitingForNodes: {
		"Increase maxParallelNodes of the NodeMaintenance, or fix what blocks the other Nodes.", "a-node-waits-for-other-nodes-of-its-nodemaintenance",
	},
	v1alpha1.ReasonInvalidDrainRule:         {"Fix or delete the MachineDrainRule.", "a-machinedrainrule-is-invalid"},
	v1alpha1.ReasonPolicyNotDecodable:       {"Fix or delete the MachineDrainPolicy that is named.", "a-machinedrainpolicy-cannot-be-decoded"},
	ReasonPaused:                            {"Unpause it.", "the-machine-has-the-hook-but-no-condition"},
	v1alpha1.ReasonNodeMaintenanceNameTaken: {"Delete the NodeMaintenance that is named.", "the-name-of-its-nodemaintenance-is-taken"},
	v1alpha1.ReasonWaitingForPreDrainHook: {
		"Ask the owner of the hook. If it waits for this drain, name the hook in ignoredPreDrainHooks of the MachineDrainPolicy.",
		"another-pre-drain-hook-holds-the-drain",
	},
	v1alpha1.ReasonWaitingForTurn: {
		"Increase the limit that is named, or fix what blocks the other drains: the command status shows it.", "the-machine-waits-for-other-machines",
	},
	v1alpha1.ReasonWaitingForVolumeDetach:    {"Check the VolumeAttachments of the Node and the CSI driver's controller.", "volumes-are-still-attached"},
	v1alpha1.ReasonWaitingForWorkloadCluster: {"Check the API server and the kubeconfig Secret of the Cluster.", "the-workload-cluster-cant-be-reached"},
	v1alpha1.ReasonCRDNotServed: {
		"Wait until the manager has restored what it installs, or change what refuses it.", "a-crd-is-missing-in-the-workload-cluster",
	},
	v1alpha1.ReasonNotManaged: {
		"Create a MachineDrainPolicy that selects the Machine, or remove the annotation.", "no-policy-selects-the-machine-any-more",
	},
	v1alpha1.ReasonTimedOut:    {"", "the-drain-timed-out"},
	v1alpha1.ReasonSkipped:     {"", "the-node-was-not-drained"},
	v1alpha1.ReasonHookRemoved: {"", "another-actor-removed-the-hook"},
	v1alpha1.ReasonHandedOver: {
		"Check that the manager that is named runs, or restore the label cluster.x-k8s.io/watch-filter.", "another-manager-must-drain-the-machine",
	},
	v1alpha1.ReasonReconcileFailed: {"Change what refuses the request.", "the-api-server-refuses-a-request"},
	v1alpha1.ReasonCordonFailed:    {"Change what refuses the request.", "the-api-server-refuses-a-request"},
	v1alpha1.ReasonReplacementReturned: {
		"Change tolerations, node affinity or nodeName in the Pod template.", "replacements-return-to-the-cordoned-node",
	},
	v1alpha1.ReasonNamespaceTerminating:          {"Look for finalizers in the namespace.", "the-namespace-is-being-deleted"},
	v1alpha1.ReasonWebhookRefused:                {"Ask the owner of the admission webhook what it waits for.", sectionAdmit},
	v1alpha1.ReasonAdmissionPolicyRefused:        {"Ask the author of the admission policy what it requires.", sectionAdmit},
	v1alpha1.ReasonAdmissionRefused:              {"Change what refuses the eviction.", sectionAdmit},
	v1alpha1.ReasonEvictionForbidden:             {"Give the manager the permission to create pods/eviction in the workload cluster.", sectionAdmit},
	v1alpha1.ReasonAPIServerBusy:                 {"Check the load of the API server, and its FlowSchemas and PriorityLevelConfigurations.", sectionAdmit},
	v1alpha1.ReasonAdmissionFailed:               {"Fix the admission webhook.", sectionAdmit},
	v1alpha1.ReasonNoResponse:                    {"Check the admission webhooks: one may be slow.", sectionAdmit},
	v1alpha1.ReasonEvictionRefused:               {"", sectionAdmit},
	v1alpha1.ReasonDisruptionBudgetRefused:       {"", sectionBudget},
	v1alpha1.ReasonMachineDraining:               {"", "the-reason-is-draining-and-the-message-names-no-pods"},
	v1alpha1.ReasonDaemonSetToleratesMaintenance: {"", "pods-of-a-daemonset-stay"},
	v1alpha1.ReasonDaemonSetPodsNotRecreated:     {"", "pods-of-a-daemonset-stay"},
})

// withEvacuators adds the reasons of the built-in evacuators.
func withEvacuators(all map[string]advice) map[string]advice {
	for _, d := range evacuators.Table {
		for _, reason := range d.Reasons {
			if d.Section != "" {
				all[reason] = advice{"", d.Section}
			}
		}
	}
	return all
}

// Of returns what to do about a reason and the section of the guide about it, each empty if there is nothing to do.
func Of(reason string) (fix, link string) {
	if known, found := byReason[reason]; found {
		fix, link = known.fix, Guide+"#"+known.section
	}
	return fix, link
}
