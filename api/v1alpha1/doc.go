// Package v1alpha1 holds the API of Cluster API Node Maintenance.
//
// NodeMaintenances and Evacuations are in workload clusters, with the Nodes and Pods that they refer to. MachineDrainPolicies are in the
// management cluster, with the Machines. The CRDs contain all validation, as OpenAPI schema and CEL, so it needs no webhook.
//
// NodeMaintenance follows KEP-4212. Evacuation follows KEP-4563 as of mid 2024, which KEP-4212 uses. The API group is this project's. The
// names of finalizers and Pod annotations are those of the KEPs.
//
// +kubebuilder:object:generate=true
// +groupName=maintenance.cluster.x-k8s.io
package v1alpha1
