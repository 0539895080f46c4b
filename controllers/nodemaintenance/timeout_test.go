package nodemaintenance

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// observedPods is an Observation in which all Pods have the same labels, and so have all Namespaces.
type observedPods struct {
	workload.Observation

	mu              sync.Mutex
	pods, namespace map[string]string
	owners          []metav1.OwnerReference // of the Pods
	deletion        *metav1.Time            // of the Pods
	gone            bool                    // no Pod exists
}

func (o *observedPods) PodByUID(uid types.UID) (*corev1.Pod, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant", Name: string(uid), UID: uid, Labels: o.pods, OwnerReferences: o.owners, DeletionTimestamp: o.deletion,
		},
		Spec: corev1.PodSpec{NodeName: "one"},
	}, !o.gone
}

func (o *observedPods) NamespaceLabels(string) (labels map[string]string, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.namespace, true
}

func (o *observedPods) DaemonSetExists(string, string, types.UID) (exists, known bool) {
	return true, true
}

// duringDeletions is what a user changes while a webhook hangs for the deletions of some Pods.
type duringDeletions struct {
	maintenance *v1alpha1.NodeMaintenance
	machine     *clusterv1.Machine
	cluster     *clusterv1.Cluster
	observed    *observedPods
	created     *v1alpha1.NodeMaintenance
	unread      bool // the NodeMaintenances of the Node cannot be listed
}

// TestDeletionsThatWait: a webhook hangs for the deletions of some Pods, so that those of others begin later.
func TestDeletionsThatWait(t *testing.T) {
	const pods = 3 * parallelWrites
	protected := &metav1.LabelSelector{MatchLabels: map[string]string{"protected": ""}}
	waits := func(stage v1alpha1.NodeMaintenanceStage) func(d *duringDeletions) {
		return func(d *duringDeletions) {
			d.created = maintenanceOf("another", "one")
			d.created.Spec.Stage = stage
			d.created.Spec.DrainRules = []v1alpha1.DrainRule{{Name: "all", Behavior: v1alpha1.DrainBehaviorWaitCompleted, Pods: []v1alpha1.DrainRulePodSelector{{}}}}
		}
	}
	const deletesAll = "R95: otherwise, all are deleted, also after another NodeMaintenance was created that does not drain the Node"
	for name, change := range map[string]func(d *duringDeletions){
		"R95: no Pod is deleted at the timeout after the Machine was paused": func(d *duringDeletions) {
			d.machine.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		},
		"R95: nor after the Cluster was paused":                              func(d *duringDeletions) { d.cluster.Spec.Paused = new(true) },
		"R95: nor after the NodeMaintenance was completed":                   func(d *duringDeletions) { d.maintenance.Spec.Stage = v1alpha1.StageComplete },
		"R95: nor after it has changed, for example the timeout":             func(d *duringDeletions) { d.maintenance.Generation++ },
		"R95: nor after it was recreated":                                    func(d *duringDeletions) { d.maintenance.UID = "another" },
		"R95: nor after the Pods have got a label of a rule that skips them": func(d *duringDeletions) { d.observed.pods = protected.MatchLabels },
		"R95: nor after their Namespace has got one":                         func(d *duringDeletions) { d.observed.namespace = protected.MatchLabels },
		"R95: nor after a DaemonSet has adopted the Pods, and would replace them": func(d *duringDeletions) {
			d.observed.owners = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "log", UID: "log", Controller: new(true)}}
		},
		"R95: nor after another NodeMaintenance was created that waits until they complete": waits(v1alpha1.StageDrain),
		"R95: nor if it cannot be read whether there is one":                                func(d *duringDeletions) { d.unread = true },
		"R95: nor after they have begun to terminate":                                       func(d *duringDeletions) { d.observed.deletion = new(metav1.Now()) },
		"R95: nor after they have terminated":                                               func(d *duringDeletions) { d.observed.gone = true },
		"R95, M115: nor after a hold that has ended meanwhile, after which the whole timeout counts again": func(d *duringDeletions) {
			d.maintenance.Annotations[v1alpha1.DrainStartedAnnotation] = time.Now().UTC().Format(time.RFC3339)
		},
		deletesAll: waits(v1alpha1.StageCordon),
	} {
		t.Run(name, func(t *testing.T) {
			g, key, now := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, time.Now().Truncate(time.Second)
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", UID: "machine"}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: machine, Node: node, Stage: v1alpha1.StageDrain})
			m.UID = "m"
			m.Spec.Evacuation.DrainTimeoutSeconds, m.Spec.Evacuation.OnTimeout = new(int32(60)), v1alpha1.OnTimeoutDelete
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
			m.Status.DrainTimeout = draintimeout.Observe(m, now.Add(-time.Minute))
			m.Spec.DrainRules = []v1alpha1.DrainRule{{
				Name: "protected", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{{Selector: protected}, {NamespaceSelector: protected}},
			}}
			management, observed := fakes.Client(machine, cluster), &observedPods{}
			var mu sync.Mutex
			deleted, unread := 0, false
			remote := withMaintenancesBuilder(m).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					mu.Lock()
					defer mu.Unlock()
					if unread {
						return errors.New("not read")
					}
					return c.List(ctx, list, options...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, _ client.Object, _ ...client.DeleteOption) error {
					mu.Lock()
					defer mu.Unlock()
					if deleted++; deleted == 1 {
						stored := m.DeepCopy()
						g.Expect(c.Get(ctx, client.ObjectKeyFromObject(m), stored)).To(Succeed())
						d := &duringDeletions{maintenance: stored, machine: machine, cluster: cluster, observed: observed}
						observed.mu.Lock()
						change(d)
						observed.mu.Unlock()
						g.Expect(c.Update(ctx, stored)).To(Succeed())
						unread = d.unread
						if d.created != nil {
							g.Expect(c.Create(ctx, d.created)).To(Succeed())
						}
						g.Expect(management.Update(ctx, machine)).To(Succeed())
						g.Expect(management.Update(ctx, cluster)).To(Succeed())
					}
					return nil
				},
			}).Build()
			requester := &machinemaintenance.Requester{Client: management, ManagementCluster: "here"}
			requester.Continue(machine, now)
			r := &Reconciler{
				Maintenances: requester,
				Clusters:     workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, key), fakes.Scheme(), workload.Limits{}, clock.RealClock{}),
				Clock:        clock.RealClock{},
			}
			s := &scope{
				request: workload.Request{Cluster: key, Object: client.ObjectKeyFromObject(m)}, client: remote, maintenance: m, before: m.DeepCopy(), now: now,
				nodes: []*corev1.Node{node}, drain: &drainState{pods: map[string][]drainedPod{}, deleteErrors: map[types.UID]error{}},
				observation: observed,
			}
			for i := range pods {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: strconv.Itoa(i), UID: types.UID(strconv.Itoa(i))}}
				s.drain.pods["one"] = append(s.drain.pods["one"], drainedPod{
					Pod: planinput.Pod{Type: v1alpha1.PodTypeDefault}, object: pod, verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain},
				})
			}
			_, err := r.deleteRemainingPods(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(s.drain.deleteErrors).To(BeEmpty())
			if name == deletesAll {
				g.Expect(deleted).To(Equal(pods))
			} else {
				g.Expect(deleted).To(And(BeNumerically(">", 0), BeNumerically("<=", parallelWrites)), "those that had begun")
				g.Expect(s.requeueAt).To(Equal(now.Add(deleteRetry)), "no event follows if a Machine cannot be read")
			}
		})
	}
}
