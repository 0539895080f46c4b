// Package progress reports the progress of a drain: what blocks each Pod, and a status of thousands of Nodes that fits into one object.
//
// The status always contains the counts of each Node and, if possible, its drain targets. Targets that several Nodes have are stored once.
// Messages and lists of blocked Pods are omitted where they do not fit, and the summary counts the Nodes concerned.
package progress

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

const (
	// MaxSize is the maximum size of a NodeMaintenance as JSON, in bytes.
	MaxSize = 1_000_000
	// minRoom is the size that the status of the Nodes may have regardless of the spec.
	minRoom = 500_000
	// reserve is for what is added to the status after its Nodes: Summary.Truncated and changed conditions.
	reserve = 10_000
	// targetsRoom is the size that drain targets may have regardless of the number of Nodes.
	targetsRoom = 50_000
	// inlineNodes is the maximum number of Nodes whose status contains the drain targets themselves.
	inlineNodes = 100
	// MaxNodes is the maximum number of Nodes with a status.
	MaxNodes = nodeselection.MaxNodes
)

// Fit stores the statuses of the Nodes of a maintenance, sorted by name, in its status, and counts the truncated ones in the summary. It
// modifies the given statuses. The rest of the status must be set before.
func Fit(m *v1alpha1.NodeMaintenance, nodes []v1alpha1.NodeMaintenanceNodeStatus) {
	m.Status.NodeStatuses, m.Status.DrainTargetSets = nil, nil
	f := fitting{nodes: nodes, cut: make([]bool, len(nodes))}
	f.leaveOut(MaxNodes)
	if len(nodes) > inlineNodes || size(nodes) > minRoom { // else they fit, whatever the size of the spec
		f.room = max(MaxSize-reserve-size(m), minRoom)
		if len(nodes) > inlineNodes || size(nodes) > f.room {
			f.shorten()
		}
	}
	m.Status.NodeStatuses, m.Status.DrainTargetSets = f.nodes, f.sets
	m.Status.Summary.Truncated = f.truncated()
}

// Targets returns the published drain targets of a status, by Node.
func Targets(status *v1alpha1.NodeMaintenanceStatus) map[string][]v1alpha1.DrainTarget {
	published := make(map[string][]v1alpha1.DrainTarget, len(status.NodeStatuses))
	for _, node := range status.NodeStatuses {
		published[node.NodeRef.Name] = plan.Published(status, node)
	}
	return published
}

// fitting is the state of Fit. The most important fields are added first.
type fitting struct {
	room  int // remaining, in bytes
	nodes []v1alpha1.NodeMaintenanceNodeStatus
	sets  []v1alpha1.DrainTargetSet
	cut   []bool // by Node, including the omitted ones
}

// take reduces the room by a length. It returns false if the room is smaller.
func (f *fitting) take(length int) bool {
	if length > f.room {
		return false
	}
	f.room -= length
	return true
}

// shorten omits what does not fit from the status of the Nodes.
func (f *fitting) shorten() {
	full := slices.Clone(f.nodes)
	f.outline()
	f.shareTargets(full)
	f.explain(full)
}

// leaveOut omits all but the first n Nodes.
func (f *fitting) leaveOut(n int) {
	for i := n; i < len(f.nodes); i++ {
		f.cut[i] = true
	}
	f.nodes = f.nodes[:min(len(f.nodes), n)]
}

// outline keeps only the counts of each Node. If that is too large (thousands of Nodes with names of 200 characters), it omits the last
// Nodes.
func (f *fitting) outline() {
	for i := range f.nodes {
		f.nodes[i].DrainMessage, f.nodes[i].Blocked, f.nodes[i].DrainTargets = "", nil, nil
		if !f.take(size(f.nodes[i])+len(`,"drainTargetsIndex":5000`)) || f.room < targetsRoom {
			f.leaveOut(i)
			return
		}
	}
}

// shareTargets stores each distinct list of targets once. There are few of them: one for each progress of overlapping maintenances. A Node
// whose list does not fit has no targets in the status. Its Evacuations keep what it has reached.
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

// identify returns a key that is equal for targets with identical fields. It compares selectors by address, since most of them are shared;
// the JSON of the targets then finds the other equal ones.
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

// explain adds messages and blocked Pods to the Nodes, as far as they fit: first the messages of Nodes that are not drained, then their
// blocked Pods, then the other messages.
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

// size returns the length of a value as JSON.
func size(of any) int { return len(marshal(of)) }

func marshal(of any) string {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // our types can always be encoded
	}
	return string(text)
}
