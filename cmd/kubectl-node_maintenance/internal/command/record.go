package command

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

const (
	// recordInterval is the minimum time between two observations. Changes in between are recorded as one.
	recordInterval = 100 * time.Millisecond
	// maxRecording is the maximum size of a recording.
	maxRecording = 64 << 20
)

// recorder writes a recording.
type recorder struct {
	file  *os.File
	clock clock.WithTicker
	limit int

	mu      sync.Mutex
	lines   recording.Recorder
	written int
	ended   error // nil while it records
}

// errLimitReached means that the recording has its maximum size.
var errLimitReached = errors.Errorf("the recording has reached its maximum size of %d MiB and ended; the drains continue", maxRecording>>20)

// newRecorder creates the file, which must not exist.
func newRecorder(name, title string, clock clock.WithTicker) (*recorder, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the file that the user names
	if err != nil {
		return nil, errors.Wrap(err, "creating the recording")
	}
	r := &recorder{file: file, clock: clock, limit: maxRecording}
	r.write(recording.Line{Time: r.now(), Start: &recording.Start{Version: recording.Version, Context: title}})
	return r, r.ended
}

func (r *recorder) now() time.Time { return r.clock.Now().UTC().Truncate(time.Millisecond) }

// follow records what is observed whenever it has changed. It passes on the changes.
func (r *recorder) follow(ctx context.Context, changed <-chan struct{}, observe func() recording.Observation) <-chan struct{} {
	passed := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			r.observe(observe())
			select {
			case passed <- struct{}{}:
			default:
			}
			select {
			case <-ctx.Done():
				return
			case <-r.clock.After(recordInterval):
			}
		}
	}()
	return passed
}

func (r *recorder) observe(o recording.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.write(r.lines.Observe(o, r.now())...)
	}
}

// write writes lines with one write, so that a recorder that is killed leaves whole lines.
func (r *recorder) write(lines ...recording.Line) {
	var text []byte
	for _, line := range lines {
		encoded, err := json.Marshal(line)
		if err != nil {
			r.ended = errors.Wrap(err, "writing the recording")
			return
		}
		text = append(append(text, encoded...), '\n')
		if r.written+len(text) > r.limit {
			end, _ := json.Marshal(recording.Line{Time: line.Time, End: recording.EndLimitReached}) //nolint:errchkjson // it can be encoded
			text, r.ended = append(text[:len(text)-len(encoded)-1], append(end, '\n')...), errLimitReached
			break
		}
	}
	r.written += len(text)
	if _, err := r.file.Write(text); err != nil {
		r.ended = errors.Wrap(err, "writing the recording")
	}
}

// problem says that the recording has ended, nil if it has not.
func (r *recorder) problem() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		return nil
	}
	return []string{"changes for the recording: " + r.ended.Error()}
}

// close ends the recording, and returns why it had ended before, if it had.
func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.write(recording.Line{Time: r.now(), End: recording.EndStopped})
		if r.ended == nil {
			r.ended = errors.New("the recording is closed")
			return errors.Wrap(r.file.Close(), "closing the recording")
		}
	}
	_ = r.file.Close()
	return r.ended
}

// recorded returns what is recorded of what is watched. Clusters stay recorded after their last drain, while they have Machines.
func recorded(ctx context.Context, c *observe.Connections, w *observe.Watch, kind, name string) func() recording.Observation {
	clusters := sets.New[types.NamespacedName]()
	drained := sets.New[string]()                             // the Machines that were recorded
	namespaces := map[types.NamespacedName]sets.Set[string]{} // of Pods that were evacuated, by Cluster
	return func() recording.Observation {
		o := recording.Observation{Gaps: append(c.Gaps.List(), w.Problems()...)}
		owners, existing := sets.New[string](), sets.New[types.NamespacedName]()
		for _, m := range w.Machines(ctx) {
			existing.Insert(clusterOf(&m))
			if concerns(&m, kind, name) && report.IsMaintained(&m) {
				o.Machines = append(o.Machines, m)
				owners.Insert(m.Namespace + "/" + m.Name)
				clusters.Insert(clusterOf(&m))
			}
		}
		drained = drained.Union(owners)
		o.Ended = endedDrains(w.Policies(ctx), kind, name, drained)
		clusters = clusters.Intersection(existing)
		concerned := func(m *v1alpha1.NodeMaintenance) bool {
			return kind == "" || owners.Has(m.Annotations[v1alpha1.OwnerMachineAnnotation])
		}
		if !c.Current.HasMachines {
			clusters.Insert(types.NamespacedName{})
			concerned = func(m *v1alpha1.NodeMaintenance) bool { return name == "" || nodeselection.HasNodeStatus(m, name) }
		}
		for cluster := range clusters {
			workload := workloadOf(ctx, w, cluster, concerned)
			if namespaces[cluster] == nil {
				namespaces[cluster] = sets.New[string]()
			}
			for i := range workload.Evacuations {
				namespaces[cluster].Insert(workload.Evacuations[i].Namespace)
			}
			workload.Deployments, workload.StatefulSets = w.Applications(ctx, cluster, namespaces[cluster])
			o.Workloads = append(o.Workloads, workload)
		}
		return o
	}
}

func clusterOf(m *clusterv1.Machine) types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.ClusterName}
}

// workloadOf returns the NodeMaintenances that are concerned, and the Evacuations on their Nodes.
func workloadOf(ctx context.Context, w *observe.Watch, cluster types.NamespacedName, concerned func(*v1alpha1.NodeMaintenance) bool) recording.Workload {
	maintenances, evacuations := w.Drains(ctx, cluster)
	workload := recording.Workload{Budgets: w.Budgets(ctx, cluster), Unread: w.Unread(cluster)}
	if cluster.Name != "" {
		workload.Cluster = cluster.String()
	}
	nodes, draining := sets.New[string](), sets.New[string]()
	for i := range maintenances {
		if m := &maintenances[i]; concerned(m) {
			workload.Maintenances = append(workload.Maintenances, *m)
			for j := range m.Status.NodeStatuses {
				nodes.Insert(m.Status.NodeStatuses[j].NodeRef.Name)
				if m.Spec.Stage == v1alpha1.StageDrain {
					draining.Insert(m.Status.NodeStatuses[j].NodeRef.Name)
				}
			}
		}
	}
	workload.Terminating = w.Terminating(ctx, cluster, draining)
	workload.Evacuations = slices.DeleteFunc(evacuations, func(e v1alpha1.Evacuation) bool { return !nodes.Has(e.Annotations[v1alpha1.EvacuationNodeAnnotation]) })
	return workload
}
