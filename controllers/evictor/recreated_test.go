package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
