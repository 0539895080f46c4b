package evacuation_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	builtin "github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

func TestNextSurges(t *testing.T) {
	const deployment = v1alpha1.EvacuatorClassDeployment
	runNext(t, []nextTest{
		{"E80: activates the evacuator of Deployments although the spec does not list it", anEvacuation().surging(), "Activate " + deployment + " until 30m0s"},
		{
			"E80: activates it for a Pod whose eviction a budget refuses",
			anEvacuation().completed().evicting("BudgetExhausted", "x").at(time.Hour).surging(), "Activate " + deployment + " until 1h30m0s",
		},
		{"E80: activates an evacuator with a higher priority first", anEvacuation("a:20000").surging(), "Activate a until 30m0s"},
		{"E80: activates it before one with a lower priority", anEvacuation("a:1").surging(), "Activate " + deployment + " until 30m0s"},
		{"E80: does not activate it after another evacuator", anEvacuation("a:1").turnOf("a", 0).completed().surging(), "Evict EvacuatorCompleted"},
		{"E80: waits for it", anEvacuation().turnOf(deployment, 0).surging().at(time.Minute), "AwaitEvacuator " + deployment + " until 30m0s"},
		{"E80: waits for it to end a surge that is no longer requested", anEvacuation().turnOf(deployment, 0), "AwaitEvacuator " + deployment + " until 30m0s"},
		{"E80: activates it once", anEvacuation().turnOf(deployment, 0).completed().surging(), "Evict EvacuatorCompleted"},
		{
			"E80: continues with the evacuators of the spec",
			anEvacuation("a:1").turnOf(deployment, 0).completed().surging(), "Activate a until 30m0s EvacuatorCompleted",
		},
		{
			"E80: does not activate it when only the time for the eviction is left",
			anEvacuation().completed().drainEnds(20 * time.Minute).at(19 * time.Minute).surging(), "Evict DrainEndsSoon",
		},
		{"E80: does not activate it while the drain is suspended", anEvacuation().completed().paused().surging(), "AwaitResume"},
		{"E80: does not activate it for a Pod that terminates", anEvacuation().completed().pod(terminating).surging(), "AwaitTermination PodTerminating"},
	})
}

func TestInputSurges(t *testing.T) {
	surging := func(policy v1alpha1.SurgePolicy) func(*v1alpha1.NodeMaintenance) {
		return func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.Surge = policy }
	}
	const single, onRequest = v1alpha1.SurgeIfSingleReplica, v1alpha1.SurgeOnRequest
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"pool": "a"}}}
	ofDeployment := podNamed("web-5d4f-x")
	ofDeployment.Labels = map[string]string{"pod-template-hash": "5d4f"}
	ofDeployment.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d4f", Controller: new(true)}}
	requesting := ofDeployment.DeepCopy()
	requesting.Annotations = annotated(v1alpha1.EvacuatorClassDeployment + ":10000/controller")
	type list []v1alpha1.NodeMaintenance
	for name, tc := range map[string]struct {
		all     list
		pod     *corev1.Pod
		askedBy string
		want    bool
	}{
		"E80: one of two NodeMaintenances requests a surge": {list{drain(unlimited, "one"), drain(surging(single), "one")}, ofDeployment, ours, true},
		"E80: before its status lists the Node":             {list{drain(all(surging(single), withoutStatus), "one")}, ofDeployment, ours, true},
		"E80: by label, before its status lists the Node":   {list{drain(all(surging(single), labelled("a"), withoutStatus))}, ofDeployment, ours, true},
		"E80: OnRequest, and the Pod requests it":           {list{drain(surging(onRequest), "one")}, requesting, ours, true},
		"E80: OnRequest, and the Pod does not request it":   {list{drain(surging(onRequest), "one")}, ofDeployment, ours, false},
		"E80: Never, and the Pod requests it":               {list{drain(surging(v1alpha1.SurgeNever), "one")}, requesting, ours, false},
		"E80: none requests a surge":                        {list{drain(unlimited, "one")}, ofDeployment, ours, false},
		"E80: one of another Node":                          {list{drain(unlimited, "one"), drain(surging(single), "two")}, ofDeployment, ours, false},
		"E80: one that cordons":                             {list{drain(all(surging(single), cordoning), "one")}, ofDeployment, ours, false},
		"E80: one that is being deleted":                    {list{drain(unlimited, "one"), drain(all(surging(single), deleted), "one")}, ofDeployment, ours, false},
		"E80: one that is suspended":                        {list{drain(unlimited, "one"), drain(all(surging(single), ofPaused), "one")}, ofDeployment, ours, false},
		"E80: a Pod without a Deployment":                   {list{drain(surging(single), "one")}, podNamed("web"), ours, false},
		"E80: an Evacuation of another instigator only":     {list{drain(surging(single), "one")}, ofDeployment, theirs, false},
	} {
		t.Run(name, func(t *testing.T) {
			terms := evacuation.DrainersOf(tc.all, isOfPaused).On(node).Combined()
			e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{tc.askedBy}}}
			if got := len(builtin.InputOf(e, tc.pod, v1alpha1.PodTypeDefault, terms, noon).Later) > 0; got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
