package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// validation is an administrator's view of an API server with our CRDs.
type validation struct {
	*testing.T
	*WithT
	config *rest.Config
	client client.Client
}

// validation returns the API server of tests of admission for a test of validation.
func (a *admission) validation(t *testing.T) *validation {
	t.Helper()
	return &validation{T: t, WithT: NewWithT(t), config: a.cp.AdminConfig(), client: a.admin}
}

func (v *validation) sub(t *testing.T) *validation {
	t.Helper()
	return &validation{T: t, WithT: NewWithT(t), config: v.config, client: v.client}
}

// accepts creates or updates an object and expects success.
func (v *validation) accepts(object client.Object) {
	v.Helper()
	v.Expect(v.store(object)).To(Succeed())
}

// refuses creates or updates an object and expects an error with this message.
func (v *validation) refuses(object client.Object, why string) {
	v.Helper()
	v.Expect(v.store(object)).To(MatchError(ContainSubstring(why)))
}

func (v *validation) store(object client.Object) error {
	if object.GetResourceVersion() != "" {
		return v.client.Update(v.Context(), object)
	}
	return v.client.Create(v.Context(), object)
}

func maintenance(name string, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("one")}}
	for _, change := range changes {
		change(m)
	}
	return m
}

func planned(entries ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.DrainPlan = entries }
}

func entry(podType v1alpha1.PodType, priority int32, labels ...string) v1alpha1.DrainPlanEntry {
	e := v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: priority}
	if len(labels) == 2 {
		e.PodSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{labels[0]: v1alpha1.LabelValue(labels[1])}}
	}
	return e
}

func testNodeMaintenanceValidation(t *testing.T, all *validation) {
	t.Helper()
	t.Run("R1, R67, E28: is cluster-scoped, requires a nodeSelector, and defaults to stage Idle and to Pods of StatefulSets in any order", func(t *testing.T) {
		v := all.sub(t)
		m := maintenance("r1")
		v.accepts(m)
		v.Expect(m.Spec.Stage).To(Equal(v1alpha1.StageIdle))
		v.Expect(m.Spec.Evacuation.StatefulSetPods).To(Equal(v1alpha1.StatefulSetPodsUnordered))
		v.Expect(m.Status.ObservedGeneration).To(BeEquivalentTo(-1), "no manager has observed it")
		v.Expect(m.Namespace).To(BeEmpty())
		v.refuses(maintenance("r1-none", func(m *v1alpha1.NodeMaintenance) {
			m.Spec = v1alpha1.NodeMaintenanceSpec{Reason: "the rest of it is there"}
		}), "nodeSelector")
		v.refuses(maintenance("r1-field", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Key = "spec.unschedulable"
		}), "metadata.name")
		v.refuses(maintenance("r1-two", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values = []string{"one", "two"}
		}), "one value")
		v.refuses(maintenance("r1-empty", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields = nil
		}), "nodeSelectorTerms")
	})
	t.Run("R2: rejects a drain plan that is out of order", func(t *testing.T) {
		v := all.sub(t)
		const d, ds, st = v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic
		v.accepts(maintenance("r2", planned(entry("", 1), entry(d, 5, "a", "b"), entry(d, 5), entry(ds, 1), entry(st, 1))))
		for name, p := range map[string][]v1alpha1.DrainPlanEntry{
			"types":     {entry(ds, 1), entry(d, 1)},
			"unset":     {entry(ds, 1), entry("", 1)},
			"static":    {entry(st, 1), entry(ds, 1)},
			"priority":  {entry(d, 2), entry(d, 1)},
			"selectors": {entry(d, 1), entry(d, 1, "a", "b")},
		} {
			v.refuses(maintenance("r2-"+name, planned(p...)), "drainPlan is out of order")
		}
	})
	t.Run("R2: rejects changes of the drain plan", func(t *testing.T) {
		v := all.sub(t)
		m := maintenance("r2-immutable", planned(entry(v1alpha1.PodTypeDefault, 5)))
		v.accepts(m)
		m.Spec.DrainPlan[0].PodPriority = 6
		v.refuses(m, "drainPlan is immutable")
		m.Spec.DrainPlan = nil
		v.refuses(m, "drainPlan is immutable")
	})
	t.Run("R3: rejects duplicate entries and an empty selector", func(t *testing.T) {
		v := all.sub(t)
		v.refuses(maintenance("r3", planned(entry(v1alpha1.PodTypeDefault, 1), entry(v1alpha1.PodTypeDefault, 1))), "duplicate")
		empty := entry(v1alpha1.PodTypeDefault, 1)
		empty.PodSelector = &v1alpha1.LabelSelector{}
		v.refuses(maintenance("r3-empty", planned(empty)), "podSelector must not be empty")
	})
	t.Run("M103: rejects invalid label selectors in a drain plan", func(t *testing.T) {
		v := all.sub(t)
		one := []v1alpha1.LabelValue{"a"}
		for name, invalid := range map[string]v1alpha1.LabelSelectorRequirement{
			"operator": {Key: "a", Operator: "in", Values: one},
			"empty":    {Key: "a", Operator: "In"},
			"exists":   {Key: "a", Operator: "Exists", Values: one},
			"value":    {Key: "a", Operator: "In", Values: []v1alpha1.LabelValue{"a b"}},
			"key":      {Key: "a b", Operator: "Exists"},
			"prefix":   {Key: "A/b", Operator: "Exists"},
		} {
			selecting := entry(v1alpha1.PodTypeDefault, 1)
			selecting.PodSelector = &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{invalid}}
			v.refuses(maintenance("m103-"+name, planned(selecting)), "podSelector.matchExpressions[0]")
		}
		v.refuses(maintenance("m103-label", planned(entry(v1alpha1.PodTypeDefault, 1, "a", "a b"))), "podSelector.matchLabels.a")
		v.refuses(maintenance("m103-long", planned(entry(v1alpha1.PodTypeDefault, 1, strings.Repeat("a", 318), "b"))), "label keys")
		valid := entry(v1alpha1.PodTypeDefault, 1, "example.com/App_1.x", "")
		valid.PodSelector.MatchExpressions = []v1alpha1.LabelSelectorRequirement{
			{Key: "a", Operator: "In", Values: []v1alpha1.LabelValue{"", "A-b_c.9"}}, {Key: "x.y-z.example.com/B", Operator: "DoesNotExist"},
		}
		v.accepts(maintenance("m103", planned(valid)))
	})
	t.Run("R4: defaults to twelve entries, and does not change a shorter plan that is applied again", func(t *testing.T) {
		v := all.sub(t)
		m := maintenance("r4")
		v.accepts(m)
		v.Expect(m.Spec.DrainPlan).To(Equal(plan.Complete(nil, v1alpha1.DrainPlanDefaultsPriorityTiers)))
		short := maintenance("r4-short", planned(entry(v1alpha1.PodTypeDefault, 5)))
		v.accepts(short)
		again := maintenance("r4-short", planned(entry(v1alpha1.PodTypeDefault, 5)))
		again.ResourceVersion = short.ResourceVersion
		v.accepts(again)
		v.Expect(again.Generation).To(Equal(short.Generation))
	})
	t.Run("R55: maxParallelNodes is a positive number or percentage, excludes a drain timeout, and waitingNodes requires it", func(t *testing.T) {
		v := all.sub(t)
		limited := func(limit intstr.IntOrString) func(*v1alpha1.NodeMaintenance) {
			return func(m *v1alpha1.NodeMaintenance) { m.Spec.MaxParallelNodes = &limit }
		}
		for i, value := range []intstr.IntOrString{
			intstr.FromInt32(0), intstr.FromInt32(-1), intstr.FromString("0%"), intstr.FromString("101%"), intstr.FromString("2"),
		} {
			v.refuses(maintenance(fmt.Sprintf("r55-%d", i), limited(value)), "maxParallelNodes must be")
		}
		v.refuses(maintenance("r55-timeout", limited(intstr.FromInt32(1)), func(m *v1alpha1.NodeMaintenance) {
			m.Spec.Evacuation.DrainTimeoutSeconds = ptr.To[int32](60)
		}), "exclude each other")
		v.refuses(maintenance("r55-waiting", func(m *v1alpha1.NodeMaintenance) { m.Spec.WaitingNodes = v1alpha1.WaitingNodesCordon }),
			"waitingNodes requires maxParallelNodes")
		v.accepts(maintenance("r55-percent", limited(intstr.FromString("25%"))))
	})

	t.Run("R4: drainPlanDefaults is PriorityTiers unless set, requires a drainPlan when None, and is immutable", func(t *testing.T) {
		v := all.sub(t)
		m := maintenance("r4-defaults")
		v.accepts(m)
		v.Expect(m.Spec.DrainPlanDefaults).To(Equal(v1alpha1.DrainPlanDefaultsPriorityTiers))
		m.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsNone
		v.refuses(m, "drainPlanDefaults is immutable")
		none := func(m *v1alpha1.NodeMaintenance) { m.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsNone }
		v.refuses(maintenance("r4-none", none), "drainPlanDefaults None requires a drainPlan")
		one := maintenance("r4-none-planned", none, planned(plan.Complete(nil, v1alpha1.DrainPlanDefaultsNone)...))
		v.accepts(one)
		one.Spec.DrainPlanDefaults = ""
		v.refuses(one, "drainPlanDefaults is immutable")
		v.refuses(maintenance("r4-unknown", func(m *v1alpha1.NodeMaintenance) { m.Spec.DrainPlanDefaults = "Some" }), "Unsupported value")
	})
	t.Run("R5: allows every stage at creation and then only later stages", func(t *testing.T) {
		v := all.sub(t)
		stages := []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle, v1alpha1.StageCordon, v1alpha1.StageDrain, v1alpha1.StageComplete}
		for from := range stages {
			for to := range stages {
				m := maintenance(strings.ToLower(fmt.Sprintf("r5-%s-%s", stages[from], stages[to])), func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = stages[from] })
				v.accepts(m)
				m.Spec.Stage = stages[to]
				if to < from {
					v.refuses(m, "stage only moves forward")
				} else {
					v.accepts(m)
				}
			}
		}
	})
	t.Run("R15: rejects changes of the nodeSelector after stage Idle", func(t *testing.T) {
		v := all.sub(t)
		m := maintenance("r15")
		v.accepts(m)
		m.Spec.NodeSelector = v1alpha1.SelectNodes("two")
		v.accepts(m)
		m.Spec.Stage = v1alpha1.StageCordon
		v.accepts(m)
		m.Spec.NodeSelector = v1alpha1.SelectNodes("three")
		v.refuses(m, "nodeSelector is immutable")
	})
	t.Run("R6: uses the finalizers and annotations of the KEPs", func(t *testing.T) {
		v := all.sub(t)
		v.Expect(v1alpha1.GroupVersion.Group).To(Equal("maintenance.cluster.x-k8s.io"))
		v.Expect(v1alpha1.MaintenanceCompletionFinalizer).To(Equal("nodemaintenance.k8s.io/maintenance-completion"))
		v.Expect(v1alpha1.NodeMaintenanceInstigatorFinalizer).To(Equal("evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io"))
		v.Expect(v1alpha1.EvacuatorPriorityAnnotationPrefix).To(Equal("evacuation.coordination.k8s.io/priority_"))
		m := maintenance("r6", func(m *v1alpha1.NodeMaintenance) { m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer} })
		v.accepts(m)
	})
}

const podUID = "f5823a89-e03f-4752-b013-445643b8c7a0"

func evacuationOf(pod string, changes ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podUID + "-" + pod},
		Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: pod, UID: podUID}},
	}
	for _, change := range changes {
		change(e)
	}
	return e
}

func named(name string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Name = name }
}

func evacuators(list ...v1alpha1.Evacuator) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Spec.Evacuators = list }
}

func testEvacuationValidation(t *testing.T, all *validation) {
	t.Helper()
	t.Run("E1: requires a name of the Pod's UID, a dash, and the start of the Pod's name", func(t *testing.T) {
		v := all.sub(t)
		v.accepts(evacuationOf("web"))
		for _, name := range []string{podUID, podUID + "-we", podUID + "-webx", "web", "00000000-e03f-4752-b013-445643b8c7a0-web"} {
			v.refuses(evacuationOf("web", named(name)), "metadata.name")
		}
		long := strings.Repeat("a", 149)
		v.accepts(evacuationOf(long+".bbb", named(podUID+"-"+long)))
		v.accepts(evacuationOf(long+"ab", named(podUID+"-"+long+"a")))
		v.refuses(evacuationOf(long+"cd", named(podUID+"-"+long)), "metadata.name")
		v.refuses(evacuationOf(long+"ef", named(podUID+"-"+long+"ef")), "metadata.name")
	})
	t.Run("E2: requires podRef and rejects changes of it", func(t *testing.T) {
		v := all.sub(t)
		v.refuses(evacuationOf("e2-none", func(e *v1alpha1.Evacuation) { e.Spec = v1alpha1.EvacuationSpec{ProgressDeadlineSeconds: 700} }), "podRef")
		e := evacuationOf("e2")
		v.accepts(e)
		e.Spec.PodRef.Name = "e2-other"
		v.refuses(e, "podRef is immutable")
	})
	t.Run("E3: accepts progressDeadlineSeconds from 600 to 21600, defaults to 1800, and rejects changes", func(t *testing.T) {
		v := all.sub(t)
		deadline := func(seconds int32) func(*v1alpha1.Evacuation) {
			return func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = seconds }
		}
		e := evacuationOf("e3")
		v.accepts(e)
		v.Expect(e.Spec.ProgressDeadlineSeconds).To(BeEquivalentTo(1800))
		e.Spec.ProgressDeadlineSeconds = 1900
		v.refuses(e, "progressDeadlineSeconds is immutable")
		v.refuses(evacuationOf("e3-low", deadline(599)), "progressDeadlineSeconds")
		v.refuses(evacuationOf("e3-high", deadline(21601)), "progressDeadlineSeconds")
	})
	t.Run("E4: requires unique evacuators, reserves priority 10000 for the role controller, and rejects changes", func(t *testing.T) {
		v := all.sub(t)
		controller := v1alpha1.Evacuator{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: ptr.To("controller")}
		e := evacuationOf("e4")
		v.accepts(e)
		e.Spec.Evacuators = []v1alpha1.Evacuator{controller, {EvacuatorClass: "a.example.com", Priority: 10001}}
		v.accepts(e)
		e.Spec.Evacuators = e.Spec.Evacuators[:1]
		v.refuses(e, "evacuators is immutable")
		e.Spec.Evacuators = nil
		v.refuses(e, "evacuators is immutable")
		for name, list := range map[string][]v1alpha1.Evacuator{
			"twice":        {{EvacuatorClass: "a"}, {EvacuatorClass: "a", Priority: 1}},
			"controllers":  {controller, {EvacuatorClass: "a", Priority: 10000, Role: ptr.To("controller")}},
			"beside":       {controller, {EvacuatorClass: "a", Priority: 10000}},
			"low":          {{EvacuatorClass: "a", Priority: 1, Role: ptr.To("controller")}},
			"class":        {{EvacuatorClass: "A_b", Priority: 1}},
			"length":       {{EvacuatorClass: strings.Repeat("a", 55), Priority: 1}},
			"priority":     {{EvacuatorClass: "a", Priority: 100001}},
			"negative":     {{EvacuatorClass: "a", Priority: -1}},
			"many-classes": manyEvacuators(101),
		} {
			v.refuses(evacuationOf("e4-"+name, evacuators(list...)), "evacuators")
		}
		v.accepts(evacuationOf("e4-hundred", evacuators(manyEvacuators(100)...)))
	})
	t.Run("E6: ignores the status at creation, rejects a lower failedEvictionCounter, and limits the message", func(t *testing.T) {
		v := all.sub(t)
		e := evacuationOf("e6", func(e *v1alpha1.Evacuation) { e.Status.Message = "set by the creator" })
		v.accepts(e)
		v.Expect(e.Status).To(Equal(v1alpha1.EvacuationStatus{}))
		e.Status.FailedEvictionCounter = 2
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(time.Now()))
		v.Expect(v.client.Status().Update(t.Context(), e)).To(Succeed())
		v.Expect(e.Status.EvacuationCancellationPolicy).To(Equal(v1alpha1.CancellationAllow))
		e.Status.FailedEvictionCounter = 1
		v.Expect(v.client.Status().Update(t.Context(), e)).To(MatchError(ContainSubstring("must not decrease")))
		e.Status.FailedEvictionCounter = 0
		v.Expect(v.client.Status().Update(t.Context(), e)).To(MatchError(ContainSubstring("must not decrease")), "it is removed")
		e.Status.FailedEvictionCounter = 2
		e.Status.Message = strings.Repeat("x", 32769)
		v.Expect(v.client.Status().Update(t.Context(), e)).To(MatchError(ContainSubstring("message")))
	})
}

func manyEvacuators(n int) []v1alpha1.Evacuator {
	var list []v1alpha1.Evacuator
	for i := range n {
		list = append(list, v1alpha1.Evacuator{EvacuatorClass: fmt.Sprintf("e%d.example.com", i), Priority: int32(i)})
	}
	return list
}
