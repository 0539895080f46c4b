// Package machine serves Machines: it sets our pre-drain hook on those that a MachineDrainPolicy selects, and when one is
// deleted, has its Node drained by a NodeMaintenance in the workload cluster and releases the hook.
package machine
