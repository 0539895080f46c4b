// Package hold decides about static Pods: whose manifest is put away for a maintenance, and what comes back after it. KEP-4212,
// "kubelet: Static Pods".
//
// What is held is on disk, beside the manifests: a record, and the manifest itself. The record is written first, so that each
// state that a power cut may leave says what it is. See Decide.
package hold
