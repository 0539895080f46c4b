// Package hold decides which manifests of static Pods the node agent holds for a maintenance, and which it releases: KEP-4212,
// "kubelet: Static Pods".
//
// The state is on disk, in a directory beside the manifests: for each held manifest a record and the manifest itself. The record is
// written before the manifest moves, so every state after a power cut is unambiguous. See Decide.
package hold
