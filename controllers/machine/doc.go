// Package machine reconciles Machines. It sets the pre-drain hook on each Machine that a MachineDrainPolicy selects. When such a Machine is
// deleted, it drains the Node by a NodeMaintenance in the workload cluster, and then releases the hook.
package machine
