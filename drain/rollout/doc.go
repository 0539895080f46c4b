// Package rollout decides which NodeMaintenances the Nodes of outdated Machines get before the rollout of a MachineDeployment deletes
// these Machines. The policy's rollout.outdatedNodes says what each Node gets:
//
//	Ignore    no NodeMaintenance
//	Announce  stage Idle: application owners see in the workload cluster which Nodes are replaced next
//	Cordon    stage Cordon: the scheduler places no Pod that is evicted from one Node on a Node that is replaced next
//
// Cordoned Nodes reduce the capacity of the cluster. So Cordon requires the strategy RollingUpdate, an updated and available Machine that
// can take the Pods, and progress: after ten minutes without progress the rollout may have failed, and its Nodes are only announced until
// it makes progress again.
//
// The time of the last progress is read from the Machines, so a restart of the manager changes nothing.
package rollout
