// Package rollouts decides what happens, ahead of time, to the Nodes that the rollout of a MachineDeployment is going to replace.
//
//	Ignore    nothing
//	Announce  Idle: application owners see in the workload cluster which Nodes go next
//	Cordon    Cordon: no Pod that is evicted from one Node lands on the next one to go
//
// Cordoned Nodes are capacity that is taken away, so Cordon is careful. It wants a rollout that replaces Machines by itself
// (RollingUpdate), an updated Machine that is available, for the Pods to go to, and progress: a rollout in which nothing has
// happened for ten minutes may have failed, and gets its Nodes back. Until it goes on they are announced, no more.
//
// Nothing is remembered: when something has happened last is read from the Machines.
package rollouts
