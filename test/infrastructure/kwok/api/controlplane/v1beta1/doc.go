// Package v1beta1 has the control plane kind of the kwok provider, for clusters whose control
// plane is a managed service and has no Machines.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.test.capnm.dev
package v1beta1
