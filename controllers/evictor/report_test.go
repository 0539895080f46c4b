package evictor

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

var mover = []v1alpha1.Evacuator{{EvacuatorClass: "mover.example.com", Priority: 1}}

// evacuationOf returns an Evacuation that was created a minute ago.
func evacuationOf(pod *corev1.Pod, uid types.UID, evacuators ...v1alpha1.Evacuator) *v1alpha1.Evacuation {
	e := evacuation.New(pod, evacuators, 0)
	e.UID, e.ResourceVersion, e.CreationTimestamp = uid, "1", metav1.NewTime(now.Add(-time.Minute))
	return e
}

// changedByAUser returns the next version of an Evacuation.
func changedByAUser(observed *v1alpha1.Evacuation) *v1alpha1.Evacuation {
	changed := observed.DeepCopy()
	changed.ResourceVersion, changed.Labels = "2", map[string]string{"changed": "by-a-user"}
	return changed
}

func nextAction(e *v1alpha1.Evacuation, pod *corev1.Pod) evacuation.Action {
	return evacuation.Next(evacuation.Input{Evacuation: e, Pod: evacuation.ObservedPod(e, pod, v1alpha1.PodTypeDefault), Now: now})
}

// recordRefusal records that a webhook refused the eviction of a Pod.
func (p *pass) recordRefusal(ctx context.Context, s *subject) {
	clock := clocktesting.NewFakeClock(now)
	v := &Evictor{Clock: clock, Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock)}
	v.recordRefusal(ctx, p, s, refusal{reason: v1alpha1.ReasonWebhookRefused, message: "denied"}, now)
}

// collected adds the Pod of an Evacuation, as the pass has observed both.
func (p *pass) collected(e *v1alpha1.Evacuation) {
	s := p.due([]v1alpha1.Evacuation{*e})[0]
	p.subjects[s.pod.UID] = s
}

// stored returns an Evacuation as the API server has it.
func (p *pass) stored(t *testing.T, e *v1alpha1.Evacuation) *v1alpha1.Evacuation {
	t.Helper()
	stored := &v1alpha1.Evacuation{}
	NewWithT(t).Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(e), stored)).To(Succeed())
	return stored
}

func waitingForBudget(pod *corev1.Pod) budgets.Waiting {
	return budgets.Waiting{Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Reason: budgets.BudgetExhausted, Message: "waiting for a budget"}
}

// wait adds a Pod with an Evacuation, which waits for a budget.
func (p *pass) wait(t *testing.T, name string) budgets.Waiting {
	t.Helper()
	pod := podNamed(name, "")
	e := evacuation.New(pod, nil, 0)
	e.UID = types.UID("evacuation-" + name)
	NewWithT(t).Expect(p.client.Create(t.Context(), e)).To(Succeed())
	p.observation = onePod{pod: pod}
	p.collected(e)
	return waitingForBudget(pod)
}

// beforePatches calls a function before each patch of a status. Its error takes the place of the patch.
func (p *pass) beforePatches(call func(ctx context.Context, name string) error) {
	p.client = interceptor.NewClient(p.client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, subResource string, object client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			if err := call(ctx, object.GetName()); err != nil {
				return err
			}
			return c.SubResource(subResource).Patch(ctx, object, patch, options...)
		},
	})
}

func TestReport(t *testing.T) {
	pod := podNamed("web", "")
	observed := evacuation.New(pod, nil, 0)
	observed.UID, observed.ResourceVersion = "evacuation", "1"
	exhausted := waitingForBudget(pod)
	multiple := budgets.Waiting{Candidate: exhausted.Candidate, Reason: budgets.MultipleBudgets, Message: "waiting for two budgets"}
	for _, tc := range []struct {
		name    string
		reports []budgets.Waiting
		patches int
	}{
		{"does not patch the same status again while the watch has not delivered the first patch", []budgets.Waiting{exhausted, exhausted}, 1},
		{"patches another status while the watch has not delivered the first patch", []budgets.Waiting{exhausted, multiple, exhausted}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			p := passOver(t, now, onePod{pod: pod}, observed.DeepCopy())
			patches := 0
			p.beforePatches(func(context.Context, string) error {
				patches++
				return nil
			})
			for _, waiting := range tc.reports {
				p.collected(observed.DeepCopy())
				p.report(t.Context(), []budgets.Waiting{waiting})
			}
			g.Expect(patches).To(Equal(tc.patches))
			g.Expect(p.stored(t, observed).Status.Message).To(Equal(exhausted.Message))
		})
	}
}

func TestHolderOfABudget(t *testing.T) {
	t.Run("E90: the status names the Node and the Machine whose drain has used the budget, and is not written for each eviction", func(t *testing.T) {
		g, writes := NewWithT(t), 0
		p := passOver(t, now, onePod{})
		p.wait(t, "web")
		p.cluster = types.NamespacedName{Namespace: "fleet", Name: "c1"}
		p.beforePatches(func(context.Context, string) error {
			writes++
			return nil
		})
		serving := drainOf("two")
		serving.Annotations = map[string]string{v1alpha1.OwnerClusterAnnotation: "fleet/c1", v1alpha1.OwnerMachineAnnotation: "fleet/md-two"}
		p.terms = map[string]evacuation.Terms{"one": {}, "two": {Maintenances: []*v1alpha1.NodeMaintenance{serving}}, "three": {}}
		s := p.subjects["web"]
		said := func() string { return p.stored(t, s.evacuation).Status.Message }
		pass := func(after time.Duration, allowed int32, others ...string) {
			p.now = now.Add(after)
			p.collected(p.stored(t, s.evacuation))
			var candidates []budgets.Candidate
			for i, node := range others {
				other := podNamed(fmt.Sprint(node, after, i), "")
				other.Spec.NodeName, other.Labels = node, map[string]string{"app": "web"}
				other.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
				candidates = append(candidates, budgets.Candidate{Pod: budgets.PodOf(other)})
			}
			waits := budgets.PodOf(s.pod)
			waits.Labels, waits.Ready = map[string]string{"app": "web"}, true
			index := budgets.NewIndex([]*policyv1.PodDisruptionBudget{{
				ObjectMeta: metav1.ObjectMeta{Namespace: waits.Namespace, Name: "web"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}, MaxUnavailable: ptr.To(intstr.FromInt32(1))},
				Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 9, DesiredHealthy: 9, ExpectedPods: 10},
			}}, nil)
			admitted, waiting := index.Admit(append(candidates, budgets.Candidate{Pod: waits}))
			p.nameHolders(index, admitted, waiting)
			p.report(t.Context(), waiting[len(waiting)-1:])
		}
		for i := range 10 { // the drain of Node two evicts a Pod every two seconds
			pass(time.Duration(2*i)*time.Second, 1, "two", "two")
			pass(time.Duration(2*i+1)*time.Second, 0, "two")
		}
		g.Expect(said()).To(HaveSuffix("/web: 9 healthy Pods required; the drain of Node two (Machine md-two) has used its disruptions"))
		for i := range 10 {
			pass(time.Duration(30+2*i)*time.Second, 1, "three")
			pass(time.Duration(31+2*i)*time.Second, 0)
		}
		g.Expect(said()).To(ContainSubstring("Node two"))
		g.Expect(writes).To(Equal(1), "20 evictions, and one write")
		g.Expect(p.nextTry).To(Equal(now.Add(time.Minute)))
		pass(time.Minute, 0)
		g.Expect(said()).To(HaveSuffix("; the drain of Node three has used its disruptions"), "no Machine is known for it")
		g.Expect(writes).To(Equal(2))
	})
}

func TestReportThatFails(t *testing.T) {
	g := NewWithT(t)
	p := passOver(t, now, onePod{})
	clock := clocktesting.NewFakeClock(now)
	p.clock = clock
	waiting, attempts := []budgets.Waiting{p.wait(t, "large"), p.wait(t, "a"), p.wait(t, "b"), p.wait(t, "c")}, 0
	p.beforePatches(func(ctx context.Context, name string) error {
		if name == p.subjects["large"].evacuation.Name {
			attempts++
			clock.Step(100 * time.Millisecond) // the backoff begins with the response
			return errors.New("etcdserver: request is too large")
		}
		if _, limited := ctx.Deadline(); !limited || ctx.Err() != nil {
			return errors.New("it has no timeout, or the patch that failed has cancelled the others")
		}
		return nil
	})
	p.report(t.Context(), waiting)
	for uid, s := range p.subjects {
		want := "waiting for a budget"
		if uid == "large" {
			want = ""
		}
		g.Expect(p.stored(t, s.evacuation).Status.Message).To(Equal(want), "E18: the status of the Evacuation of %s", uid)
	}
	g.Expect(p.nextTry).To(Equal(now.Add(time.Second)))
	next := func(after time.Duration) {
		clock.SetTime(now.Add(after))
		p.now, p.nextTry = clock.Now(), time.Time{}
		p.report(t.Context(), waiting[:1])
	}
	next(1100 * time.Millisecond)
	next(2100 * time.Millisecond)
	g.Expect(p.nextTry).To(Equal(now.Add(3200*time.Millisecond)), "the interval has doubled")
	g.Expect(attempts).To(Equal(2))
	p.blocked = map[string]int{}
	p.report(t.Context(), waiting)
	g.Expect(p.blocked).To(HaveKeyWithValue(string(budgets.BudgetExhausted), 4))
}

func TestReportsThatFailBesideAConflict(t *testing.T) {
	t.Run("E18: the log has a refused report and the number of all, although another one has conflicted first", func(t *testing.T) {
		g, p := NewWithT(t), passOver(t, now, onePod{})
		p.clock = clocktesting.NewFakeClock(now)
		waiting := []budgets.Waiting{p.wait(t, "changed"), p.wait(t, "a"), p.wait(t, "b")}
		p.beforePatches(func(_ context.Context, name string) error {
			if name == p.subjects["changed"].evacuation.Name {
				return apierrors.NewConflict(schema.GroupResource{Resource: "evacuations"}, name, nil)
			}
			g.Eventually(func() bool { return p.state.reports.of("changed").IsZero() }).WithTimeout(time.Minute).Should(BeFalse(), "it conflicts first")
			return errors.New("etcdserver: request is too large")
		})
		var logged []string
		logger := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
		p.report(ctrl.LoggerInto(t.Context(), logger), waiting)
		g.Expect(logged).To(ConsistOf(And(ContainSubstring("request is too large"), ContainSubstring(`"Evacuations"=2`))))
	})
}

func TestReportThatAProxyAnswers(t *testing.T) {
	answers := func(_ context.Context, name string) error {
		evacuations := schema.GroupResource{Resource: "evacuations"}
		return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodPatch, evacuations, name, "page not found", 0, true)
	}
	t.Run("E18, M109: a report that a proxy answers with 404 is repeated", func(t *testing.T) {
		g, p := NewWithT(t), passOver(t, now, onePod{})
		p.clock = clocktesting.NewFakeClock(now)
		waiting := []budgets.Waiting{p.wait(t, "a")}
		p.beforePatches(answers)
		p.report(t.Context(), waiting)
		g.Expect(p.state.reports.of("a")).NotTo(BeZero(), "no event follows")
	})
	t.Run("E18, M109: the log has a refusal that was not counted because a proxy has answered with 404", func(t *testing.T) {
		g, p := NewWithT(t), passOver(t, now, onePod{})
		p.wait(t, "a")
		p.beforePatches(answers)
		var logged []string
		logger := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
		p.recordRefusal(ctrl.LoggerInto(t.Context(), logger), p.subjects["a"])
		g.Expect(logged).To(ConsistOf(ContainSubstring("Failed to count a refused eviction")))
	})
}

func TestReportsThatTakeLong(t *testing.T) {
	g := NewWithT(t)
	p := passOver(t, now, onePod{})
	clock := clocktesting.NewFakeClock(now)
	p.clock = clock
	var waiting []budgets.Waiting
	const pods = 200
	for i := range pods {
		waiting = append(waiting, p.wait(t, fmt.Sprint("web-", i)))
	}
	var patches atomic.Int32
	p.beforePatches(func(context.Context, string) error {
		patches.Add(1)
		clock.Step(100 * time.Millisecond)
		return nil
	})
	p.report(t.Context(), waiting)
	g.Expect(patches.Load()).To(BeNumerically("<=", 10+parallelReports), "E23: the next evictions wait for them")
	g.Expect(p.nextTry).To(Equal(now), "the next pass continues")
	g.Expect(p.blocked).To(HaveKeyWithValue(string(budgets.BudgetExhausted), pods))
}

// A Pod without an evacuator waits for its budget, and its owner annotates it. The controller of Evacuations activates the evacuator after
// the pass of the evictor has collected the Pod.
func TestEvacuatorActivatedDuringAPass(t *testing.T) {
	t.Run("E12: what a Pod waits for does not complete an evacuator that was activated meanwhile", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		e := evacuationOf(pod, "evacuation")
		p := passOver(t, now, onePod{pod: pod}, e)
		p.collected(e)

		e.Spec.Evacuators = mover
		g.Expect(p.client.Update(t.Context(), e)).To(Succeed())
		nextAction(e.DeepCopy(), pod).Apply(e, now)
		g.Expect(e.IsAssignedTo("mover.example.com")).To(BeTrue())
		g.Expect(p.client.Status().Update(t.Context(), e)).To(Succeed())

		p.report(t.Context(), []budgets.Waiting{waitingForBudget(pod)})
		next := nextAction(p.stored(t, e), pod)
		g.Expect(next.Kind).To(Equal(evacuation.AwaitEvacuator), "%s", next.Message)
		g.Expect(p.nextTry).To(Equal(now.Add(time.Second)), "the watch may have delivered the change before the patch")
	})
}

// The watch of Evacuations lags by 70 seconds, as with hundreds of drains. Another actor has changed the Evacuation once. When the watch
// has delivered that, what the Pod waits for is reported by the pass that the event starts.
func TestReportAfterALaggingWatch(t *testing.T) {
	t.Run("E12: what a Pod waits for is reported as soon as the watch has delivered the change with which the report conflicted", func(t *testing.T) {
		g, pod, clock := NewWithT(t), podNamed("web", ""), clocktesting.NewFakeClock(now)
		observed := evacuationOf(pod, "evacuation")
		p := passOver(t, now, onePod{pod: pod}, changedByAUser(observed))
		p.clock = clock
		pass := func(seen *v1alpha1.Evacuation) {
			p.now, p.nextTry = clock.Now(), time.Time{}
			p.collected(seen.DeepCopy())
			p.report(t.Context(), []budgets.Waiting{waitingForBudget(pod)})
		}
		for clock.SetTime(now); clock.Since(now) < 70*time.Second; clock.Step(time.Second) { // the watch lags
			pass(observed)
		}
		delivered, at := p.stored(t, observed), clock.Now()
		pass(delivered) // the event
		for p.stored(t, observed).Status.Message == "" {
			clock.SetTime(p.nextTry)
			pass(delivered)
		}
		g.Expect(clock.Since(at)).To(BeNumerically("<=", time.Second), "after the event of the Evacuation, which lagged by %s", at.Sub(now))
	})
}

// An evacuator misses its deadline, and the Pod waits for its budget. Late progress of the evacuator stops the eviction: the condition
// Evicting is removed, and the message stays. When the evacuator is silent again, the Pod waits for the same budget.
func TestReportAfterTheEvictionWasStopped(t *testing.T) {
	t.Run("E18, M96: reports again what an eviction waits for that was stopped by progress of the evacuator", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		e := evacuationOf(pod, "evacuation", mover...)
		e.Spec.ProgressDeadlineSeconds, e.CreationTimestamp = 600, metav1.NewTime(now.Add(-time.Hour))
		e.Status.ActiveEvacuatorClass = new("mover.example.com")
		e.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-20 * time.Minute)))
		p := passOver(t, now, onePod{pod: pod}, e)
		report := func() {
			p.collected(p.stored(t, e))
			p.report(t.Context(), []budgets.Waiting{waitingForBudget(pod)})
		}
		report()
		progress := p.stored(t, e)
		g.Expect(meta.IsStatusConditionTrue(progress.Status.Conditions, v1alpha1.EvacuationEvicting)).To(BeTrue())

		progress.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now))
		action := nextAction(progress, pod)
		g.Expect(action.Kind).To(Equal(evacuation.AwaitEvacuator))
		action.Apply(progress, now)
		g.Expect(p.client.Status().Update(t.Context(), progress)).To(Succeed())

		p.now = now.Add(20 * time.Minute)
		report()
		reported := p.stored(t, e)
		evicting := meta.FindStatusCondition(reported.Status.Conditions, v1alpha1.EvacuationEvicting)
		g.Expect(evicting).NotTo(BeNil(), "the Pod waits for its budget, and no condition says so")
		g.Expect(evacuation.IsAttempted(reported, now, true)).To(BeTrue(), "FinalEvictionAttempt never becomes true")
	})
}

// While the eviction of a Pod hangs in a webhook, its Evacuation is deleted and created again. It has the same name, because it is that of
// the same Pod, and other evacuators, because the Pod was annotated meanwhile.
func TestEvacuationRecreatedDuringAnEviction(t *testing.T) {
	pod := podNamed("web", "")
	for name, report := range map[string]func(t *testing.T, p *pass){
		"E13: a refusal is not recorded on another Evacuation of the Pod": func(t *testing.T, p *pass) {
			t.Helper()
			p.recordRefusal(t.Context(), p.subjects[pod.UID])
		},
		"E13: what the Pod waits for is not reported on another Evacuation of the Pod": func(t *testing.T, p *pass) {
			t.Helper()
			p.report(t.Context(), []budgets.Waiting{waitingForBudget(pod)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			present := evacuationOf(pod, "present", mover...)
			present.ResourceVersion = "2"
			p := passOver(t, now, onePod{pod: pod}, present)
			p.collected(evacuationOf(pod, "former"))
			report(t, p)
			g, stored := NewWithT(t), p.stored(t, present)
			next := nextAction(stored, pod)
			g.Expect(next.Kind).To(Equal(evacuation.Activate), "its evacuator is never activated: %s", next.Message)
			g.Expect(stored.Status).To(Equal(present.Status))
		})
	}
}

func TestEvacuationChangedDuringAnEviction(t *testing.T) {
	pod := podNamed("web", "")
	for name, tc := range map[string]struct {
		lags   bool // the watch
		change func(*v1alpha1.Evacuation)
		next   evacuation.Kind
	}{
		"E12: a refusal does not complete an evacuator that is about to be activated": {
			change: func(e *v1alpha1.Evacuation) { e.Spec.Evacuators = mover }, next: evacuation.Activate,
		},
		"E12: a refusal does not complete an evacuator whose activation the watch has not delivered": {
			lags: true,
			change: func(e *v1alpha1.Evacuation) {
				e.Spec.Evacuators = mover
				e.Status.ActiveEvacuatorClass, e.Status.EvacuationProgressTimestamp = new("mover.example.com"), new(metav1.NewTime(now))
			},
			next: evacuation.AwaitEvacuator,
		},
		"E18: a refusal is counted while the watch lags": {lags: true, change: func(*v1alpha1.Evacuation) {}, next: evacuation.Evict},
	} {
		t.Run(name, func(t *testing.T) {
			g, observed := NewWithT(t), evacuationOf(pod, "evacuation")
			stored := changedByAUser(observed)
			tc.change(stored)
			p := passOver(t, now, onePod{pod: pod}, stored, drainOf("one"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
			p.live = p.client
			s := p.due([]v1alpha1.Evacuation{*observed})[0]
			if tc.lags {
				p.client = interceptor.NewClient(p.live.(client.WithWatch), interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
						if e, ok := object.(*v1alpha1.Evacuation); ok {
							observed.DeepCopyInto(e)
							return nil
						}
						return c.Get(ctx, key, object, options...)
					},
				})
			}
			p.recordRefusal(t.Context(), s)
			g.Expect(p.live.Get(t.Context(), client.ObjectKeyFromObject(stored), stored)).To(Succeed())
			next := nextAction(stored, pod)
			g.Expect(next.Kind).To(Equal(tc.next), "%s", next.Message)
			g.Expect(stored.Status.FailedEvictionCounter).To(Equal(int32(1)))
			g.Expect(evacuation.IsAttempted(stored, now, false)).To(Equal(tc.next == evacuation.Evict))
		})
	}
}

func TestRefusalThatAWebhookDeniesToCount(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error
		writes int
	}{
		"E64: is not written again, as after a change of the Evacuation": {fakes.DeniedWithConflict(), 1},
		"E18: is written again after a change of the Evacuation": {
			apierrors.NewConflict(schema.GroupResource{Resource: "evacuations"}, "evacuation", errors.New("modified")), 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, writes := podNamed("web", ""), 0
			p := passOver(t, now, onePod{pod: pod}, evacuationOf(pod, "evacuation"))
			p.live = p.client
			p.beforePatches(func(context.Context, string) error {
				writes++
				return tc.answer
			})
			p.recordRefusal(t.Context(), p.due([]v1alpha1.Evacuation{*evacuationOf(pod, "evacuation")})[0])
			NewWithT(t).Expect(writes).To(Equal(tc.writes))
		})
	}
}

// A tenant deletes and creates the Evacuation of a Pod whose eviction a webhook refuses, again and again.
func TestBackoffOfPodWhoseEvacuationIsRecreated(t *testing.T) {
	t.Run("E18: the Pod has the backoff of the refusal", func(t *testing.T) {
		pod := podNamed("web", "")
		p := passOver(t, now, onePod{pod: pod}, evacuationOf(pod, "present"))
		p.recordRefusal(t.Context(), p.due([]v1alpha1.Evacuation{*evacuationOf(pod, "former")})[0])
		NewWithT(t).Expect(p.state.backoffs.of(pod.UID)).To(BeTemporally(">", now), "the next pass evicts the Pod again at once")
	})
}
