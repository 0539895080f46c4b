// Package v1beta1 holds the infrastructure kinds of the kwok provider: just enough of Cluster
// API's v1beta2 contract for real Machines to get Nodes.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.test.capnm.dev
package v1beta1
