package forecast_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// surroundings knows the Namespace default and every DaemonSet.
type surroundings struct{}

func (surroundings) NamespaceLabels(namespace string) (map[string]string, bool) {
	return nil, namespace == "default"
}

func (surroundings) DaemonSetExists(_, _ string, _ types.UID) (exists, known bool) { return true, true }

func node(name string, changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for _, change := range changes {
		change(n)
	}
	return n
}

func pod(name string, changes ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "one", RestartPolicy: corev1.RestartPolicyAlways},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func ofDaemonSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", UID: "logs", Controller: ptr.To(true)}}
}

func rule(app string, behavior v1alpha1.DrainBehavior, order int32) v1alpha1.DrainRule {
	r := v1alpha1.DrainRule{
		Name: "rule/" + app, Behavior: behavior, Pods: []v1alpha1.DrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
	}
	if behavior == v1alpha1.DrainBehaviorDrain {
		r.Order = &order
	}
	return r
}

func maintenance(name string, added ...v1alpha1.DrainRule) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)}}
	m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("one")
	m.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsNone
	m.Spec.DrainRules = slices.Concat(rules.Compile(rules.Input{}).Rules, added)
	return m
}

// budget covers the Pods of an application and allows so many disruptions.
func budget(app string, allowed int32) *policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1 + allowed},
	}
}

func TestOf(t *testing.T) {
	order := func(o *forecast.Observation) {
		o.Maintenance = maintenance("m", rule("db", v1alpha1.DrainBehaviorDrain, 10), rule("job", v1alpha1.DrainBehaviorWaitCompleted, 0),
			rule("keep", v1alpha1.DrainBehaviorSkip, 0))
		o.Pods = []corev1.Pod{pod("db"), pod("keep"), pod("web"), pod("job"), pod("logs", ofDaemonSet)}
	}
	for name, test := range map[string]struct {
		change func(*forecast.Observation)
		want   []string
	}{
		"Pods with a lower drain order are evacuated first, and later steps wait for Pods that must complete": {order, []string{
			"job: Completes in step 1", "web: Evacuated in step 1", "db: Evacuated in step 2", "keep: Stays in step 0", "logs: Stays in step 0",
		}},
		"Pods of DaemonSets are last where the policy drains them after all others": {func(o *forecast.Observation) {
			order(o)
			o.Then = o.Maintenance.DeepCopy()
			o.Then.Spec.DrainRules = slices.Concat(rules.Compile(rules.Input{DaemonSetPods: v1alpha1.DaemonSetPodsDrain}).Rules, []v1alpha1.DrainRule{
				rule("keep", v1alpha1.DrainBehaviorSkip, 0),
			})
		}, []string{
			"job: Completes in step 1", "web: Evacuated in step 1", "db: Evacuated in step 2", "logs: Evacuated in step 3", "keep: Stays in step 0",
		}},
		"a Pod that has completed needs nothing": {func(o *forecast.Observation) {
			o.Pods = []corev1.Pod{pod("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}
		}, []string{"done: Finished in step 0"}},
		"a Pod whose namespace is not known is undecided": {func(o *forecast.Observation) {
			elsewhere := rule("web", v1alpha1.DrainBehaviorSkip, 0)
			elsewhere.Pods[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			o.Maintenance = maintenance("m", elsewhere)
			o.Pods = []corev1.Pod{pod("web", func(p *corev1.Pod) { p.Namespace = "other" }), pod("api")}
		}, []string{"api: Evacuated in step 1", "web: Undecided in step 1"}},
		"another NodeMaintenance that lets a Pod complete decides": {func(o *forecast.Observation) {
			o.Others = []planinput.Drain{{Maintenance: maintenance("other", rule("web", v1alpha1.DrainBehaviorWaitCompleted, 0)), Nodes: []*corev1.Node{node("one")}}}
			o.Pods = []corev1.Pod{pod("web")}
		}, []string{"web: Completes in step 1"}},
	} {
		t.Run("K1: "+name, func(t *testing.T) {
			o := forecast.Observation{Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Budgets: budgets.NewIndex(nil, nil), Now: now}
			test.change(&o)
			var got []string
			for _, p := range forecast.Of(o).Pods {
				got = append(got, fmt.Sprintf("%s: %s in step %d", p.Name, p.Outcome, p.Step))
			}
			NewWithT(t).Expect(got).To(Equal(test.want))
		})
	}
}

// ofDeployment makes a Pod one of Deployment web.
func ofDeployment(p *corev1.Pod) {
	p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "abc"
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "web-abc", Controller: ptr.To(true)}}
}

// ofSet makes a Pod one of StatefulSet db.
func ofSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}}
}

func TestOrder(t *testing.T) {
	db := types.NamespacedName{Namespace: "default", Name: "db"}
	set := func(change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: db.Namespace, Name: db.Name, UID: "db"}}
		change(s)
		return s
	}
	ordered := set(func(*appsv1.StatefulSet) {})
	// active is an Evacuation of Pod db-1 in which the evacuator for StatefulSets acts.
	active := func(o *forecast.Observation) {
		e := evacuation.New(&o.Pods[1], []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassStatefulSet, Priority: 1}}, 1800)
		e.CreationTimestamp = metav1.NewTime(now)
		e.Status.ActiveEvacuatorClass, e.Status.EvacuationProgressTimestamp = ptr.To(v1alpha1.EvacuatorClassStatefulSet), ptr.To(metav1.NewTime(now))
		o.Evacuations = []v1alpha1.Evacuation{*e}
	}
	const acts = "default/db-0 default/db-1: Evacuator statefulset.apps.k8s.io acts before the eviction"
	for name, test := range map[string]struct {
		sets   map[types.NamespacedName]*appsv1.StatefulSet
		change func(*forecast.Observation)
		want   string
		atOnce int
	}{
		"says how many Pods of a StatefulSet wait for others": {map[types.NamespacedName]*appsv1.StatefulSet{db: ordered}, nil,
			acts + ": the Pods of StatefulSet default/db are evicted one at a time, the highest ordinal first; 1 of 2 wait at most 3m0s each for the replacement of " +
				"the one before", 0},
		"expects no delay of a Pod that waits for no other": {
			map[types.NamespacedName]*appsv1.StatefulSet{db: ordered}, func(o *forecast.Observation) { o.Pods = o.Pods[:1] }, "", 0,
		},
		"expects no delay with podManagementPolicy Parallel": {map[types.NamespacedName]*appsv1.StatefulSet{db: set(func(s *appsv1.StatefulSet) {
			s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		})}, nil, "", 2},
		"expects no delay with update strategy OnDelete": {map[types.NamespacedName]*appsv1.StatefulSet{db: set(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		})}, nil, "", 2},
		"expects no delay if the StatefulSet does not exist": {map[types.NamespacedName]*appsv1.StatefulSet{db: nil}, nil, "", 2},
		"expects that an evacuator which is active completes where the StatefulSet requires no order": {
			map[types.NamespacedName]*appsv1.StatefulSet{db: nil}, active, "", 2},
		"expects that an evacuator which is active completes where no NodeMaintenance requests an order any more": {
			map[types.NamespacedName]*appsv1.StatefulSet{db: ordered}, func(o *forecast.Observation) {
				active(o)
				o.Maintenance.Spec.Evacuation.StatefulSetPods = v1alpha1.StatefulSetPodsUnordered
			}, "", 2},
		"does not know the delay if the StatefulSet was not read": {nil, nil, acts + " if StatefulSet default/db requires an order: it was not read", 0},
		"says that a Pod waits which has begun to": {map[types.NamespacedName]*appsv1.StatefulSet{db: ordered}, func(o *forecast.Observation) {
			active(o)
			o.Pods = o.Pods[1:]
		},
			"default/db-1: Evacuator statefulset.apps.k8s.io acts before the eviction: the Pods of StatefulSet default/db are evicted one at a time, the highest " +
				"ordinal first", 0},
	} {
		t.Run("K47: plan "+name, func(t *testing.T) {
			o := forecast.Observation{
				Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Sets: test.sets,
				Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod("db-0", ofSet), pod("db-1", ofSet)}, Now: now,
			}
			o.Maintenance.Spec.Evacuation.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
			if test.change != nil {
				test.change(&o)
			}
			g := NewWithT(t)
			if o.Maintenance.Spec.Evacuation.StatefulSetPods == v1alpha1.StatefulSetPodsOrdered {
				g.Expect(forecast.StatefulSetsOf(o)).To(ConsistOf(db))
			} else {
				g.Expect(forecast.StatefulSetsOf(o)).To(BeEmpty())
			}
			got, atOnce := "", 0
			predicted := forecast.Of(o)
			for _, obstacle := range predicted.Obstacles(now) {
				got += strings.Join(obstacle.Pods, " ") + ": " + obstacle.Message
			}
			for i := range predicted.Pods {
				if predicted.Pods[i].AtOnce {
					atOnce++
				}
			}
			g.Expect(got).To(Equal(test.want))
			g.Expect(atOnce).To(Equal(test.atOnce), "Pods that are evicted at the same time")
		})
	}
}

func TestObstacles(t *testing.T) {
	evacuator := func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + "mover.example.com": "1000"}
	}
	for name, test := range map[string]struct {
		rules []v1alpha1.DrainRule
		pdbs  []*policyv1.PodDisruptionBudget
		pod   corev1.Pod
		want  string
	}{
		"a budget that allows a disruption does not block": {pdbs: []*policyv1.PodDisruptionBudget{budget("web", 1)}, pod: pod("web")},
		"a budget that allows none blocks": {
			pdbs: []*policyv1.PodDisruptionBudget{budget("web", 0)}, pod: pod("web"), want: "Blocks BudgetExhausted default/web [default/web]",
		},
		"a budget does not block a Pod that an evacuator may move": {
			pdbs: []*policyv1.PodDisruptionBudget{budget("web", 0)}, pod: pod("web", evacuator),
			want: "Delays Evacuator  [default/web], Delays BudgetExhausted default/web [default/web]",
		},
		"a Pod that must complete and is restarted forever blocks": {
			rules: []v1alpha1.DrainRule{rule("job", v1alpha1.DrainBehaviorWaitCompleted, 0)}, pod: pod("job"), want: "Blocks NeverCompletes  [default/job]",
		},
		"a Pod that will complete delays": {
			rules: []v1alpha1.DrainRule{rule("job", v1alpha1.DrainBehaviorWaitCompleted, 0)},
			pod:   pod("job", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }),
			want:  "Delays WaitCompleted  [default/job]",
		},
		"an overdue deletion blocks": {pod: pod("web", func(p *corev1.Pod) {
			p.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-time.Minute)))
			p.Finalizers = []string{"x/y"}
		}),
			want: "Blocks DeletionOverdue  [default/web]"},
		"a Pod that stays does not block": {
			rules: []v1alpha1.DrainRule{rule("web", v1alpha1.DrainBehaviorSkip, 0)}, pdbs: []*policyv1.PodDisruptionBudget{budget("web", 0)}, pod: pod("web"),
		},
	} {
		t.Run("K2: "+name, func(t *testing.T) {
			predicted := forecast.Of(forecast.Observation{
				Maintenance: maintenance("m", test.rules...), Node: node("one"), Surroundings: surroundings{},
				Budgets: budgets.NewIndex(test.pdbs, nil), Pods: []corev1.Pod{test.pod}, Now: now,
			})
			got := ""
			for _, o := range predicted.Obstacles(now) {
				if got != "" {
					got += ", "
				}
				got += fmt.Sprintf("%s %s %s %v", o.Severity, o.Reason, o.Budget, o.Pods)
			}
			NewWithT(t).Expect(got).To(Equal(test.want))
		})
	}
}

func TestReceivers(t *testing.T) {
	receivers := signals.ReceiversOf([]admissionregistrationv1.ValidatingWebhookConfiguration{{Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "moves.example.com", Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
		}},
	}}}}, nil)
	engine := signals.ReceiversOf(nil, []admissionregistrationv1.MutatingWebhookConfiguration{{Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: "engine.example.com", Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		}},
	}}}})
	invalid := budget("web", 0)
	invalid.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles"}}
	for name, test := range map[string]struct {
		pdb       *policyv1.PodDisruptionBudget
		receivers signals.Receivers
		named     []string
		want      string
	}{
		"names the webhook that receives the eviction requests of a Pod": {
			budget("web", 0), receivers, nil, "; webhook moves.example.com receives the eviction requests of this Pod; its owner may move the Pod",
		},
		"names a policy engine that the policy names": {
			budget("web", 0), engine, []string{"engine.example.com"},
			"; webhook engine.example.com receives the eviction requests of this Pod; its owner may move the Pod",
		},
		"names no policy engine otherwise":             {budget("web", 0), engine, []string{"moves.example.com"}, ""},
		"names no webhook if none was read":            {budget("web", 0), nil, nil, ""},
		"names no webhook if no eviction is requested": {invalid, receivers, nil, ""},
	} {
		t.Run("K39: "+name, func(t *testing.T) {
			m := maintenance("m")
			m.Spec.Evacuation.EvictionWebhooks = test.named
			predicted := forecast.Of(forecast.Observation{
				Maintenance: m, Node: node("one"), Surroundings: surroundings{}, Receivers: test.receivers,
				Budgets: budgets.NewIndex([]*policyv1.PodDisruptionBudget{test.pdb}, nil), Pods: []corev1.Pod{pod("web")}, Now: now,
			})
			g := NewWithT(t)
			obstacles := predicted.Obstacles(now)
			g.Expect(obstacles).To(HaveLen(1))
			g.Expect(obstacles[0].Severity).To(Equal(forecast.Blocks), "the verdict is the same")
			_, said, _ := strings.Cut(obstacles[0].Message, "; webhook")
			isSaid, isWanted := said != "", test.want != ""
			g.Expect(isSaid).To(Equal(isWanted), obstacles[0].Message)
			g.Expect(obstacles[0].Message).To(HaveSuffix(test.want))
		})
	}
}

func TestSharedNodes(t *testing.T) {
	on := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }
	limited := func(limit int) func(*forecast.Observation) {
		return func(o *forecast.Observation) { o.Maintenance.Spec.MaxParallelNodes = ptr.To(intstr.FromInt(limit)) }
	}
	ordered := func(o *forecast.Observation) {
		o.Maintenance.Spec.DrainRules = maintenance("m", rule("two", v1alpha1.DrainBehaviorDrain, 10)).Spec.DrainRules
	}
	for name, test := range map[string]struct {
		node    string
		change  func(*forecast.Observation)
		target  bool // the Pod of the Node is a target now
		waiting string
	}{
		"Pods of all Nodes of a NodeMaintenance are evacuated in one step": {node: "two", change: func(*forecast.Observation) {}, target: true},
		"a Pod waits for Pods with a lower drain order on other Nodes":     {node: "two", change: ordered},
		"with maxParallelNodes, the first Node by name is drained first":   {node: "one", change: limited(1), target: true},
		"with maxParallelNodes, a Node waits until another one is drained": {
			node: "two", change: limited(1), waiting: "Waiting for Node one to be drained (maxParallelNodes allows 1)",
		},
		"a Node does not wait if maxParallelNodes allows as many Nodes as are selected": {node: "two", change: limited(2), target: true},
	} {
		t.Run("K34: "+name, func(t *testing.T) {
			o := forecast.Observation{
				Maintenance: maintenance("m"), Node: node(test.node), Nodes: []*corev1.Node{node("one"), node("two")}, Surroundings: surroundings{},
				Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod("one"), pod("two", on("two"))}, Now: now,
			}
			o.Maintenance.Spec.NodeSelector = v1alpha1.SelectNodes("one", "two")
			test.change(&o)
			predicted := forecast.Of(o)
			g := NewWithT(t)
			g.Expect(predicted.Pods).To(HaveLen(1))
			g.Expect(predicted.Pods[0].Name).To(Equal(test.node))
			g.Expect(predicted.Pods[0].Outcome).To(Equal(forecast.Evacuated))
			g.Expect(predicted.Targets.Has(predicted.Pods[0].UID)).To(Equal(test.target))
			g.Expect(predicted.Waiting).To(Equal(test.waiting))
			g.Expect(predicted.Obstacles(now)).To(HaveLen(map[bool]int{true: 1, false: 0}[test.waiting != ""]))
		})
	}
}

func TestShortage(t *testing.T) {
	grace := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	shortages := func(timeout int32, onTimeout v1alpha1.OnTimeoutPolicy) (short []string) {
		m := maintenance("m", rule("stays", v1alpha1.DrainBehaviorSkip, 0), rule("completes", v1alpha1.DrainBehaviorWaitCompleted, 0))
		m.Spec.Evacuation.OnTimeout, m.Spec.Evacuation.DrainTimeoutSeconds = onTimeout, &timeout
		for _, p := range forecast.Of(forecast.Observation{
			Maintenance: m, Node: node("one"), Surroundings: surroundings{}, Now: now,
			Pods: []corev1.Pod{
				pod("long", grace(90)), pod("short", grace(30)), pod("stays", grace(90)), pod("completes", grace(90)), pod("daemon", grace(90), ofDaemonSet),
			},
		}).Pods {
			if p.Shortage != "" {
				short = append(short, p.Name+": "+p.Shortage)
			}
		}
		return short
	}
	const why = "Its grace period of 1m30s does not fit into the drain timeout of 1m0s, before which onTimeout: Delete deletes it: set a timeout of at least 1m45s"
	t.Run("K40: names the Pods that are deleted too late for their grace periods", func(t *testing.T) {
		NewWithT(t).Expect(shortages(60, v1alpha1.OnTimeoutDelete)).To(ConsistOf("long: "+why, "completes: "+why))
	})
	t.Run("K40: names no Pod if all grace periods fit, or if no Pod is deleted", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(shortages(120, v1alpha1.OnTimeoutDelete)).To(BeEmpty())
		g.Expect(shortages(60, v1alpha1.OnTimeoutRelease)).To(BeEmpty())
	})
}

func TestSettings(t *testing.T) {
	requesting := func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + v1alpha1.EvacuatorClassDeployment: "10000/controller"}
	}
	for name, tc := range map[string]struct {
		budget func(*policyv1.PodDisruptionBudgetSpec)
		policy v1alpha1.SurgePolicy
		pod    corev1.Pod
		want   forecast.Settings
	}{
		"a Deployment without a surge": {
			nil, v1alpha1.SurgeNever, pod("web", ofDeployment), forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeNever, AllowsWithMorePods: true},
		},
		"a surge that the Pod may request": {
			nil, v1alpha1.SurgeOnRequest, pod("web", ofDeployment), forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeOnRequest, AllowsWithMorePods: true},
		},
		"a surge that the Pod requests": {
			nil, v1alpha1.SurgeOnRequest, pod("web", ofDeployment, requesting),
			forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeAlways, AllowsWithMorePods: true},
		},
		"a Pod without a controller": {nil, "", pod("web"), forecast.Settings{Surge: v1alpha1.SurgeNever, AllowsWithMorePods: true}},
		"a budget that does not depend on the number": {func(spec *policyv1.PodDisruptionBudgetSpec) {
			spec.MinAvailable, spec.MaxUnavailable = nil, ptr.To(intstr.FromInt32(0))
			spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
		}, "", pod("web", ofDeployment), forecast.Settings{OfDeployment: true, Surge: v1alpha1.SurgeNever, AlwaysAllowsUnready: true}},
	} {
		t.Run("K41: "+name, func(t *testing.T) {
			g, pdb := NewWithT(t), budget("web", 0)
			if tc.budget != nil {
				tc.budget(&pdb.Spec)
			}
			o := forecast.Observation{
				Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Surges: deployment(1), Now: now,
				Budgets: budgets.NewIndex([]*policyv1.PodDisruptionBudget{pdb}, nil), Pods: []corev1.Pod{tc.pod},
			}
			o.Maintenance.Spec.Evacuation.Surge = tc.policy
			obstacles := forecast.Of(o).Obstacles(now)
			g.Expect(obstacles[len(obstacles)-1].Settings).To(Equal(tc.want))
		})
	}
}

func TestUnscheduled(t *testing.T) {
	pending := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available."},
		}}
		p.Labels["app"] = "web"
	}
	elsewhere := func(p *corev1.Pod) { p.Namespace = "other" }
	for name, tc := range map[string]struct {
		needs       int32
		unscheduled corev1.Pod
		want        string
		waits       int
	}{
		"K41: names the Pod of the budget that is unschedulable":    {2, pod("web-2", pending), ". Pod default/web-2 is unschedulable: 0/3 nodes are available", 1},
		"K41: names no Pod of another Namespace":                    {2, pod("web-2", pending, elsewhere), "", 1},
		"K41: names no Pod of another budget":                       {2, pod("db-2", pending, func(p *corev1.Pod) { p.Labels["app"] = "db" }), "", 1},
		"K41: names no Pod that only waits for preempted ones":      {2, pod("web-2", pending, func(p *corev1.Pod) { p.Status.NominatedNodeName = "two" }), "", 1},
		"K41: names no Pod if the budget never allows a disruption": {3, pod("web-2", pending), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			g, pdb, needs := NewWithT(t), budget("web", 0), intstr.FromInt32(tc.needs)
			pdb.Spec.MinAvailable, pdb.Status.ExpectedPods, pdb.Status.DesiredHealthy, pdb.Status.CurrentHealthy = &needs, 3, tc.needs, 2
			o := forecast.Observation{
				Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Now: now,
				Budgets: budgets.NewIndex([]*policyv1.PodDisruptionBudget{pdb}, nil), Pods: []corev1.Pod{pod("web")},
			}
			g.Expect(forecast.WaitingNamespaces(o)).To(HaveLen(tc.waits))
			o.Unscheduled = []corev1.Pod{tc.unscheduled}
			obstacles := forecast.Of(o).Obstacles(now)
			g.Expect(obstacles).To(HaveLen(1))
			if tc.want == "" {
				g.Expect(obstacles[0].Message).NotTo(ContainSubstring("unschedulable"))
			} else {
				g.Expect(obstacles[0].Message).To(HaveSuffix(tc.want))
			}
		})
	}
}
