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
)

// Manifest is the file of a static Pod where the kubelet looks for it.
type Manifest struct {
	// File is its name in the directory.
	File            string
	Namespace, Name string
	Priority        int32
	Labels          map[string]string
	GracePeriod     time.Duration
}

// Record is what the disk says about a manifest that is held, or is about to be.
type Record struct {
	// File is the name of the manifest, in both directories.
	File      string `json:"file"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Moved: the manifest is in the directory of those that are held. It isn't written, but found.
	Moved bool `json:"-"`
}

// Observed is all that Decide looks at.
type Observed struct {
	Node string
	// Known is false until the Node has been seen: nothing is released before.
	Known bool
	// Targets are the static Pods that drains of the Node have come to, as rows of drain targets. None: no drain has.
	Targets     []v1alpha1.DrainTarget
	Evacuations []v1alpha1.Evacuation
	Manifests   []Manifest
	Records     []Record
}

// Hold is a manifest to put away, and the Evacuation that asks for it.
type Hold struct {
	Manifest   Manifest
	Evacuation *v1alpha1.Evacuation
}

// Actions is what to do now. All of them can be done again.
type Actions struct {
	// Hold these: report, write the record, move the manifest.
	Hold []Hold
	// Finish moving these: the power was cut in between.
	Finish []Record
	// Release these: move the manifest back, if it has been moved, and remove the record.
	Release []Record
	// Reappeared are held, and somebody has put a file of that name back. It is left alone.
	Reappeared []Record
}

// Decide says what to do with the manifests of the node.
//
//	a record, the manifest in its place       about to be held: on with it; when no drain wants it any more, forget it
//	a record, the manifest held               stays held
//	a record, the manifest held and in place  held, and somebody has written it anew: that one is left alone
//	no record                                 as the kubelet has it
func Decide(o Observed) Actions {
	var actions Actions
	if !o.Known {
		return actions
	}
	records, inPlace := map[string]Record{}, map[string]bool{}
	for _, m := range o.Manifests {
		inPlace[m.File] = true
	}
	for _, r := range o.Records {
		records[r.File] = r
		switch {
		case len(o.Targets) == 0:
			actions.Release = append(actions.Release, r)
		case r.Moved && inPlace[r.File]:
			actions.Reappeared = append(actions.Reappeared, r)
		case !r.Moved && inPlace[r.File]:
			actions.Finish = append(actions.Finish, r)
		}
	}
	for _, m := range o.Manifests {
		if _, held := records[m.File]; held {
			continue
		}
		if e := o.askedFor(m); e != nil {
			actions.Hold = append(actions.Hold, Hold{Manifest: m, Evacuation: e})
		}
	}
	byFile := func(a, b Record) int { return cmp.Compare(a.File, b.File) }
	slices.SortFunc(actions.Release, byFile)
	slices.SortFunc(actions.Finish, byFile)
	return actions
}

// askedFor returns the Evacuation that has the static Pod end now, if there is one: it is the agent's turn, a NodeMaintenance
// asks for it, and the drain of the Node has come to the Pod.
func (o Observed) askedFor(m Manifest) *v1alpha1.Evacuation {
	// The agent doesn't know the order that the drain rules give to the Pod. The Evacuation is there because its turn has come.
	if !plan.Covers(o.Targets, plan.Pod{Type: v1alpha1.PodTypeStatic, Priority: m.Priority, Labels: m.Labels}, 0) {
		return nil
	}
	for i := range o.Evacuations {
		e := &o.Evacuations[i]
		class := e.Status.ActiveEvacuatorClass
		switch {
		case class == nil || *class != v1alpha1.EvacuatorClassKubelet || e.Status.ActiveEvacuatorCompleted:
		case e.Annotations[v1alpha1.EvacuationNodeAnnotation] != o.Node:
		case !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer):
		case e.Namespace == m.Namespace && e.Spec.PodRef.Name == MirrorName(m.Name, o.Node):
			return e
		}
	}
	return nil
}

// MirrorName is what the kubelet calls the mirror of a static Pod.
func MirrorName(pod, node string) string { return pod + "-" + strings.ToLower(node) }

// Report notes on the Evacuation that the Pod ends now, and until when it may take. It says whether that changes anything.
func Report(e *v1alpha1.Evacuation, m Manifest, now time.Time) (changed bool) {
	if e.Status.ExpectedEvacuationFinishTime != nil {
		return false
	}
	now = now.UTC().Truncate(time.Second)
	progress, finish := metav1.NewTime(now), metav1.NewTime(now.Add(m.GracePeriod))
	e.Status.ActiveEvacuatorCompleted = false
	e.Status.EvacuationProgressTimestamp, e.Status.ExpectedEvacuationFinishTime = &progress, &finish
	e.Status.Message = fmt.Sprintf("The kubelet ends the static Pod: its manifest %s is held until the maintenance of the Node is over.", m.File)
	return true
}
