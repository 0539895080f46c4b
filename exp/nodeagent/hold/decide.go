package hold

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Manifest is the file of a static Pod in the kubelet's staticPodPath.
type Manifest struct {
	// File is the name of the file in the directory.
	File            string
	Namespace, Name string
	Priority        int32
	Labels          map[string]string
	GracePeriod     time.Duration
}

// Record describes on disk a manifest that is held, or that the agent is about to hold.
type Record struct {
	// File is the name of the manifest, in both directories.
	File      string `json:"file"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// GracePeriod is that of the Pod. Earlier versions did not store it.
	GracePeriod time.Duration `json:"gracePeriod,omitempty"`
	// Moved is true if the manifest is in the directory of held manifests. It is observed, not stored.
	Moved bool `json:"-"`
}

// Observed is the input of Decide.
type Observed struct {
	Node string
	// Known is true once the agent has observed the Node. Decide does nothing before.
	Known bool
	// Cause names the NodeMaintenances that have published Targets, with their reasons. It is empty if the manager is older.
	Cause string
	// Targets are the drain targets of the Node that select static Pods. Empty if no drain has reached static Pods.
	Targets     []v1alpha1.DrainTarget
	Evacuations []v1alpha1.Evacuation
	Manifests   []Manifest
	Records     []Record
}

// Hold is a manifest to hold, the Evacuation that requests it, and the cause.
type Hold struct {
	Manifest   Manifest
	Evacuation *v1alpha1.Evacuation
	Cause      string
}

// Actions are the actions to take now. All of them are idempotent.
type Actions struct {
	// Hold lists manifests to hold: report on the Evacuation, write the record, move the manifest.
	Hold []Hold
	// Finish lists manifests whose move was interrupted, for example by a power cut, or has failed: move them. Evacuation is nil if none
	// requests this any more.
	Finish []Hold
	// Held lists held manifests whose Evacuation says that they cannot be held: report that the Pod terminates.
	Held []Hold
	// Release lists manifests to release: move the manifest back if it has been moved, and remove the record.
	Release []Record
	// Reappeared lists held manifests of which the kubelet's directory has a file with the same name again. The agent does not move it.
	Reappeared []Record
}

// Decide returns what to do with the manifests of the node.
//
//	record, manifest in the kubelet's directory  the move was interrupted: finish it, or remove the record if no drain targets static Pods
//	record, manifest held                        hold it until no drain targets static Pods
//	record, manifest in both directories         another actor has recreated it: keep both
//	no record                                    hold it if an Evacuation requests it
func Decide(o Observed) Actions {
	var actions Actions
	if !o.Known {
		return actions
	}
	records, inPlace := map[string]Record{}, map[string]Manifest{}
	for _, m := range o.Manifests {
		inPlace[m.File] = m
	}
	for _, r := range o.Records {
		records[r.File] = r
		switch m, isInPlace := inPlace[r.File]; {
		case len(o.Targets) == 0:
			actions.Release = append(actions.Release, r)
		case r.Moved && isInPlace:
			actions.Reappeared = append(actions.Reappeared, r)
		case isInPlace:
			actions.Finish = append(actions.Finish, Hold{Manifest: m, Evacuation: o.evacuationOf(m), Cause: o.Cause})
		case r.Moved:
			h := Hold{Manifest: r.manifest(), Evacuation: o.evacuationNamed(r.Namespace, r.Name), Cause: o.Cause}
			if h.Evacuation != nil && h.HasFailed() {
				actions.Held = append(actions.Held, h)
			}
		}
	}
	for _, m := range o.Manifests {
		if _, held := records[m.File]; held {
			continue
		}
		if e := o.evacuationOf(m); e != nil {
			actions.Hold = append(actions.Hold, Hold{Manifest: m, Evacuation: e, Cause: o.Cause})
		}
	}
	byFile := func(a, b Record) int { return cmp.Compare(a.File, b.File) }
	slices.SortFunc(actions.Release, byFile)
	slices.SortFunc(actions.Finish, func(a, b Hold) int { return cmp.Compare(a.Manifest.File, b.Manifest.File) })
	return actions
}

func (r Record) manifest() Manifest {
	return Manifest{File: r.File, Namespace: r.Namespace, Name: r.Name, GracePeriod: r.GracePeriod}
}

// evacuationOf returns a copy of the Evacuation that requests the removal of the static Pod, or nil: the agent is its active
// evacuator, a NodeMaintenance is an instigator, and the Pod is a drain target of the Node.
func (o Observed) evacuationOf(m Manifest) *v1alpha1.Evacuation {
	// The agent does not know the drain order of the Pod. It can pass 0: the Evacuation exists only once the drain has reached that order.
	if !plan.CoversPod(o.Targets, plan.Pod{Type: v1alpha1.PodTypeStatic, Priority: m.Priority, Labels: m.Labels}, 0) {
		return nil
	}
	return o.evacuationNamed(m.Namespace, m.Name)
}

// evacuationNamed returns a copy of the Evacuation of a static Pod of which the agent is the active evacuator, and a NodeMaintenance an
// instigator, or nil.
func (o Observed) evacuationNamed(namespace, name string) *v1alpha1.Evacuation {
	for i := range o.Evacuations {
		e := &o.Evacuations[i]
		switch {
		case !e.IsAssignedTo(v1alpha1.EvacuatorClassKubelet):
		case e.Annotations[v1alpha1.EvacuationNodeAnnotation] != o.Node:
		case !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer):
		case e.Namespace == namespace && e.Spec.PodRef.Name == MirrorName(name, o.Node):
			return e.DeepCopy()
		}
	}
	return nil
}

// maxCause limits the cause in a message, which is in an annotation of the Node.
const maxCause = 1024

// MirrorName returns the name that the kubelet gives to the mirror Pod of a static Pod.
func MirrorName(pod, node string) string { return pod + "-" + strings.ToLower(node) }

// Report writes into the status of the Evacuation that the Pod terminates, why, and when it is expected to have terminated. It returns
// whether the status has changed.
func (h Hold) Report(now time.Time) (changed bool) {
	e, m := h.Evacuation, h.Manifest
	if e.Status.ExpectedEvacuationFinishTime != nil {
		return false
	}
	now = now.UTC().Truncate(time.Second)
	progress, finish := metav1.NewTime(now), metav1.NewTime(now.Add(m.GracePeriod))
	e.Status.ActiveEvacuatorCompleted = false
	e.Status.EvacuationProgressTimestamp, e.Status.ExpectedEvacuationFinishTime = &progress, &finish
	e.Status.Message = fmt.Sprintf("The kubelet terminates the static Pod: the node agent holds its manifest %s until the maintenance of the Node is complete.",
		m.File)
	if h.Cause != "" {
		e.Status.Message = text.Cut(h.Cause, maxCause) + ". " + e.Status.Message
	}
	return true
}

// cannotHold begins the message of an Evacuation whose manifest the agent cannot hold.
const cannotHold = "The node agent cannot hold the manifest "

// HasFailed reports whether the status of the Evacuation has the report of ReportFailure.
func (h Hold) HasFailed() bool { return strings.HasPrefix(h.Evacuation.Status.Message, cannotHold) }

// ReportFailure replaces the report in the status of the Evacuation by one that says why the agent cannot hold the manifest. It returns
// whether the status has changed: the first reason stays, because the text may differ in each attempt.
func (h Hold) ReportFailure(reason error) (changed bool) {
	if h.HasFailed() {
		return false
	}
	status := &h.Evacuation.Status
	status.ExpectedEvacuationFinishTime = nil
	status.Message = text.Cut(fmt.Sprintf("%s%s, so the kubelet runs the static Pod: %v", cannotHold, h.Manifest.File, reason), maxCause)
	return true
}
