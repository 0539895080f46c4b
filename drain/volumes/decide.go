package volumes

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Kind says what is known of a volume that is waited for.
type Kind string

// The kinds, in the order in which they are told.
const (
	// Claimed: the volume of a PersistentVolumeClaim, by which it is named.
	Claimed Kind = "PersistentVolumeClaims"
	// Unclaimed: a PersistentVolume that no claim is bound to.
	Unclaimed Kind = "PersistentVolumes without a claim"
	// VolumeGone: a VolumeAttachment whose PersistentVolume isn't there.
	VolumeGone Kind = "VolumeAttachments whose PersistentVolume isn't there"
	// Inline: a VolumeAttachment that names no PersistentVolume.
	Inline Kind = "VolumeAttachments that name no PersistentVolume"
	// Unmatched: an entry of node.status.volumesAttached that is no known PersistentVolume.
	Unmatched Kind = "attached volumes that match no known PersistentVolume"
	// Unread: there are so many VolumeAttachments that not all of them are looked up.
	Unread Kind = "VolumeAttachments that are too many to be looked up"
)

var kinds = []Kind{Claimed, Unclaimed, VolumeGone, Inline, Unmatched, Unread}

// maxReads bounds how many PersistentVolumes, and how many claims, one decision asks for. No Node has as many volumes; what a
// workload cluster says it has is another matter.
const maxReads = 512

// Decision says which volumes must still detach.
type Decision struct {
	// Missing has to be read before there is a decision.
	Missing Missing
	// Waiting are the names of the volumes to wait for. Sorted.
	Waiting map[Kind][]string
	// Ignored are the volumes of Pods that stay, named by their claims. Sorted.
	Ignored []string
}

// Missing are objects that the decision depends on and that haven't been read.
type Missing struct {
	Volumes []string
	Claims  []types.NamespacedName
}

// None says that nothing is missing.
func (m Missing) None() bool { return len(m.Volumes) == 0 && len(m.Claims) == 0 }

// Detached says that nothing is left to wait for.
func (d Decision) Detached() bool { return d.Missing.None() && len(d.Waiting) == 0 }

// Count is how many volumes are waited for.
func (d Decision) Count() int {
	n := 0
	for _, names := range d.Waiting {
		n += len(names)
	}
	return n
}

// Decide says which volumes of a Node must still detach. It asks for what it has to know in at most three rounds: the
// PersistentVolumes of the VolumeAttachments; where that doesn't explain all attached names, the claims of Pods that stay;
// and the PersistentVolumes of these.
func Decide(o Observation) Decision {
	d := &decider{observation: o, ignoring: ignoring(o.Pods), waiting: map[Kind]sets.Set[string]{}, ignored: sets.New[string](), byName: map[string]Volume{}}
	for _, attachment := range o.Attachments {
		d.attachment(attachment)
	}
	if len(d.missing.Volumes) == 0 {
		d.names()
	}
	if !d.missing.None() {
		slices.Sort(d.missing.Volumes)
		return Decision{Missing: d.missing}
	}
	return d.decision()
}

// ignoring are the claims that are used by Pods that stay, and by no other Pod.
func ignoring(pods []Pod) sets.Set[types.NamespacedName] {
	claims := sets.New[types.NamespacedName]()
	for _, pod := range pods {
		if pod.Stays {
			claims.Insert(pod.Claims...)
		}
	}
	for _, pod := range pods {
		if !pod.Stays {
			claims.Delete(pod.Claims...)
		}
	}
	return claims
}

type decider struct {
	observation Observation
	ignoring    sets.Set[types.NamespacedName]
	missing     Missing
	waiting     map[Kind]sets.Set[string]
	ignored     sets.Set[string]
	byName      map[string]Volume // the volumes that are known to be attached here or used here, by their unique names
}

func (d *decider) wait(kind Kind, name string) {
	if d.waiting[kind] == nil {
		d.waiting[kind] = sets.New[string]()
	}
	d.waiting[kind].Insert(shown(name))
}

// volume waits for a PersistentVolume, unless only Pods that stay use it.
func (d *decider) volume(name string, v Volume) {
	switch {
	case v.Claim == nil:
		d.wait(Unclaimed, name)
	case d.ignoring.Has(*v.Claim):
		d.ignored.Insert(shown(v.Claim.String()))
	default:
		d.wait(Claimed, v.Claim.String())
	}
}

func (d *decider) attachment(a Attachment) {
	if a.PersistentVolume == "" {
		d.wait(Inline, a.Name)
		return
	}
	v, read := d.observation.Volumes[a.PersistentVolume]
	switch {
	case !read && !d.needVolume(a.PersistentVolume):
		d.wait(Unread, a.Name)
	case !read:
	case !v.Found:
		d.wait(VolumeGone, a.Name)
	default:
		d.volume(a.PersistentVolume, v)
		d.know(v)
	}
}

// needVolume asks for a PersistentVolume. False: it is one too many.
func (d *decider) needVolume(name string) bool {
	if slices.Contains(d.missing.Volumes, name) {
		return true
	}
	if len(d.observation.Volumes)+len(d.missing.Volumes) >= maxReads {
		return false
	}
	d.missing.Volumes = append(d.missing.Volumes, name)
	return true
}

func (d *decider) know(v Volume) {
	for _, name := range v.UniqueNames {
		d.byName[name] = v
	}
}

// names explains the entries of node.status.volumesAttached. Those of the VolumeAttachments' volumes have been decided.
func (d *decider) names() {
	var unexplained []string
	for _, name := range d.observation.Attached {
		if _, known := d.byName[name]; !known {
			unexplained = append(unexplained, name)
		}
	}
	if len(unexplained) == 0 || !d.knowClaims() {
		return
	}
	for _, name := range unexplained {
		if v, known := d.byName[name]; known {
			d.ignored.Insert(shown(v.Claim.String()))
		} else {
			d.wait(Unmatched, name)
		}
	}
}

// knowClaims finds the volumes of the claims that are ignored, which are the only ones that make a difference for a name that
// nothing else explains. False: some have to be read first.
func (d *decider) knowClaims() bool {
	for _, key := range slices.SortedFunc(maps.Keys(d.ignoring), compareKeys) {
		claim, read := d.observation.Claims[key]
		if !read && len(d.observation.Claims)+len(d.missing.Claims) < maxReads {
			d.missing.Claims = append(d.missing.Claims, key)
		}
		if claim.Volume == "" {
			continue
		}
		v, read := d.observation.Volumes[claim.Volume]
		if !read {
			d.needVolume(claim.Volume)
		} else if v.Claim != nil && *v.Claim == key { // whoever owns a claim can name any volume in it, the volume has the say
			d.know(v)
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
