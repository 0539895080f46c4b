// Package v1alpha1 holds the API of Cluster API Node Maintenance.
//
// NodeMaintenance and Evacuation live in workload clusters, next to the Nodes and Pods that they speak of;
// MachineDrainPolicy lives in the management cluster, next to the Machines. All validation is in the CRD schemas
// (OpenAPI and CEL), so that it holds wherever the CRDs are, with no webhook to be down.
//
// NodeMaintenance follows KEP-4212, Evacuation follows KEP-4563 as KEP-4212 uses it (mid 2024), both in an API group of
// our own; finalizers and pod annotations are spelled as in the KEPs.
//
// +kubebuilder:object:generate=true
// +groupName=maintenance.cluster.x-k8s.io
package v1alpha1
