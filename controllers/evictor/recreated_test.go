package evictor

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// While the eviction of a Pod hangs in a webhook, its Evacuation is deleted and created again. It has the same name, because it is that of
// the same Pod, and other evacuators, because the Pod was annotated meanwhile.
func TestEvacuationRecreatedDuringAnEviction(t *testing.T) {
	pod := podNamed("web", "")
	for name, report := range map[string]func(t *testing.T, p *pass){
		"E13: a refusal is not recorded on another Evacuation of the Pod": func(t *testing.T, p *pass) {
			t.Helper()
			clock := clocktesting.NewFakeClock(now)
			v := &Evictor{Clock: clock, Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock)}
			v.recordRefusal(t.Context(), p, p.subjects[pod.UID], refusal{reason: v1alpha1.ReasonWebhookRefused, message: "denied"}, now)
		},
		"E13: what the Pod waits for is not reported on another Evacuation of the Pod": func(t *testing.T, p *pass) {
			t.Helper()
			p.report(t.Context(), []budgets.Waiting{{
				Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Reason: budgets.BudgetExhausted, Message: "waiting for a budget",
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			former := evacuation.New(pod, nil, 0)
			former.UID, former.ResourceVersion, former.CreationTimestamp = "former", "1", metav1.NewTime(now.Add(-time.Minute))
			present := evacuation.New(pod, []v1alpha1.Evacuator{{EvacuatorClass: "mover.example.com", Priority: 1}}, 0)
			present.UID, present.CreationTimestamp = "present", metav1.NewTime(now)
			p := passOver(t, now, onePod{pod: pod}, present)
			p.subjects[pod.UID] = p.due([]v1alpha1.Evacuation{*former})[0]
			report(t, p)
			g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(present), present)).To(Succeed())
			next := evacuation.Next(evacuation.Input{Evacuation: present, Pod: evacuation.ObservedPod(present, pod, v1alpha1.PodTypeDefault), Now: now})
			g.Expect(next.Kind).To(Equal(evacuation.Activate), "its evacuator is never activated: %s", next.Message)
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
			change: func(e *v1alpha1.Evacuation) {
				e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: "mover.example.com", Priority: 1}}
			},
			next: evacuation.Activate,
		},
		"E12: a refusal does not complete an evacuator whose activation the watch has not delivered": {
			lags: true,
			change: func(e *v1alpha1.Evacuation) {
				e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: "mover.example.com", Priority: 1}}
				e.Status.ActiveEvacuatorClass, e.Status.EvacuationProgressTimestamp = new("mover.example.com"), new(metav1.NewTime(now))
			},
			next: evacuation.AwaitEvacuator,
		},
		"E18: a refusal is counted while the watch lags": {lags: true, change: func(*v1alpha1.Evacuation) {}, next: evacuation.Evict},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			observed := evacuation.New(pod, nil, 0)
			observed.UID, observed.ResourceVersion, observed.CreationTimestamp = "evacuation", "1", metav1.NewTime(now)
			evacuation.Request(observed)
			stored := observed.DeepCopy()
			stored.ResourceVersion, stored.Labels = "2", map[string]string{"changed": "by-a-user"}
			tc.change(stored)
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "drain"}}
			m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("one")
			p := passOver(t, now, onePod{pod: pod}, stored, m, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
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
			clock := clocktesting.NewFakeClock(now)
			v := &Evictor{Clock: clock, Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock)}
			v.recordRefusal(t.Context(), p, s, refusal{reason: v1alpha1.ReasonWebhookRefused, message: "denied"}, now)
			g.Expect(p.live.Get(t.Context(), client.ObjectKeyFromObject(stored), stored)).To(Succeed())
			next := evacuation.Next(evacuation.Input{Evacuation: stored, Pod: evacuation.ObservedPod(stored, pod, v1alpha1.PodTypeDefault), Now: now})
			g.Expect(next.Kind).To(Equal(tc.next), "%s", next.Message)
			g.Expect(stored.Status.FailedEvictionCounter).To(Equal(int32(1)))
			g.Expect(evacuation.IsAttempted(stored, now, false)).To(Equal(tc.next == evacuation.Evict))
		})
	}
}
