package main

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// Names and sizes of the demo's objects.
const (
	clusterName   = "demo"
	workloadName  = "workload"
	pool          = "workers"
	workers       = 6
	namespace     = metav1.NamespaceDefault // of the Cluster, in the management cluster
	podDelay      = time.Second             // until a Pod is ready, and until a deleted one is removed
	reportRuntime = 12 * time.Second        // of the Job's Pod: longer than the evictions of the web Pods take

	appLabel        = "app"
	appWeb          = "web"
	appStorage      = "storage"
	appMonitoring   = "monitoring"
	appReport       = "report"
	appLogs         = "logs"
	webReplicas     = 60
	webUnavailable  = 2 // maxUnavailable of the budget
	storageReplicas = 2
	storageOrder    = 100
)

// webNeeded is the number of web Pods that must be ready at any time.
const webNeeded = webReplicas - webUnavailable

// drainIntent returns the objects of the operator: a policy, which opts in the Machines of the namespace, and Cluster API's
// MachineDrainRules.
func drainIntent() []client.Object {
	return []client.Object{
		&v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all-machines"}},
		&clusterv1.MachineDrainRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "storage-last"},
			Spec: clusterv1.MachineDrainRuleSpec{
				Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: ptr.To[int32](storageOrder)},
				Pods:  []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: appStorage}}}},
			},
		},
		&clusterv1.MachineDrainRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "monitoring-stays"},
			Spec: clusterv1.MachineDrainRuleSpec{
				Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
				Pods: []clusterv1.MachineDrainRulePodSelector{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
					corev1.LabelMetadataName: appMonitoring,
				}}}},
			},
		},
	}
}

// machines returns the Cluster, its control plane Machine and the MachineDeployment of workers.
func machines(cluster kwok.Cluster) []client.Object {
	objects := append(cluster.Objects(), cluster.ControlPlaneMachine(clusterName+"-control-plane")...)
	return append(objects, cluster.MachineDeployment(pool, workers)...)
}

// newTemplate returns the machine template for the rollout.
func newTemplate() *infrav1.KwokMachineTemplate {
	return &infrav1.KwokMachineTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: pool + "-v2", Labels: map[string]string{clusterv1.ClusterNameLabel: clusterName},
	}}
}

// applications returns the applications of the workload cluster. Some of their Pods prefer the favorite Node.
func applications(favorite string) []client.Object {
	var objects []client.Object
	for _, app := range []string{appWeb, appStorage, appMonitoring, appReport, appLogs} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: app}})
	}
	return append(objects,
		&policyv1.PodDisruptionBudget{
			ObjectMeta: in(appWeb),
			Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(webUnavailable)), Selector: selector(appWeb)},
		},
		&appsv1.DaemonSet{ObjectMeta: in(appLogs), Spec: appsv1.DaemonSetSpec{Selector: selector(appLogs), Template: podTemplate(appLogs, "")}},
		&appsv1.StatefulSet{ObjectMeta: in(appStorage), Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](storageReplicas), Selector: selector(appStorage), Template: podTemplate(appStorage, favorite),
			PodManagementPolicy: appsv1.ParallelPodManagement,
		}},
		&appsv1.Deployment{ObjectMeta: in(appMonitoring), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: selector(appMonitoring), Template: podTemplate(appMonitoring, favorite),
		}},
		&appsv1.Deployment{ObjectMeta: in(appWeb), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](webReplicas), Selector: selector(appWeb), Template: podTemplate(appWeb, ""),
		}},
	)
}

// report returns a Job whose Pod has Cluster API's drain label wait-completed.
func report(favorite string) *batchv1.Job {
	template := podTemplate(appReport, favorite)
	template.Labels[clusterv1.PodDrainLabel] = "wait-completed"
	template.Annotations = map[string]string{controlplane.PodCompleteAfterAnnotation: reportRuntime.String()}
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: in(appReport), Spec: batchv1.JobSpec{Template: template}}
}

func in(app string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: app, Name: app} }

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: app}}
}

// podTemplate prefers the given Node, if any, to spreading: a spread constraint with a large skew has almost no weight, and replaces the
// scheduler's default constraints.
func podTemplate(app, favorite string) corev1.PodTemplateSpec {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{appLabel: app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: app, Image: "example.com/" + app}}},
	}
	if favorite == "" {
		return template
	}
	template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{favorite},
			}}},
		}},
	}}
	template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1000, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector(app),
	}}
	return template
}
