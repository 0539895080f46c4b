// Package volumes decides which volumes a drained Node has yet to detach before its Machine may go.
//
// A volume shows in two places, and both count:
//
//   - node.status.volumesAttached: what the attach/detach controller takes for attached, under the unique names of volume
//     plugins ("kubernetes.io/csi/<driver>^<handle>"). An entry goes before the detach begins.
//   - VolumeAttachments: CSI volumes alone, by the name of the PersistentVolume. One goes when the detach is done.
//
// Volumes of Pods that stay (those that the drain rules skip) never detach, so they aren't waited for. Those that a Pod which
// must go uses as well are, for as long as that Pod is there; after that only the Pod that stays holds them.
//
// Nothing is listed to find that out. Decide says which PersistentVolumes and claims it has to know, by name, and is asked
// again when the caller has read them. What can't be matched is waited for, and said: an unknown volume may be anybody's data.
package volumes
