package volumes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/go-logr/logr" //nolint:depguard // csi-translation-lib requires a logger; this one discards
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Observation is what is attached to a Node, the live Pods of the Node, and what has been read about their volumes.
type Observation struct {
	// Attached are the names in node.status.volumesAttached.
	Attached []string
	// Attachments are the VolumeAttachments of the Node with status.attached.
	Attachments []Attachment
	// Pods are the live Pods of the Node.
	Pods []Pod
	Facts
}

// Attachment is a VolumeAttachment, reduced to the fields that decide.
type Attachment struct {
	Name string
	// PersistentVolume is the name of the volume. It is empty if the VolumeAttachment has an inline volume.
	PersistentVolume string
}

// Pod is a Pod on the Node.
type Pod struct {
	// Claims are the PersistentVolumeClaims that the Pod uses, see ClaimsOf.
	Claims []types.NamespacedName
	// Skipped means that the drain rules skip the Pod, so that it stays on the Node.
	Skipped bool
}

// Facts are the answers to Missing. An object that does not exist has a zero value.
type Facts struct {
	Claims  map[types.NamespacedName]Claim
	Volumes map[string]Volume
}

// Claim is a PersistentVolumeClaim, reduced to the fields that decide.
type Claim struct {
	// Volume is the name of the PersistentVolume that the claim is bound to, empty while it is unbound.
	Volume string
}

// Volume is a PersistentVolume, reduced to the fields that decide.
type Volume struct {
	Found bool
	// UniqueNames are the result of the function UniqueNames.
	UniqueNames []string
	// Claim is the claim that the volume is bound to, nil while it is unbound.
	Claim *types.NamespacedName
}

// VolumeOf reduces a PersistentVolume to a Volume. A volume of an in-tree cloud provider plugin has the names of the CSI driver that
// attaches it: https://kubernetes.io/docs/concepts/storage/volumes/#csi-migration. If it cannot be translated to CSI, VolumeOf returns the
// Volume without names and the error.
func VolumeOf(volume *corev1.PersistentVolume) (Volume, error) {
	attached, err := migrated(volume)
	v := Volume{Found: true, UniqueNames: UniqueNames(attached)}
	if ref := volume.Spec.ClaimRef; ref != nil && (ref.Kind == "" || ref.Kind == "PersistentVolumeClaim") {
		v.Claim = &types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	return v, err
}

// migrated returns a volume of an in-tree cloud provider plugin with its CSI source, and any other volume unchanged.
func migrated(volume *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	translator := csitranslation.New()
	if !translator.IsPVMigratable(volume) {
		return volume, nil
	}
	translated, err := translator.TranslateInTreePVToCSI(logr.Discard(), volume)
	if err != nil {
		return volume, errors.Wrapf(err, "translating PersistentVolume %s to CSI", volume.Name)
	}
	return translated, nil
}

// ClaimsOf returns the claims that a Pod uses. Those of its generic ephemeral volumes are named after the Pod and the volume:
// https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming.
func ClaimsOf(pod *corev1.Pod) []types.NamespacedName {
	var claims []types.NamespacedName
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: volume.PersistentVolumeClaim.ClaimName})
		case volume.Ephemeral != nil:
			claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + volume.Name})
		}
	}
	return claims
}

// MaxClaims is how many claims are read to predict the drain of a Node. No real Node has that many volumes, but a tenant may write a Pod
// with tens of thousands.
const MaxClaims = 512

// FirstClaims returns the claims of Pods, at most MaxClaims: those of the Pods with the most claims are left out.
func FirstClaims(byPod [][]types.NamespacedName) []types.NamespacedName {
	byPod = slices.Clone(byPod)
	slices.SortStableFunc(byPod, func(a, b []types.NamespacedName) int { return cmp.Compare(len(a), len(b)) })
	all := slices.Concat(byPod...)
	return all[:min(len(all), MaxClaims)]
}

// NewAttachment returns an Attachment. persistentVolume is nil for a VolumeAttachment with an inline volume.
func NewAttachment(name string, persistentVolume *string) Attachment {
	return Attachment{Name: name, PersistentVolume: ptr.Deref(persistentVolume, "")}
}

// UniqueNames returns the names that a PersistentVolume may have in node.status.volumesAttached, and nil for a volume that is not
// attachable. The volume plugins define them:
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/volume/util/util.go (GetUniqueVolumeName).
func UniqueNames(volume *corev1.PersistentVolume) []string {
	source := volume.Spec.PersistentVolumeSource
	switch {
	case source.CSI != nil:
		return []string{"kubernetes.io/csi/" + source.CSI.Driver + "^" + source.CSI.VolumeHandle}
	case source.ISCSI != nil:
		return []string{fmt.Sprintf("kubernetes.io/iscsi/%s:%s:%d", source.ISCSI.TargetPortal, source.ISCSI.IQN, source.ISCSI.Lun)}
	case source.FC != nil && len(source.FC.TargetWWNs) > 0 && source.FC.Lun != nil:
		return []string{fmt.Sprintf("kubernetes.io/fc/%v:%d", source.FC.TargetWWNs, *source.FC.Lun)}
	case source.FC != nil && len(source.FC.WWIDs) > 0:
		return []string{fmt.Sprintf("kubernetes.io/fc/%v", source.FC.WWIDs)}
	default:
		return nil
	}
}

// maxName is the length, in runes, to which names are cut: a CSI driver may choose any volume handle.
const maxName = 128

// printable replaces the unprintable runes of a name from a workload cluster, and cuts it to maxName.
func printable(name string) string {
	return text.Cut(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, name), maxName)
}
