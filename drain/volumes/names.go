package volumes

import (
	"fmt"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// UniqueNames returns the names that a PersistentVolume may have in node.status.volumesAttached, and nil for a volume that is not
// attachable. The volume plugins define them:
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/volume/util/util.go (GetUniqueVolumeName).
//
// Volumes of migrated in-tree cloud plugins have the names of their CSI drivers: the caller translates such a PersistentVolume first.
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
