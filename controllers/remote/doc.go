// Package remote reaches workload clusters. It adds two things to CAPI's ClusterCache, which keeps the connections:
//
//   - the bundle: the CRDs that NodeMaintenance and Evacuation need are applied to each workload cluster on connect;
//   - drain watches: the Pods of the Nodes that drain, the PodDisruptionBudgets, and the labels that rules look at are
//     watched from the moment something evacuates until nothing does. An idle cluster costs CAPI's health probe and the three
//     small informers of NodeMaintenances, Evacuations and Nodes, and never a cache of Pods.
//
// Everything is keyed by the Cluster's namespace and name.
package remote
