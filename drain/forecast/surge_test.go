package forecast_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestSurge(t *testing.T) {
	for name, test := range map[string]struct {
		policy v1alpha1.SurgePolicy
		surges map[types.NamespacedName]surge.Observation
		want   string
	}{
		"a budget blocks a Pod whose Deployment has too many replicas for IfSingleReplica": {v1alpha1.SurgeIfSingleReplica, deployment(2),
			"Blocks BudgetExhausted: Surge policy IfSingleReplica does not apply: Deployment default/web declares 2 replicas"},
		"a Deployment with one replica surges":  {v1alpha1.SurgeIfSingleReplica, deployment(1), "Delays Evacuator, Delays BudgetExhausted"},
		"any Deployment surges with Always":     {v1alpha1.SurgeAlways, deployment(2), "Delays Evacuator, Delays BudgetExhausted"},
		"a Deployment that is not known surges": {v1alpha1.SurgeIfSingleReplica, nil, "Delays Evacuator, Delays BudgetExhausted"},
		"without surge only the budget decides": {v1alpha1.SurgeNever, deployment(1), "Blocks BudgetExhausted"},
		"a budget blocks a Pod whose Deployment does not exist": {
			v1alpha1.SurgeAlways, map[types.NamespacedName]surge.Observation{{Namespace: "default", Name: "web"}: {}},
			"Blocks BudgetExhausted: The Deployment of the Pod does not exist",
		},
	} {
		t.Run("K30: "+name, func(t *testing.T) {
			o := forecast.Observation{
				Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Surges: test.surges,
				Budgets: budgets.NewIndex([]*policyv1.PodDisruptionBudget{budget("web", 0)}, nil), Pods: []corev1.Pod{pod("web", ofDeployment)}, Now: now,
			}
			o.Maintenance.Spec.Evacuation.Surge = test.policy
			g := NewWithT(t)
			g.Expect(forecast.DeploymentsOf(o)).To(HaveLen(map[bool]int{true: 0, false: 1}[test.policy == v1alpha1.SurgeNever]))
			got := ""
			for _, obstacle := range forecast.Of(o).Obstacles(now) {
				if got != "" {
					got += ", "
				}
				got += fmt.Sprintf("%s %s", obstacle.Severity, obstacle.Reason)
				if _, refusal, found := strings.Cut(obstacle.Message, ". "); found {
					got += ": " + refusal
				}
			}
			g.Expect(got).To(Equal(test.want))
		})
	}
}

func TestRestartOutlook(t *testing.T) {
	requests := func(replicas int32, change func(*forecast.Observation)) string {
		o := forecast.Observation{
			Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Surges: deployment(replicas),
			Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod("web", ofDeployment)}, Now: now,
		}
		o.Maintenance.Spec.Evacuation.Surge, o.Maintenance.Spec.Evacuation.SurgeMethod = v1alpha1.SurgeAlways, v1alpha1.SurgeMethodRestart
		if change != nil {
			change(&o)
		}
		return forecast.Of(o).Pods[0].Surge.Message
	}
	const restarts = "Restarting Deployment default/web: a rollout replaces all of its Pods (1 replica)."
	t.Run("K44: says that all Pods of the Deployment are replaced, or why not", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(requests(1, nil)).To(Equal(restarts))
		g.Expect(requests(4, nil)).To(Equal("Deployment default/web is not restarted: that requires a maxUnavailable of 0 Pods and a maxSurge of at least 1."))
	})
	t.Run("K44: says that a rollout in progress replaces the Pod", func(t *testing.T) {
		NewWithT(t).Expect(requests(1, func(o *forecast.Observation) {
			o.Surges[types.NamespacedName{Namespace: "default", Name: "web"}].Deployment.Spec.Template.Annotations = map[string]string{v1alpha1.RestartedAt: "1"}
		})).To(Equal(restarts))
	})
	t.Run("K44: says that the Deployment was restarted before, while a drain of another Node continues", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(requests(1, func(o *forecast.Observation) {
			web := types.NamespacedName{Namespace: "default", Name: "web"}
			o.Surges[web].Deployment.Labels = map[string]string{v1alpha1.RestartedAt: fmt.Sprint(now.Unix())}
			other := maintenance("other")
			other.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now)}}
			o.All = []v1alpha1.NodeMaintenance{*other}
		})).To(HavePrefix("Deployment default/web was restarted before"))
	})
}

func TestSurgeOutlook(t *testing.T) {
	const refused, surges = "Surge policy IfSingleReplica does not apply: Deployment default/web declares 2 replicas.",
		"Adding replicas before Pods are removed: Deployment default/web is scaled from 1 to 2 replicas"
	evacuated := func(class string) []v1alpha1.Evacuation {
		p := pod("web", ofDeployment)
		e := evacuation.New(&p, []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassDeployment, Priority: v1alpha1.EvacuatorControllerPriority}}, 0)
		e.CreationTimestamp = metav1.NewTime(now)
		if class != "" {
			e.Status.ActiveEvacuatorClass = &class
		}
		return []v1alpha1.Evacuation{*e}
	}
	waiting := func() []v1alpha1.Evacuation {
		all := evacuated("")
		all[0].Spec.Evacuators, all[0].Status.ActiveEvacuatorCompleted = nil, true
		return all
	}
	requesting := func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + v1alpha1.EvacuatorClassDeployment: "10000/controller"}
	}
	for name, test := range map[string]struct {
		policy      v1alpha1.SurgePolicy
		replicas    int32
		change      func(*corev1.Pod)
		evacuations []v1alpha1.Evacuation
		want        surge.Outlook
		obstacle    string
	}{
		"says to how many replicas the Deployment is scaled": {
			v1alpha1.SurgeIfSingleReplica, 1, nil, nil, surge.Outlook{Message: surges + "."}, surges,
		},
		"says why the Deployment does not surge, also without a budget": {
			v1alpha1.SurgeIfSingleReplica, 2, nil, nil, surge.Outlook{Refusal: surge.TooManyReplicas, Message: refused}, "",
		},
		"says why it does not surge for a Pod that has an Evacuation": {
			v1alpha1.SurgeIfSingleReplica, 2, nil, evacuated(""), surge.Outlook{Refusal: surge.TooManyReplicas, Message: refused}, "",
		},
		"says why it does not surge before the active evacuator completes": {
			v1alpha1.SurgeIfSingleReplica, 2, nil, evacuated(v1alpha1.EvacuatorClassDeployment), surge.Outlook{Refusal: surge.TooManyReplicas, Message: refused}, "",
		},
		"says to how many replicas it is scaled for a Pod that waits already": {
			v1alpha1.SurgeIfSingleReplica, 1, nil, waiting(), surge.Outlook{Message: surges + "."}, surges,
		},
		"says why it does not surge for a Pod that waits already": {
			v1alpha1.SurgeIfSingleReplica, 2, nil, waiting(), surge.Outlook{Refusal: surge.TooManyReplicas, Message: refused}, "",
		},
		"a Pod cannot request a surge that no NodeMaintenance allows": {v1alpha1.SurgeNever, 1, requesting, nil,
			surge.Outlook{Refusal: surge.NotRequested, Message: "No NodeMaintenance of the Pod's Node requests a surge."}, ""},
	} {
		t.Run("K30: "+name, func(t *testing.T) {
			g := NewWithT(t)
			o := forecast.Observation{
				Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Evacuations: test.evacuations,
				Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod("web", ofDeployment)}, Now: now,
			}
			o.Maintenance.Spec.Evacuation.Surge = test.policy
			if test.change != nil {
				test.change(&o.Pods[0])
			}
			if len(forecast.DeploymentsOf(o)) > 0 {
				o.Surges = deployment(test.replicas)
			}
			predicted := forecast.Of(o)
			g.Expect(predicted.Pods[0].Surge).To(HaveValue(Equal(test.want)))
			g.Expect(predicted.Pods[0].Evacuators).To(HaveLen(map[bool]int{true: 1, false: 0}[test.want.Refusal == ""]))
			got := ""
			for _, obstacle := range predicted.Obstacles(now) {
				got += strings.TrimPrefix(obstacle.Message, "Evacuator deployment.apps.k8s.io acts before the eviction: ")
			}
			g.Expect(got).To(Equal(test.obstacle))
		})
	}
}

// deployment is Deployment web with available replicas.
func deployment(replicas int32) map[types.NamespacedName]surge.Observation {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	d.Status = appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas}
	return map[types.NamespacedName]surge.Observation{{Namespace: "default", Name: "web"}: {Deployment: d}}
}
