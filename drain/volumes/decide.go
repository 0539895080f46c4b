package volumes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Kind classifies a volume that the Machine waits for by how it was identified.
type Kind string

// The kinds, in the order of Message.
const (
	// Claimed is a volume that is bound to a PersistentVolumeClaim. It is named by its claim.
	Claimed Kind = "PersistentVolumeClaims"
	// Unclaimed is a PersistentVolume that is not bound to a claim.
	Unclaimed Kind = "PersistentVolumes without a claim"
	// VolumeNotFound is a VolumeAttachment whose PersistentVolume does not exist.
	VolumeNotFound Kind = "VolumeAttachments whose PersistentVolume does not exist"
	// Inline is a VolumeAttachment that names no PersistentVolume.
	Inline Kind = "VolumeAttachments that name no PersistentVolume"
	// Unmatched is an entry of node.status.volumesAttached that matches no known PersistentVolume.
	Unmatched Kind = "attached volumes that match no known PersistentVolume"
	// NotLookedUp is a VolumeAttachment beyond the first maxReads.
	NotLookedUp Kind = "VolumeAttachments beyond the limit of lookups"
)

var kinds = []Kind{Claimed, Unclaimed, VolumeNotFound, Inline, Unmatched, NotLookedUp}

// maxReads limits how many PersistentVolumes, and how many claims, one decision asks for. No real Node has that many volumes, but
// the workload cluster is not trusted.
const maxReads = 512

// Decision says which volumes must still detach.
type Decision struct {
	// Missing are the objects that must be read before the other fields are set.
	Missing Missing
	// Waiting are the sorted names of the volumes that must detach.
	Waiting map[Kind][]string
	// Ignored are the sorted names of the claims whose volumes only skipped Pods use.
	Ignored []string
}

// Missing are the objects that the decision depends on and that have not been read.
type Missing struct {
	Volumes []string
	Claims  []types.NamespacedName
}

// None reports whether nothing is missing.
func (m Missing) None() bool { return len(m.Volumes) == 0 && len(m.Claims) == 0 }

// Detached reports whether all volumes that must detach have detached.
func (d Decision) Detached() bool { return d.Missing.None() && len(d.Waiting) == 0 }

// Count returns the number of volumes that must still detach.
func (d Decision) Count() int {
	n := 0
	for _, names := range d.Waiting {
		n += len(names)
	}
	return n
}

// Decide returns which volumes of a Node must still detach. It asks for objects in at most three rounds: the PersistentVolumes of the
// VolumeAttachments; if these do not explain all attached names, the claims of skipped Pods; and the PersistentVolumes of those claims.
func Decide(o Observation) Decision {
	d := &decider{
		observation: o, ignorable: claimsOfSkippedPods(o.Pods), waiting: map[Kind]sets.Set[string]{}, ignored: sets.New[string](), byUniqueName: map[string]Volume{},
	}
	for _, attachment := range o.Attachments {
		d.addAttachment(attachment)
	}
	if len(d.missing.Volumes) == 0 {
		d.addAttachedNames()
	}
	if !d.missing.None() {
		slices.Sort(d.missing.Volumes)
		return Decision{Missing: d.missing}
	}
	return d.decision()
}

// claimsOfSkippedPods returns the claims that only skipped Pods use.
func claimsOfSkippedPods(pods []Pod) sets.Set[types.NamespacedName] {
	claims := sets.New[types.NamespacedName]()
	for _, pod := range pods {
		if pod.Skipped {
			claims.Insert(pod.Claims...)
		}
	}
	for _, pod := range pods {
		if !pod.Skipped {
			claims.Delete(pod.Claims...)
		}
	}
	return claims
}

type decider struct {
	observation  Observation
	ignorable    sets.Set[types.NamespacedName]
	missing      Missing
	waiting      map[Kind]sets.Set[string]
	ignored      sets.Set[string]
	byUniqueName map[string]Volume // the volumes that are attached to this Node or used on it
}

func (d *decider) wait(kind Kind, name string) {
	if d.waiting[kind] == nil {
		d.waiting[kind] = sets.New[string]()
	}
	d.waiting[kind].Insert(printable(name))
}

// addVolume waits for a PersistentVolume unless only skipped Pods use it.
func (d *decider) addVolume(name string, v Volume) {
	switch {
	case v.Claim == nil:
		d.wait(Unclaimed, name)
	case d.ignorable.Has(*v.Claim):
		d.ignored.Insert(printable(v.Claim.String()))
	default:
		d.wait(Claimed, v.Claim.String())
	}
}

func (d *decider) addAttachment(a Attachment) {
	if a.PersistentVolume == "" {
		d.wait(Inline, a.Name)
		return
	}
	v, read := d.observation.Volumes[a.PersistentVolume]
	switch {
	case !read && !d.requestVolume(a.PersistentVolume):
		d.wait(NotLookedUp, a.Name)
	case !read:
	case !v.Found:
		d.wait(VolumeNotFound, a.Name)
	default:
		d.addVolume(a.PersistentVolume, v)
		d.index(v)
	}
}

// requestVolume adds a PersistentVolume to Missing. It returns false if that would exceed maxReads.
func (d *decider) requestVolume(name string) bool {
	if slices.Contains(d.missing.Volumes, name) {
		return true
	}
	if len(d.observation.Volumes)+len(d.missing.Volumes) >= maxReads {
		return false
	}
	d.missing.Volumes = append(d.missing.Volumes, name)
	return true
}

func (d *decider) index(v Volume) {
	for _, name := range v.UniqueNames {
		d.byUniqueName[name] = v
	}
}

// addAttachedNames decides the entries of node.status.volumesAttached whose volumes no VolumeAttachment names.
func (d *decider) addAttachedNames() {
	var unexplained []string
	for _, name := range d.observation.Attached {
		if _, known := d.byUniqueName[name]; !known {
			unexplained = append(unexplained, name)
		}
	}
	if len(unexplained) == 0 || !d.indexIgnorableClaims() {
		return
	}
	for _, name := range unexplained {
		if v, known := d.byUniqueName[name]; known {
			d.ignored.Insert(printable(v.Claim.String()))
		} else {
			d.wait(Unmatched, name)
		}
	}
}

// indexIgnorableClaims indexes the volumes of the claims that only skipped Pods use: no other claim can change the decision about a name
// that nothing else explains. It returns false while some must be read first.
func (d *decider) indexIgnorableClaims() bool {
	for _, key := range slices.SortedFunc(maps.Keys(d.ignorable), compareKeys) {
		claim, read := d.observation.Claims[key]
		if !read && len(d.observation.Claims)+len(d.missing.Claims) < maxReads {
			d.missing.Claims = append(d.missing.Claims, key)
		}
		if claim.Volume == "" {
			continue
		}
		v, read := d.observation.Volumes[claim.Volume]
		if !read {
			d.requestVolume(claim.Volume)
		} else if v.Claim != nil && *v.Claim == key { // the author of a claim can name any volume in it, so the volume must name the claim too
			d.index(v)
		}
	}
	return d.missing.None()
}

func (d *decider) decision() Decision {
	decision := Decision{Ignored: sets.List(d.ignored)}
	for kind, names := range d.waiting {
		if decision.Waiting == nil {
			decision.Waiting = map[Kind][]string{}
		}
		decision.Waiting[kind] = sets.List(names)
	}
	return decision
}

func compareKeys(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// maxNames is how many volumes of each kind Message names.
const maxNames = 3

// Message describes the volumes that must detach in the style of Cluster API's own wait: one line for each kind, with at most three
// names in each.
func (d Decision) Message(since time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Waiting for Node volumes to be detached (started at %s)", since.UTC().Format(time.RFC3339))
	for _, kind := range kinds {
		names := d.Waiting[kind]
		if len(names) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n* %s: %s", kind, text.List(names, maxNames))
	}
	if n := len(d.Ignored); n > 0 {
		fmt.Fprintf(&b, "\nIgnored, because only skipped Pods use them: %d", n)
	}
	return b.String()
}
