package nodemaintenance

import (
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestStepsOfOtherManagementClusters(t *testing.T) {
	cluster, node := types.NamespacedName{Namespace: "fleet", Name: "c"}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
	deletedAt := metav1.NewTime(time.Unix(1, 0))
	type change func(*v1alpha1.NodeMaintenance, *clusterv1.Machine)
	deleted := func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) { machine.DeletionTimestamp = &deletedAt }
	paused := func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
		machine.Annotations[clusterv1.PausedAnnotation] = ""
	}
	completed := func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
		m.Spec.Stage, m.DeletionTimestamp = v1alpha1.StageComplete, &deletedAt
	}
	namesake := func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
		machine.Status.NodeRef.Name = "two"
	}
	ofOtherCluster := func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
		m.Annotations[v1alpha1.OwnerClusterAnnotation] = "fleet/other"
	}
	const restores = "uncordon"
	for _, tc := range []struct {
		name    string
		changes []change
		absent  bool // the Machine does not exist here
		gone    bool // the Node does not exist
		want    string
	}{
		{name: "M89: waits until the Machine's controller continues the drain", changes: []change{deleted}},
		{
			name: "M88: deletes the NodeMaintenance of a deleted Node although its Machine still exists", changes: []change{deleted}, gone: true,
			want: "deleteMaintenance",
		},
		{name: "M88: deletes it if the Machine does not exist", absent: true, gone: true, want: "deleteMaintenance"},
		{name: "M16: changes nothing while the Machine is paused", changes: []change{deleted, paused}, gone: true},
		{name: "M90: does nothing if the Machine does not exist here", absent: true},
		{name: "M90: does nothing if the Machine is one of another Cluster", changes: []change{ofOtherCluster}},
		{name: "M90: restores the Node of a completed NodeMaintenance whose Machine does not exist here", changes: []change{completed}, absent: true, want: restores},
		{name: "M90: restores it if the Machine of that name here has another Node and is deleted", changes: []change{completed, deleted, namesake}, want: restores},
		{name: "M90: restores it if that Machine is paused", changes: []change{completed, paused, namesake}, want: restores},
		{name: "M17: keeps the Node of a deleted Machine cordoned", changes: []change{completed, deleted}, want: "removeFinalizer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			machine := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet", Name: "m", Finalizers: []string{clusterv1.MachineFinalizer}, Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: ""},
				},
				Status: clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "one"}},
			}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "there", Cluster: cluster, Machine: machine, Node: node})
			for _, change := range tc.changes {
				change(m, machine)
			}
			management := fakes.Builder()
			if !tc.absent {
				management.WithObjects(machine)
			}
			s := &scope{request: workload.Request{Cluster: cluster}, maintenance: m, nodes: []*corev1.Node{node}}
			if tc.gone {
				s.nodes = nil
			}
			c := management.Build()
			r := &Reconciler{Machines: c, ManagementCluster: "here", Maintenances: &machinemaintenance.Requester{Client: c, ManagementCluster: "here"}}
			g.Expect(r.findMachine(t.Context(), s)).To(Succeed())
			if got := names(r.steps(s)); tc.want == "" {
				g.Expect(got).To(BeEmpty())
			} else {
				g.Expect(got).To(ContainElement(tc.want))
				g.Expect(slices.Contains(got, restores)).To(Equal(tc.want == restores))
			}
		})
	}
}

func TestNodeOfReleasedMachine(t *testing.T) {
	cluster, deletedAt := types.NamespacedName{Namespace: "fleet", Name: "c"}, metav1.NewTime(time.Unix(1, 0))
	for name, tc := range map[string]struct {
		machine, isRunning, clusterDeleted bool
		kept                               bool
	}{
		"M53, M54: stays cordoned while the Machine is being deleted":                        {machine: true, kept: true},
		"M54: stays cordoned when the Machine was deleted with its Cluster":                  {clusterDeleted: true, kept: true},
		"M18: is restored if a user completes the NodeMaintenance of a Machine that is gone": {},
		"M30: is restored if the Machine is running":                                         {machine: true, isRunning: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
			cordon.Apply(node)
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", Finalizers: []string{clusterv1.MachineFinalizer}}}
			owner := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", Finalizers: []string{clusterv1.ClusterFinalizer}}}
			if !tc.isRunning {
				machine.DeletionTimestamp = &deletedAt
			}
			if tc.clusterDeleted {
				owner.DeletionTimestamp = &deletedAt
			}
			management := fakes.Builder(owner)
			if tc.machine {
				management.WithObjects(machine)
			}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: cluster, Machine: machine, Node: node, Stage: v1alpha1.StageComplete})
			c := management.Build()
			r := &Reconciler{
				Machines: c, ManagementCluster: "here", Maintenances: &machinemaintenance.Requester{Client: c, ManagementCluster: "here"},
				written: expectations.New[*corev1.Node](t.Context(), workload.TrimNode),
				Clock:   clock.RealClock{},
			}
			s := &scope{request: workload.Request{Cluster: cluster}, maintenance: m, nodes: []*corev1.Node{node}}
			g.Expect(r.findMachine(t.Context(), s)).To(Succeed())
			g.Expect(slices.Contains(names(r.steps(s)), "uncordon")).NotTo(Equal(tc.kept))
			g.Expect(names(r.steps(s))).To(ContainElement("withdraw"))
			s.maintenance = m.DeepCopy()
			s.maintenance.Spec.Stage = v1alpha1.StageDrain
			g.Expect(reflect.DeepEqual(names(r.steps(s)), []string{"moveToComplete"})).
				To(Equal(tc.clusterDeleted), "no drain continues when a Machine was deleted with its Cluster")

			remote := withMaintenancesBuilder(node, m.DeepCopy()).Build()
			r.Clusters = clustersWith(clustercache.NewFakeClusterCache(remote, cluster), cluster)
			of := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "user"}, Spec: v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("one"), Stage: v1alpha1.StageComplete},
			}
			user := &scope{
				request: workload.Request{Cluster: cluster}, client: remote, before: of, maintenance: of, nodes: []*corev1.Node{node},
				others: []v1alpha1.NodeMaintenance{*m},
			}
			_, err := r.uncordon(t.Context(), user)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(node.Spec.Unschedulable).To(Equal(tc.kept), "the maintenance of another author ends")
		})
	}
}

func TestNodeThatIsNotInTheCache(t *testing.T) {
	for name, tc := range map[string]struct {
		stored  *corev1.Node
		deleted bool
	}{
		"M109: keeps the NodeMaintenance of a Node that the watch has not delivered": {
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}, false,
		},
		"M18: deletes the NodeMaintenance of a Node that does not exist": {nil, true},
		"M18: deletes the NodeMaintenance of a Node that was registered again with the same name": {
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "2"}}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m"}}
			m := machinedrain.Maintenance(machinedrain.Request{
				ManagementCluster: "here", Cluster: cluster, Machine: machine, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}},
			})
			m.UID = "m"
			builder := fakes.Builder(m).
				WithIndex(&v1alpha1.Evacuation{}, "node", func(client.Object) []string { return nil })
			cached := builder.Build()
			g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			stored := fakes.Builder()
			if tc.stored != nil {
				stored.WithObjects(tc.stored)
			}
			r := &Reconciler{
				ManagementCluster: "here",
				Clusters:          clustersWith(clustercache.NewFakeClusterCache(stored.Build(), cluster), cluster),
			}
			s := &scope{request: workload.Request{Cluster: cluster}, client: cached, maintenance: m, before: m.DeepCopy(), now: time.Now()}
			for _, step := range r.steps(s) {
				if done, err := step(t.Context(), s); !done {
					g.Expect(err).NotTo(HaveOccurred())
					break
				}
			}
			g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed(), "it has a finalizer")
			g.Expect(m.DeletionTimestamp != nil).To(Equal(tc.deleted))
			g.Expect(s.requeueAt.IsZero()).To(Equal(tc.deleted))
		})
	}
}

func TestConfirmationDuringAPause(t *testing.T) {
	for name, tc := range map[string]struct{ paused, held bool }{
		"M95: a NodeMaintenance that is reconciled while its Machine is paused is not found to be drained": {paused: true},
		"M113: one whose drain a hook holds is not found to be drained before the hold is recorded":        {held: true},
		"M95: keeps the confirmation of one that is not suspended":                                         {},
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme, cluster := NewWithT(t), fakes.Scheme(), types.NamespacedName{Namespace: "fleet", Name: "c"}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", Annotations: map[string]string{}}}
			stage := v1alpha1.StageIdle
			if tc.paused {
				machine.Annotations[clusterv1.PausedAnnotation] = ""
			}
			if tc.held {
				stage, machine.DeletionTimestamp, machine.Finalizers = v1alpha1.StageDrain, new(metav1.Now()), []string{clusterv1.MachineFinalizer}
				machine.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/approval"] = "x"
			}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: cluster, Machine: machine, Node: node, Stage: stage})
			m.UID = "m"
			management := fakes.Client(machine, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
			remote := fakes.Builder(m, node).WithStatusSubresource(m).
				WithIndex(m, "node", func(object client.Object) []string { return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance)) }).Build()
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			requester := &machinemaintenance.Requester{Client: management, ManagementCluster: "here"}
			r := &Reconciler{
				ManagementCluster: "here", Machines: management, Maintenances: requester, Clock: clock.RealClock{},
				written:  expectations.New[*corev1.Node](t.Context(), workload.TrimNode),
				Clusters: workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, cluster), scheme, workload.Limits{}, clock.RealClock{}),
			}
			request := workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)}
			r.Clusters.ConfirmDrained(request, m, "one", false, nil)
			_, err := r.Reconcile(t.Context(), request)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Clusters.IsConfirmed(request, m)).NotTo(Equal(tc.paused || tc.held))
		})
	}
}

func TestConfirmationOfAnUncordonedNode(t *testing.T) {
	for name, tc := range map[string]struct {
		errors map[string]error
		want   bool
	}{
		"M110: a Node without Pods that could not be cordoned is not found to be drained": {map[string]error{"one": errors.New("denied")}, false},
		"M110: a cordoned Node without Pods is":                                           {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock.RealClock{})}
			s := &scope{maintenance: &v1alpha1.NodeMaintenance{}, nodes: []*corev1.Node{{}}, cordonErrors: tc.errors, drain: &drainState{}}
			s.maintenance.UID, s.drain.decision.Drained = "m", true
			if _, err := r.confirm(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if got := r.Clusters.IsConfirmed(s.request, s.maintenance); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// The writes of a reconciliation take so long that contact with the workload cluster was lost and restored meanwhile.
func TestConfirmationFromAWatchThatHasEnded(t *testing.T) {
	for name, drained := range map[string]bool{
		"M96: final eviction attempts that were found before the watch of the Pods ended are not confirmed": false,
		"M95: nor is the end of the drain": true,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := &Reconciler{Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock.RealClock{})}
			s := &scope{maintenance: &v1alpha1.NodeMaintenance{}, nodes: []*corev1.Node{{}}, drain: &drainState{finalAttempt: draintimeout.Progress{AllDue: true}}}
			s.maintenance.UID, s.drain.decision.Drained = "m", drained
			s.observation = struct{ workload.Observation }{}
			_, err := r.confirm(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Clusters.IsAttempted(s.request, s.maintenance)).To(BeFalse(), "a Pod that has started since gets no attempt")
			g.Expect(r.Clusters.IsConfirmed(s.request, s.maintenance)).To(BeFalse())
		})
	}
}

func TestAttemptOfEarlierProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		waiting map[types.UID]string
		want    bool
	}{
		"M96: a Pod that waited for its budget when the last manager stopped has had no final eviction attempt": {nil, false},
		"M13, M96: a Pod that the evictor of this process has found waiting has had it":                         {map[types.UID]string{"pod": "one"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewWithT(t), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			began := metav1.NewTime(now.Add(-2 * time.Hour)) // the manager has stopped before the deadline, and starts now
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "one"}}
			e := evacuation.New(pod, nil, 0)
			e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: string(budgets.BudgetExhausted)}}
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1", CreationTimestamp: began}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain},
			}
			m.Spec.Evacuation.DrainTimeoutSeconds = new(int32(3600))
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: began}}
			m.Status.DrainTimeout = &v1alpha1.DrainTimeoutStatus{Deadline: metav1.NewTime(began.Add(time.Hour)), ObservedTime: began}
			r := &Reconciler{Clusters: workload.NewClusters(nil, nil, nil, workload.Limits{}, clock.RealClock{})}
			s := &scope{
				now: now, before: m, maintenance: m.DeepCopy(), joined: map[string]*metav1.Time{},
				nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one", CreationTimestamp: began}}},
				drain: &drainState{pods: map[string][]drainedPod{"one": {{
					Pod: planinput.Pod{Type: v1alpha1.PodTypeDefault}, object: pod, evacuation: e, verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain},
				}}}},
			}
			g.Expect(finalAttempts(s, tc.waiting)).To(HaveKey(pod.UID), "the final eviction attempt is due")
			_, err := r.confirm(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Clusters.IsAttempted(s.request, m)).To(Equal(tc.want))
		})
	}
}

func TestEnqueue(t *testing.T) {
	for name, change := range map[string]workload.ChangeType{
		"M96: reconciles the NodeMaintenance of a Node whose Pods the evictor has found waiting": workload.PodsWaiting,
		"M162: reconciles the NodeMaintenance of a Node when it is no longer suspended":          workload.DrainContinued,
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("one")}}
			remote := fakes.Builder(m).WithIndex(m, "node", func(object client.Object) []string {
				return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
			}).Build()
			r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(remote, cluster), cluster)}
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[workload.Request]())
			r.enqueue(t.Context(), queue, workload.Change{Cluster: cluster, Type: change, Node: "one"})
			g.Expect(queue.Len()).To(Equal(1))
			request, _ := queue.Get()
			g.Expect(request).To(Equal(workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}))
		})
	}
}

// names returns the names of the methods that are steps.
func names(steps []step) []string {
	var all []string
	for _, each := range steps {
		name := runtime.FuncForPC(reflect.ValueOf(each).Pointer()).Name()
		all = append(all, strings.TrimSuffix(name[strings.LastIndex(name, ".")+1:], "-fm"))
	}
	return all
}
