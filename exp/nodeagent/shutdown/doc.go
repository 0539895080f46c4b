// Package shutdown decides what the node agent does while its node shuts down: KEP-2000 and KEP-4212, "kubelet: Graceful Node
// Shutdown".
//
//	PrepareForShutdown(true) ─► create a NodeMaintenance ─► wait until the Node is drained
//	                              │                           │ drained, or half of the time is used up
//	                              │ no answer, no action      ▼
//	                              └────────────────────────► stop the kubelet, terminate the Pods by priority ─► release the lock
//
// Its functions are pure: the observed state and the time are arguments. The agent calls Decide repeatedly during a shutdown, so it
// reacts when the connection to the API server is lost or restored.
package shutdown
