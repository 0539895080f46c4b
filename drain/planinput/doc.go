// Package planinput builds the observation that package plan decides about from the objects of a workload cluster: the NodeMaintenances
// in stage Drain that share Nodes, and the Pods of these Nodes with the verdicts of the drain rules.
//
// The NodeMaintenance controller and the kubectl plugin use it, so that both decide from the same input.
package planinput
