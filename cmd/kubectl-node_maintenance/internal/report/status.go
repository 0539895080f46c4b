package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Status is the result of the command status.
type Status struct {
	Context  string          `json:"context"`
	Clusters []ClusterStatus `json:"clusters,omitempty"`
	// Maintenances are those of the cluster of the context, if it is a workload cluster.
	Maintenances []MaintenanceStatus `json:"nodeMaintenances,omitempty"`
	Gaps         []string            `json:"gaps,omitempty"`
}

// ClusterStatus is a Cluster and its Machines by their owner.
type ClusterStatus struct {
	Name     string        `json:"name"`
	Machines int           `json:"machines"`
	Groups   []GroupStatus `json:"groups,omitempty"`
	// Ended are drains of deleted Machines that have ended, starting with the last one.
	Ended []EndedDrain `json:"endedDrains,omitempty"`
}

// GroupStatus is a MachineDeployment, a MachinePool, a control plane, or Machines without any of these.
type GroupStatus struct {
	Kind     string          `json:"kind"`
	Name     string          `json:"name,omitempty"`
	Machines int             `json:"machines"`
	Drains   []MachineStatus `json:"drains,omitempty"`
}

// MachineStatus is a Machine that is being deleted or whose Node is under maintenance.
type MachineStatus struct {
	Machine string `json:"machine"`
	Node    string `json:"node,omitempty"`
	Deleted string `json:"deleted,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is when the condition got its status. It may have had other reasons since then.
	Since        string              `json:"since,omitempty"`
	Maintenances []MaintenanceStatus `json:"nodeMaintenances,omitempty"`
}

// MaintenanceStatus is the progress of a NodeMaintenance.
type MaintenanceStatus struct {
	Name         string       `json:"name"`
	Stage        string       `json:"stage"`
	Since        string       `json:"since,omitempty"`
	Nodes        int32        `json:"nodes"`
	DrainedNodes int32        `json:"drainedNodes"`
	Pending      int32        `json:"podsPending"`
	Evacuating   int32        `json:"podsEvacuating"`
	Skipped      int32        `json:"podsSkipped"`
	Evacuated    int32        `json:"podsEvacuated"`
	Blocking     string       `json:"blocking,omitempty"`
	Blocked      []BlockedPod `json:"blocked,omitempty"`
	// Outcome is what became of the evicted Pods, once the Nodes are drained.
	Outcome *v1alpha1.DrainOutcome `json:"outcome,omitempty"`
	// Pods are all Pods that have an Evacuation or are blocked, if the Evacuations were read.
	Pods []BlockedPod `json:"pods,omitempty"`
}

// Drains are what a status reads of a workload cluster.
type Drains struct {
	Maintenances []v1alpha1.NodeMaintenance
	Evacuations  []v1alpha1.Evacuation // optional
}

// indexed are Drains by what they are looked up by: there may be hundreds of NodeMaintenances and thousands of Evacuations.
type indexed struct {
	maintenances map[string][]*v1alpha1.NodeMaintenance // by Machine
	evacuations  map[string][]*v1alpha1.Evacuation      // by Node; nil if they were not read
}

func (d Drains) index() indexed {
	index := indexed{maintenances: map[string][]*v1alpha1.NodeMaintenance{}}
	for i := range d.Maintenances {
		machine := d.Maintenances[i].Annotations[v1alpha1.OwnerMachineAnnotation]
		index.maintenances[machine] = append(index.maintenances[machine], &d.Maintenances[i])
	}
	if d.Evacuations != nil {
		index.evacuations = map[string][]*v1alpha1.Evacuation{}
	}
	for i := range d.Evacuations {
		node := d.Evacuations[i].Annotations[v1alpha1.EvacuationNodeAnnotation]
		index.evacuations[node] = append(index.evacuations[node], &d.Evacuations[i])
	}
	return index
}

// IsMaintained reports whether a Machine belongs in the status: it is being deleted, or has the stage annotation or a condition of this
// provider.
func IsMaintained(m *clusterv1.Machine) bool {
	_, staged := m.Annotations[v1alpha1.MachineStageAnnotation]
	return !m.DeletionTimestamp.IsZero() || staged || meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance) != nil
}

// StatusOf returns the status of Clusters. drains are those of their workload clusters, by "namespace/name" of the Cluster.
func StatusOf(machines []clusterv1.Machine, drains map[string]Drains) []ClusterStatus {
	type group struct{ cluster, kind, name string }
	groups, indexes := map[group]*GroupStatus{}, map[string]indexed{}
	for cluster, each := range drains {
		indexes[cluster] = each.index()
	}
	var order []group
	for i := range machines {
		m := &machines[i]
		key := group{m.Namespace + "/" + m.Spec.ClusterName, "Machines", ""}
		if name, found := m.Labels[clusterv1.MachineDeploymentNameLabel]; found {
			key.kind, key.name = "MachineDeployment", name
		} else if name, found := m.Labels[clusterv1.MachinePoolNameLabel]; found {
			key.kind, key.name = "MachinePool", name
		} else if machinedrain.IsControlPlane(m) {
			key.kind, key.name = "ControlPlane", m.Labels[clusterv1.MachineControlPlaneNameLabel]
		}
		if groups[key] == nil {
			groups[key] = &GroupStatus{Kind: key.kind, Name: key.name}
			order = append(order, key)
		}
		groups[key].Machines++
		if IsMaintained(m) {
			groups[key].Drains = append(groups[key].Drains, machineStatus(m, indexes[key.cluster]))
		}
	}
	slices.SortFunc(order, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	var clusters []ClusterStatus
	for _, key := range order {
		if len(clusters) == 0 || clusters[len(clusters)-1].Name != key.cluster {
			clusters = append(clusters, ClusterStatus{Name: key.cluster})
		}
		last := &clusters[len(clusters)-1]
		last.Machines += groups[key].Machines
		last.Groups = append(last.Groups, *groups[key])
	}
	return clusters
}

func machineStatus(m *clusterv1.Machine, drains indexed) MachineStatus {
	status := MachineStatus{Machine: m.Namespace + "/" + m.Name, Node: m.Status.NodeRef.Name, Deleted: stamp(m.DeletionTimestamp)}
	if condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance); condition != nil {
		status.Reason, status.Message, status.Since = condition.Reason, condition.Message, stamp(&condition.LastTransitionTime)
	}
	for _, maintenance := range drains.maintenances[status.Machine] {
		status.Maintenances = append(status.Maintenances, drains.statusOf(maintenance))
	}
	return status
}

// MaintenancesOf returns the status of the NodeMaintenances of a workload cluster, or of those that its status says concern one Node.
func MaintenancesOf(drains Drains, node string) []MaintenanceStatus {
	var all []MaintenanceStatus
	index := drains.index()
	for i := range drains.Maintenances {
		if m := &drains.Maintenances[i]; node == "" || nodeselection.HasNodeStatus(m, node) {
			all = append(all, index.statusOf(m))
		}
	}
	return all
}

// counted returns a number of Pods or Nodes that a status has. A user of a workload cluster may write any: the result is not negative, and
// sums of such numbers do not overflow.
func counted(n int32) int32 {
	const most = 1_000_000
	return min(max(n, 0), most)
}

// statusOf returns the progress of a NodeMaintenance.
func (d indexed) statusOf(m *v1alpha1.NodeMaintenance) MaintenanceStatus {
	summary := m.Status.Summary
	status := MaintenanceStatus{
		Name: m.Name, Stage: string(m.Spec.Stage), Since: stageSince(m), Nodes: counted(summary.Nodes), DrainedNodes: counted(summary.DrainedNodes),
		Pending: counted(summary.PodsPending), Evacuating: counted(summary.PodsEvacuating), Skipped: counted(summary.PodsSkipped),
		Evacuated: counted(summary.PodsEvacuated), Blocking: summary.Blocking, Outcome: m.Status.Outcome,
	}
	for i := range m.Status.NodeStatuses {
		status.Blocked = append(status.Blocked, blockedOn(&m.Status.NodeStatuses[i])...)
	}
	if d.evacuations != nil && m.Spec.Stage == v1alpha1.StageDrain {
		status.Pods = d.podsOf(m, status.Blocked)
	}
	return status
}

// stageSince returns when the stage of a NodeMaintenance began, empty if it has not.
func stageSince(m *v1alpha1.NodeMaintenance) string {
	if start := m.StageStart(m.Spec.Stage); start != nil {
		return stamp(&metav1.Time{Time: *start})
	}
	return ""
}

func blockedOn(node *v1alpha1.NodeMaintenanceNodeStatus) []BlockedPod {
	var pods []BlockedPod
	for _, blocked := range node.Blocked {
		pods = append(pods, BlockedPod{Pod: blocked.Pod, Reason: blocked.Reason, Why: blocked.Why, Since: stamp(blocked.Since)})
	}
	return pods
}

// podsOf returns the Pods of the Nodes that have an Evacuation, then those that are blocked without one.
func (d indexed) podsOf(m *v1alpha1.NodeMaintenance, blocked []BlockedPod) []BlockedPod {
	nodes, byName := sets.New[string](), map[string]BlockedPod{}
	for _, each := range blocked {
		byName[each.Pod] = each
	}
	var pods []BlockedPod
	var evacuations []*v1alpha1.Evacuation
	for i := range m.Status.NodeStatuses {
		if node := m.Status.NodeStatuses[i].NodeRef.Name; !nodes.Has(node) {
			nodes.Insert(node)
			evacuations = append(evacuations, d.evacuations[node]...)
		}
	}
	for _, e := range evacuations {
		pod := BlockedPod{Pod: e.Namespace + "/" + e.Spec.PodRef.Name, Why: e.Status.Message, Since: stamp(&e.CreationTimestamp), HasEvacuation: true}
		if known, found := byName[pod.Pod]; found {
			pod.Reason, pod.Since = known.Reason, cmp.Or(known.Since, pod.Since)
			delete(byName, pod.Pod)
		}
		pod.Expected = stamp(e.Status.ExpectedEvacuationFinishTime)
		pods = append(pods, pod)
	}
	for _, each := range blocked {
		if _, left := byName[each.Pod]; left {
			pods = append(pods, each)
		}
	}
	return pods
}

// WriteStatus writes a status for people, with each Pod if it is wide. now is the time that ages count from.
func WriteStatus(w io.Writer, s *Status, wide bool, now time.Time, style terminal.Style) {
	t := text{Writer: w, style: style, wide: wide}
	for i := range s.Clusters {
		t.cluster(&s.Clusters[i], now)
	}
	for i := range s.Maintenances {
		t.progress("", &s.Maintenances[i], now)
	}
	switch {
	case len(s.Clusters) > 0 || len(s.Maintenances) > 0:
	case len(s.Gaps) > 0:
		t.line("No Machines and no NodeMaintenances were read.")
	default:
		t.line("There are no Machines and no NodeMaintenances.")
	}
	t.gaps(t.style.Title("NOT READ"), s.Gaps)
}

func (t text) cluster(c *ClusterStatus, now time.Time) {
	fmt.Fprintln(t, t.style.Title(terminal.Clean("Cluster "+c.Name, maxLine)))
	for i := range c.Groups {
		g := &c.Groups[i]
		t.line("  %s: %d under maintenance of %d", strings.TrimSpace(g.Kind+" "+g.Name), len(g.Drains), g.Machines)
		for j := range g.Drains {
			m := &g.Drains[j]
			line := "Machine " + m.Machine
			if t.wide {
				line += ", Node " + cmp.Or(m.Node, none)
			}
			if m.Deleted != "" {
				line += ", deleted " + age(m.Deleted, now) + " ago"
			}
			if m.Reason != "" {
				line += ", " + m.Reason // m.Since is older: the condition may have had its status with other reasons
			}
			fmt.Fprintln(t, t.style.Warning("    "+terminal.Clean(line, maxLine)))
			for k := range m.Maintenances {
				t.progress("      ", &m.Maintenances[k], now)
			}
			if len(m.Maintenances) == 0 {
				for _, line := range terminal.Lines(m.Message, maxMessageLines, maxLine) {
					fmt.Fprintln(t, "      "+line)
				}
			}
		}
	}
	t.ended(c, now)
}

func (t text) progress(indent string, m *MaintenanceStatus, now time.Time) {
	fmt.Fprint(t, indent)
	t.line("NodeMaintenance %s, stage %s for %s: %s, %d evacuating, %d pending, %d skipped; %d of %d Nodes drained",
		m.Name, m.Stage, age(m.Since, now), evacuated(m.Evacuated, m.Evacuated+m.Evacuating+m.Pending), m.Evacuating, m.Pending, m.Skipped, m.DrainedNodes, m.Nodes)
	if m.Blocking != "" && len(m.Blocked) == 0 {
		fmt.Fprint(t, indent)
		t.line("  %s", m.Blocking)
	}
	if m.Outcome != nil {
		fmt.Fprint(t, indent+"  After the drain: ")
		t.outcome(indent+"    ", m.Outcome)
	}
	if t.wide {
		for _, pod := range m.Pods {
			fmt.Fprint(t, indent)
			t.line("  Pod %s for %s, now: %s", pod.Pod, age(pod.Since, now), cmp.Or(pod.Why, "Evacuation requested"))
		}
		return
	}
	t.blocked(indent, m.Blocked, now)
}

// blocked writes one line for adjacent Pods with the same reason. Since is when a Pod began to wait, maybe for something else.
func (t text) blocked(indent string, pods []BlockedPod, now time.Time) {
	for i := 0; i < len(pods); {
		first, names, oldest, prefix := pods[i], []string{}, pods[i].Since, ""
		for ; i < len(pods) && pods[i].Why == first.Why; i++ { // of each Node, those that wait longest are first
			names = append(names, pods[i].Pod)
			if age(pods[i].Since, now) != age(first.Since, now) {
				prefix = "at most "
			}
			if since := pods[i].Since; oldest == "" || since != "" && since < oldest {
				oldest = since
			}
		}
		fmt.Fprint(t, indent)
		t.line("  %s for %s, now: %s", PodNames(names), prefix+age(oldest, now), first.Why)
	}
}

// barWidth is the width of the progress bar of a drain.
const barWidth = 8

// evacuated says how many Pods were evacuated, with a progress bar if there are any Pods.
func evacuated(done, all int32) string {
	count := fmt.Sprintf("%d of %d Pods evacuated", done, all)
	if all == 0 {
		return count
	}
	full := int(done) * barWidth / int(all)
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full) + " " + count
}

// Names returns the Machines of a management cluster or the NodeMaintenances of a workload cluster, as kubectl names objects.
func (s *Status) Names() []string {
	var names []string
	for _, cluster := range s.Clusters {
		for _, group := range cluster.Groups {
			for i := range group.Drains {
				_, name, _ := strings.Cut(group.Drains[i].Machine, "/")
				names = append(names, "machine."+clusterv1.GroupVersion.Group+"/"+name)
			}
		}
	}
	for i := range s.Maintenances {
		names = append(names, "nodemaintenance."+v1alpha1.GroupVersion.Group+"/"+s.Maintenances[i].Name)
	}
	return names
}
