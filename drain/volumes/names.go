package volumes

import (
	"fmt"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// UniqueNames returns the names that a PersistentVolume may have in node.status.volumesAttached; none where it can't be
// attached. The volume plugins make them:
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/volume/util/util.go (GetUniqueVolumeName).
//
// Volumes of the cloud providers' former plugins have the names of their CSI drivers; whoever reads a PersistentVolume
// translates it first.
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

// maxName is how much of a name is shown: CSI drivers make up volume handles as they like.
const maxName = 128

// shown makes a name from a workload cluster fit to be shown to people.
func shown(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, name)
	if runes := []rune(name); len(runes) > maxName {
		return string(runes[:maxName-1]) + "…"
	}
	return name
}
