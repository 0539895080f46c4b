// Package volumes decides which volumes must detach from a drained Node before its Machine is released.
//
// A volume is attached while either of two places lists it:
//
//   - node.status.volumesAttached lists what the attach/detach controller considers attached, by the unique names of volume
//     plugins ("kubernetes.io/csi/<driver>^<handle>"). The controller removes an entry before it begins to detach.
//   - VolumeAttachments exist for CSI volumes only and name the PersistentVolume. They are deleted when the detach has finished.
//
// Volumes of Pods that the drain rules skip never detach, so Decide ignores them. It waits for a volume that such a Pod shares with a
// Pod that drains as long as the latter exists.
//
// Nothing is listed. Decide returns the names of the PersistentVolumes and claims that it needs, and the caller reads them and calls
// Decide again. Decide waits for a volume that it cannot match, and names it: an unknown volume may hold data of any Pod.
package volumes
