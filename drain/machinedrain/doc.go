// Package machinedrain decides about the drain of Machines: which policy a Machine follows, whether the Node of a deleted Machine is
// drained, when maxParallelDrains permits the drain, what its NodeMaintenance contains, when the drain times out, and what the condition of
// the Machine says.
package machinedrain
