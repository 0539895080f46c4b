// Package progress fits what is said of the Nodes of a maintenance into an object that etcd takes and watchers can afford.
//
// What is needed is kept: each Node's drain targets, and its counts. Targets that Nodes share, and nearly all do, are stored
// once. What only explains, messages and lists of blocked Pods, is cut where it doesn't fit, and the summary says on how many
// Nodes.
package progress

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

const (
	// MaxSize is what a NodeMaintenance may take as JSON.
	MaxSize = 1_000_000
	// minRoom is what the status of the Nodes may take in any case, however large the spec is.
	minRoom = 500_000
	// reserve is for what comes to the status after its Nodes: the number of those that were cut, and changed conditions.
	reserve = 10_000
	// targetsRoom is what drain targets may take in any case, however many Nodes there are.
	targetsRoom = 50_000
	// inlineNodes is up to how many Nodes each status shows its own drain targets.
	inlineNodes = 100
	// MaxNodes is how many Nodes have a status.
	MaxNodes = 5000
)

// Fit stores the statuses of a maintenance's Nodes, sorted by name, in its status. They are changed. It counts in the summary
// those that had to be cut. The rest of the status should be there already.
func Fit(m *v1alpha1.NodeMaintenance, nodes []v1alpha1.NodeMaintenanceNodeStatus) {
	m.Status.NodeStatuses, m.Status.DrainTargetSets = nil, nil
	f := fitting{room: max(MaxSize-reserve-size(m), minRoom), nodes: nodes, cut: make([]bool, len(nodes))}
	f.leaveOut(MaxNodes)
	if len(nodes) > inlineNodes || size(nodes) > f.room {
		full := slices.Clone(f.nodes)
		f.outline()
		f.shareTargets(full)
		f.explain(full)
	}
	m.Status.NodeStatuses, m.Status.DrainTargetSets = f.nodes, f.sets
	m.Status.Summary.Truncated = f.truncated()
}

// Targets are the drain targets that a status has published, by Node.
func Targets(status *v1alpha1.NodeMaintenanceStatus) map[string][]v1alpha1.DrainTarget {
	published := make(map[string][]v1alpha1.DrainTarget, len(status.NodeStatuses))
	for _, node := range status.NodeStatuses {
		published[node.NodeRef.Name] = plan.Published(status, node)
	}
	return published
}

// fitting is the work on one status: what matters most gets its room first.
type fitting struct {
	room  int // that is left, in bytes
	nodes []v1alpha1.NodeMaintenanceNodeStatus
	sets  []v1alpha1.DrainTargetSet
	cut   []bool // by Node, those that are left out too
}

// take takes room, if there is as much.
func (f *fitting) take(length int) bool {
	if length > f.room {
		return false
	}
	f.room -= length
	return true
}

// leaveOut keeps the first n Nodes.
func (f *fitting) leaveOut(n int) {
	for i := n; i < len(f.nodes); i++ {
		f.cut[i] = true
	}
	f.nodes = f.nodes[:min(len(f.nodes), n)]
}

// outline leaves the counts of each Node. Should that be too much (thousands of Nodes with names of 200 letters), then the
// last ones are left out.
func (f *fitting) outline() {
	for i := range f.nodes {
		f.nodes[i].DrainMessage, f.nodes[i].Blocked, f.nodes[i].DrainTargets = "", nil, nil
		if !f.take(size(f.nodes[i])+len(`,"drainTargetsIndex":5000`)) || f.room < targetsRoom {
			f.leaveOut(i)
			return
		}
	}
}

// shareTargets brings the targets of the Nodes as sets. There are as many as there are different ones, which is a few: how
// far the maintenances have come that overlap. Should they not fit, then Nodes are without: what has been reached on them is
// known by their Evacuations, and the rows come back when there is room.
func (f *fitting) shareTargets(full []v1alpha1.NodeMaintenanceNodeStatus) {
	byText, byIdentity := map[string]*int32{}, map[string]*int32{}
	for i := range f.nodes {
		targets := full[i].DrainTargets
		if len(targets) == 0 {
			continue
		}
		identity := identify(targets)
		index, known := byIdentity[identity]
		if !known {
			text := marshal(targets)
			if index, known = byText[text]; !known {
				index = f.add(targets, len(text))
				byText[text] = index
			}
			byIdentity[identity] = index
		}
		f.nodes[i].DrainTargetsIndex = index
		f.cut[i] = index == nil
	}
}

func (f *fitting) add(targets []v1alpha1.DrainTarget, length int) *int32 {
	if !f.take(length + len(`{"drainTargets":},`)) {
		return nil
	}
	index := int32(len(f.sets)) //nolint:gosec // fewer than Nodes
	f.sets = append(f.sets, v1alpha1.DrainTargetSet{DrainTargets: targets})
	return &index
}

// identify tells targets apart by what they are made of. Selectors are shared, so that two that are the same have the same
// address; where they haven't, the text of the targets tells that they are equal.
func identify(targets []v1alpha1.DrainTarget) string {
	key := make([]byte, 0, 32*len(targets))
	for _, target := range targets {
		key = append(key, target.PodType...)
		key = strconv.AppendInt(append(key, ' '), int64(target.PodPriority), 10)
		if target.Order != nil {
			key = strconv.AppendInt(append(key, '/'), int64(*target.Order), 10)
		}
		if target.PodSelector != nil {
			key = fmt.Appendf(key, "%p", target.PodSelector)
		}
		key = append(key, ',')
	}
	return string(key)
}

// explain gives back to the Nodes what explains their state, as far as there is room: first the messages of those that aren't
// drained, then the Pods that hold them up, then the rest.
func (f *fitting) explain(full []v1alpha1.NodeMaintenanceNodeStatus) {
	f.addMessages(full, false)
	for i := range f.nodes {
		for n, pod := range full[i].Blocked {
			if !f.take(size(pod) + len(`,"blocked":[],`)) {
				f.cut[i] = true
				break
			}
			f.nodes[i].Blocked = full[i].Blocked[:n+1]
		}
	}
	f.addMessages(full, true)
}

func (f *fitting) addMessages(full []v1alpha1.NodeMaintenanceNodeStatus, drained bool) {
	for i := range f.nodes {
		text := full[i].DrainMessage
		switch {
		case text == "" || full[i].Drained != drained:
		case f.take(size(text) + len(`"drainMessage":,`)):
			f.nodes[i].DrainMessage = text
		default:
			f.cut[i] = true
		}
	}
}

func (f *fitting) truncated() (nodes int32) {
	for _, cut := range f.cut {
		if cut {
			nodes++
		}
	}
	return nodes
}

// size is how long something is as JSON.
func size(of any) int { return len(marshal(of)) }

func marshal(of any) string {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // our own types: a mistake of the build
	}
	return string(text)
}
