package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
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
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// App is a generated workload.
type App struct {
	Name     string
	Kind     string // Deployment, StatefulSet, DaemonSet, Job or Pod
	Replicas int32
	// Budget is a key of budgetSpecs, or two: two budgets.
	Budget string
	// Protection is "", label-skip, label-wait, rule-skip or rule-wait.
	Protection string
	// Order is the drain order that a MachineDrainRule sets, or nil.
	Order *int32
	// Ready and Deletion are the delays of its Pods.
	Ready, Deletion time.Duration
	// Critical Pods have a higher priority.
	Critical bool
	// Volume Pods share a PersistentVolume that is attached to each of their Nodes.
	Volume bool
}

const twoBudgets = "two"

// budgetSpecs are the generated PodDisruptionBudgets. The budgets never and all allow no disruption.
var budgetSpecs = map[string]func(replicas int32) policyv1.PodDisruptionBudgetSpec{
	"max-1":    func(int32) policyv1.PodDisruptionBudgetSpec { return maxUnavailable(intstr.FromInt32(1)) },
	"max-half": func(int32) policyv1.PodDisruptionBudgetSpec { return maxUnavailable(intstr.FromString("50%")) },
	"never":    func(int32) policyv1.PodDisruptionBudgetSpec { return maxUnavailable(intstr.FromInt32(0)) },
	"min-1":    func(n int32) policyv1.PodDisruptionBudgetSpec { return minAvailable(intstr.FromInt32(n - 1)) },
	"all":      func(n int32) policyv1.PodDisruptionBudgetSpec { return minAvailable(intstr.FromInt32(n)) },
}

func maxUnavailable(n intstr.IntOrString) policyv1.PodDisruptionBudgetSpec {
	return policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &n}
}

func minAvailable(n intstr.IntOrString) policyv1.PodDisruptionBudgetSpec {
	return policyv1.PodDisruptionBudgetSpec{MinAvailable: &n}
}

// NewApps generates workloads. Their names are unique and none is a prefix of another.
func NewApps(random *rand.Rand) []App {
	kinds := []string{"Deployment", "Deployment", "Deployment", "Deployment", "StatefulSet", "StatefulSet", "DaemonSet", "Job", "Pod", "Pod"}
	budgets := []string{"", "max-1", "max-1", "max-1", "max-half", "max-1", "max-half", "min-1", "min-1", "min-1", "", "never", "all", twoBudgets}
	protections := []string{"", "", "", "", "", "", "", "", "", "label-skip", "label-wait", "rule-skip", "rule-wait"}
	orders := []*int32{nil, nil, ptr.To[int32](-1), ptr.To[int32](1), ptr.To[int32](2)}
	var apps []App
	for i := range 6 + random.IntN(4) {
		app := App{
			Kind: pick(random, kinds), Replicas: 1 + random.Int32N(6), Budget: pick(random, budgets), Protection: pick(random, protections), Order: pick(random, orders),
			Ready: time.Duration(random.IntN(4)) * 500 * time.Millisecond, Deletion: time.Duration(random.IntN(7)) * 500 * time.Millisecond,
			Critical: random.IntN(6) == 0, Volume: random.IntN(4) == 0,
		}
		app.Name = fmt.Sprintf("%s-%d", strings.ToLower(app.Kind), i)
		switch app.Kind {
		case "DaemonSet":
			app.Budget, app.Protection = "", strings.Replace(app.Protection, "-wait", "-skip", 1) // its Pods never complete
		case "Job":
			app.Budget = ""
		case "Pod":
			app.Budget = pick(random, []string{"", "min-1", "min-1", "all"}) // others need a controller
		}
		if strings.HasPrefix(app.Protection, "rule-") {
			app.Order = nil
		}
		apps = append(apps, app)
	}
	return apps
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// Blocks returns whether Pods of the workload may block drains indefinitely. No controller replaces the Pods of the kind Pod.
func (a App) Blocks() bool {
	return a.Kind == "Pod" && a.Budget != "" || a.Budget == "never" || a.Budget == "all" || a.Budget == twoBudgets || strings.HasSuffix(a.Protection, "-wait")
}

// volumeOf returns the name of the PersistentVolume of a claim.
func volumeOf(namespace, claim string) string { return namespace + "-" + claim }

func (a App) labels() map[string]string { return map[string]string{"app": a.Name} }

func (a App) template() corev1.PodTemplateSpec {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: a.labels(), Annotations: map[string]string{
			controlplane.PodReadyDelayAnnotation: a.Ready.String(), controlplane.PodDeletionDelayAnnotation: a.Deletion.String(),
		}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: a.labels()},
			}},
		},
	}
	switch a.Protection {
	case "label-skip":
		template.Labels[clusterv1.PodDrainLabel] = "skip"
	case "label-wait":
		template.Labels[clusterv1.PodDrainLabel] = "wait-completed"
	}
	if a.Critical {
		template.Spec.PriorityClassName = "system-cluster-critical"
	}
	return template
}

// Objects returns the objects of the workload in the workload cluster. Bare Pods are bound to the Nodes in turn.
func (a App) Objects(namespace string, nodes []string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: a.Name, Labels: a.labels()}
	selector := &metav1.LabelSelector{MatchLabels: a.labels()}
	template := a.template()
	var objects []client.Object
	if a.Volume {
		volume := storage.VolumeFor(volumeOf(namespace, a.Name), namespace, a.Name)
		objects = append(objects, volume, &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: storage.ClaimOf(volume.Name)})
		storage.Mount(&template.Spec, a.Name)
	}
	switch a.Kind {
	case "Deployment":
		objects = append(objects, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &a.Replicas, Selector: selector, Template: template}})
	case "StatefulSet":
		objects = append(objects, &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &a.Replicas, Selector: selector, Template: template}})
	case "DaemonSet":
		objects = append(objects, &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}})
	case "Job":
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		template.Annotations[controlplane.PodCompleteAfterAnnotation] = "15s"
		objects = append(objects, &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Completions: &a.Replicas, Parallelism: &a.Replicas, Template: template}})
	case "Pod":
		for i := range a.Replicas {
			pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
			pod.Namespace, pod.Name, pod.Spec.NodeName = namespace, fmt.Sprintf("%s-%d", a.Name, i), nodes[int(i)%len(nodes)]
			objects = append(objects, pod)
		}
	}
	return append(objects, a.budgets(meta, selector)...)
}

func (a App) budgets(meta metav1.ObjectMeta, selector *metav1.LabelSelector) []client.Object {
	names := []string{a.Budget}
	if a.Budget == twoBudgets {
		names = []string{"max-1", "max-half"}
	}
	var budgets []client.Object
	for i, name := range names {
		spec, ok := budgetSpecs[name]
		if !ok {
			continue
		}
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: *meta.DeepCopy(), Spec: spec(a.Replicas)}
		budget.Name += strings.Repeat("-second", i)
		budget.Spec.Selector = selector
		budgets = append(budgets, budget)
	}
	return budgets
}

// Rule returns the MachineDrainRule of the workload without a namespace, or nil. The prefix makes its name unique to the run.
func (a App) Rule(prefix string) *clusterv1.MachineDrainRule {
	drain := clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: a.Order}
	switch a.Protection {
	case "rule-skip":
		drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
	case "rule-wait":
		drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted
	default:
		if a.Order == nil {
			return nil
		}
	}
	return &clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{
			Name:   prefix + "-" + a.Name,
			Labels: map[string]string{"clusterctl.cluster.x-k8s.io/move": ""}, // else clusterctl move leaves it behind
		},
		Spec: clusterv1.MachineDrainRuleSpec{Drain: drain, Pods: []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: a.labels()}}}},
	}
}

// NewPolicy generates the policy of the Machines.
func NewPolicy(random *rand.Rand) v1alpha1.MachineDrainPolicySpec {
	spec := v1alpha1.MachineDrainPolicySpec{}
	spec.Surge = pick(random, []v1alpha1.SurgePolicy{v1alpha1.SurgeNever, v1alpha1.SurgeIfSingleReplica, v1alpha1.SurgeAlways})
	spec.DaemonSetPods = pick(random, []v1alpha1.DaemonSetPodsPolicy{v1alpha1.DaemonSetPodsSkip, v1alpha1.DaemonSetPodsDrain})
	spec.StatefulSetPods = pick(random, []v1alpha1.StatefulSetPodsPolicy{v1alpha1.StatefulSetPodsOrdered, v1alpha1.StatefulSetPodsUnordered})
	spec.OnTimeout = pick(random, []v1alpha1.OnTimeoutPolicy{v1alpha1.OnTimeoutRelease, v1alpha1.OnTimeoutDelete})
	spec.Rollout.OutdatedNodes = pick(random, []v1alpha1.OutdatedNodesPolicy{
		v1alpha1.OutdatedNodesIgnore, v1alpha1.OutdatedNodesAnnounce, v1alpha1.OutdatedNodesCordon,
	})
	spec.UnhealthyBudget = pick(random, []v1alpha1.UnhealthyBudgetPolicy{v1alpha1.UnhealthyBudgetRespect, v1alpha1.UnhealthyBudgetOverride})
	if random.IntN(3) == 0 {
		spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
	}
	return spec
}
