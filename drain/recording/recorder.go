package recording

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// maxMessage is the maximum length of a message.
	maxMessage = 256
	// maxNodes is the maximum number of Nodes of a NodeMaintenance that are recorded.
	maxNodes = 500
)

// Observation is what is observed at one time.
type Observation struct {
	// Machines are those that are being deleted or maintained.
	Machines  []clusterv1.Machine
	Workloads []Workload
	// Ended are drains of deleted Machines that have ended.
	Ended []outcome.Ended
	Gaps  []string
}

// Workload is what is observed of a workload cluster.
type Workload struct {
	// Cluster is "namespace/name" of the Cluster, empty for the cluster of the context.
	Cluster      string
	Maintenances []v1alpha1.NodeMaintenance
	Evacuations  []v1alpha1.Evacuation
	Budgets      []policyv1.PodDisruptionBudget
	// Terminating are the UIDs of Pods that are being deleted.
	Terminating sets.Set[types.UID]
	// Deployments and StatefulSets are those of the Namespaces of the Evacuations, now or earlier.
	Deployments  []appsv1.Deployment
	StatefulSets []appsv1.StatefulSet
	// Unread are the kinds, of Budgets, Deployments and StatefulSets, that were not read yet or cannot be read at present. What was read of
	// them before is still listed.
	Unread sets.Set[string]
}

// Recorder knows the last line of each object. The zero value has recorded nothing.
type Recorder struct {
	begin      time.Time       // of the recording
	last       map[string]Line // by object
	namespaces sets.Set[string]
	evacuated  sets.Set[string] // the Pods that have, or had, an Evacuation

	applications applications
}

// Observe returns a line for each object that has changed, in a stable order.
func (r *Recorder) Observe(o Observation, now time.Time) []Line {
	if r.last == nil {
		r.begin = now
		r.last, r.namespaces, r.evacuated = map[string]Line{}, sets.New[string](), sets.New[string]()
		r.applications = applications{recorded: sets.New[string](), assigned: sets.New[string]()}
	}
	present := map[string]Line{}
	for _, gap := range o.Gaps {
		present["gap "+gap] = Line{Gap: text.Cut(gap, maxMessage)}
	}
	for i := range o.Machines {
		machine := machineOf(&o.Machines[i])
		present["machine "+machine.Name] = Line{Machine: machine}
	}
	for i := range o.Workloads {
		r.workload(&o.Workloads[i], present)
	}
	r.outcomes(&o, present)
	var lines []Line
	for _, id := range slices.Sorted(maps.Keys(present)) {
		if line := present[id]; !reflect.DeepEqual(line, r.last[id]) {
			line.Time = now
			lines = append(lines, line)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.last)) {
		if _, found := present[id]; !found {
			if line, ends := gone(r.last[id]); ends {
				line.Time = now
				lines = append(lines, line)
			}
		}
	}
	r.last = present
	slices.SortStableFunc(lines, func(a, b Line) int { return cmp.Compare(rank(a), rank(b)) })
	return lines
}

// rank orders the lines of one observation: a drain comes before its Pods.
func rank(line Line) int {
	switch {
	case line.Machine != nil:
		return 0
	case line.Drain != nil:
		return 1
	case line.Budget != nil:
		return 2
	case line.Application != nil:
		return 3
	default:
		return 4
	}
}

// gone returns the line of an object that does not exist any more.
func gone(last Line) (line Line, ends bool) {
	switch {
	case last.Machine != nil:
		machine := *last.Machine
		machine.Gone = true
		return Line{Machine: &machine}, true
	case last.Drain != nil:
		drain := *last.Drain
		drain.Gone = true
		return Line{Drain: &drain}, true
	case last.Pod != nil:
		pod := *last.Pod
		pod.Gone = true
		return Line{Pod: &pod}, true
	case last.Budget != nil:
		budget := *last.Budget
		budget.Gone = true
		return Line{Budget: &budget}, true
	case last.Application != nil:
		application := *last.Application
		application.Gone = true
		return Line{Application: &application}, true
	default:
		return Line{}, false
	}
}

func machineOf(m *clusterv1.Machine) *Machine {
	machine := &Machine{
		Cluster: m.Namespace + "/" + m.Spec.ClusterName, Name: m.Namespace + "/" + m.Name, Node: m.Status.NodeRef.Name, Deleted: timeOf(m.DeletionTimestamp),
	}
	if condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance); condition != nil {
		machine.Reason, machine.Since = condition.Reason, timeOf(&condition.LastTransitionTime)
		if condition.Reason != v1alpha1.ReasonMachineDraining { // the lines of the Pods say it
			machine.Message = text.Cut(condition.Message, maxMessage)
		}
	}
	return machine
}

func (r *Recorder) workload(w *Workload, present map[string]Line) {
	list := make([]*policyv1.PodDisruptionBudget, 0, len(w.Budgets))
	for i := range w.Budgets {
		list = append(list, &w.Budgets[i])
	}
	index := budgets.NewIndex(list, nil)
	for i := range w.Evacuations {
		e := &w.Evacuations[i]
		pod := &Pod{
			Cluster: w.Cluster, Name: e.Namespace + "/" + e.Spec.PodRef.Name, UID: e.Spec.PodRef.UID, Node: e.Annotations[v1alpha1.EvacuationNodeAnnotation],
			Since: timeOf(&e.CreationTimestamp), Refusals: e.Status.FailedEvictionCounter, Message: text.Cut(e.Status.Message, maxMessage),
		}
		id := "pod " + w.Cluster + " " + pod.UID
		if last := r.last[id].Pod; w.Terminating.Has(types.UID(pod.UID)) || last != nil && last.Reason == history.WaitTermination { // or already deleted
			pod.Reason, pod.Message = history.WaitTermination, ""
		} else {
			pod.waitOf(e, index)
		}
		r.evacuated.Insert(w.Cluster + " " + pod.Node + " " + pod.Name)
		r.namespaces.Insert(w.Cluster + " " + e.Namespace)
		present[id] = Line{Pod: pod}
	}
	for i := range w.Maintenances {
		m := &w.Maintenances[i]
		id, state := "nodemaintenance "+w.Cluster+" "+m.Name, maintenanceOf(w.Cluster, m)
		if last := r.last[id].Drain; last != nil {
			state.Evacuated = last.Evacuated
		}
		present[id] = Line{Drain: state}
		if m.Spec.Stage == v1alpha1.StageDrain {
			r.withoutEvacuation(w.Cluster, m, present)
		}
	}
	for i := range w.Budgets {
		if b := &w.Budgets[i]; r.namespaces.Has(w.Cluster + " " + b.Namespace) {
			name := b.Namespace + "/" + b.Name
			present["budget "+w.Cluster+" "+name] = Line{Budget: &Budget{
				Cluster: w.Cluster, Name: name, Allowed: b.Status.DisruptionsAllowed, Healthy: b.Status.CurrentHealthy, Required: b.Status.DesiredHealthy,
				Pods: b.Status.ExpectedPods, Unread: w.Unread.Has(KindBudget),
			}}
		}
	}
	r.applications.observe(w, index, present)
}

// withoutEvacuation adds the Pods that block a drain and have no Evacuation, for example since they must complete. A status lists a Pod for
// some time after its Evacuation has ended.
func (r *Recorder) withoutEvacuation(cluster string, m *v1alpha1.NodeMaintenance, present map[string]Line) {
	for _, node := range m.Status.NodeStatuses {
		for _, blocked := range node.Blocked {
			if blocked.Reason != "" || r.evacuated.Has(cluster+" "+node.NodeRef.Name+" "+blocked.Pod) {
				continue
			}
			present["pod "+cluster+" "+blocked.Pod] = Line{Pod: &Pod{
				Cluster: cluster, Name: blocked.Pod, Node: node.NodeRef.Name, Since: timeOf(blocked.Since), Reason: history.WaitOther,
				Message: text.Cut(blocked.Why, maxMessage),
			}}
		}
	}
}

// maintenanceOf returns the recorded state of a NodeMaintenance. Unlike for NodeMaintenance.IsDrained, the Nodes stay drained until the
// controller has observed an edit of the spec: the edit does not change when their drain ended.
func maintenanceOf(cluster string, m *v1alpha1.NodeMaintenance) *Maintenance {
	state := &Maintenance{
		Cluster: cluster, Name: m.Name, Machine: m.Annotations[v1alpha1.OwnerMachineAnnotation], Stage: string(m.Spec.Stage),
		Evacuated: m.Status.Summary.PodsEvacuated,
		Drained:   m.Spec.Stage == v1alpha1.StageDrain && meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained),
	}
	if start := m.StageStart(m.Spec.Stage); start != nil {
		utc := start.UTC()
		state.Since = &utc
	}
	for i := range m.Status.NodeStatuses[:min(len(m.Status.NodeStatuses), maxNodes)] {
		state.Nodes = append(state.Nodes, m.Status.NodeStatuses[i].NodeRef.Name)
	}
	return state
}

func timeOf(t *metav1.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}

// waitOf sets what the status of an Evacuation says.
func (p *Pod) waitOf(e *v1alpha1.Evacuation, index *budgets.Index) {
	wait := history.EvacuationWait(e)
	p.Reason, p.Object = wait.Reason, wait.Object
	if wait.AwaitsBudget() {
		p.budgetOf(e, index)
	}
}

// budgetOf sets the PodDisruptionBudget of a Pod, if it is known. An Evacuation has the labels of its Pod.
func (p *Pod) budgetOf(e *v1alpha1.Evacuation, index *budgets.Index) {
	for _, budget := range index.Covering(budgets.Pod{Namespace: e.Namespace, Name: e.Spec.PodRef.Name, Labels: e.Labels}) {
		p.Object, p.NeverAllows = "PodDisruptionBudget "+budget.String(), budget.NeverAllowsDisruption()
		return
	}
}
