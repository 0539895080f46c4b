// Package workload provides access to workload clusters. Cluster API's ClusterCache manages the connections. This package adds drain
// watches: while Pods are being evacuated, the manager watches the Pods of the draining Nodes, the PodDisruptionBudgets, and the labels of
// Namespaces and the DaemonSets that drain rules depend on. Nodes are watched while there are NodeMaintenances or Evacuations, Deployments
// and HorizontalPodAutoscalers while there are surges. An idle workload cluster needs only the health probe of the ClusterCache and two
// small informers of NodeMaintenances and Evacuations.
//
// The namespace and name of the Cluster identify a workload cluster.
package workload
