// Package machinedrain decides about Machines: which policy a Machine follows, whether a deleted Machine's Node is to be
// drained at all, what its NodeMaintenance is called, and when its time is up. It looks at Machines, Clusters and policies,
// and reads or writes nothing.
package machinedrain
