// Package v1beta1 has the infrastructure kinds of the kwok provider. They implement the part of
// Cluster API's v1beta2 contract that Machines need to get Nodes.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.test.capnm.dev
package v1beta1
