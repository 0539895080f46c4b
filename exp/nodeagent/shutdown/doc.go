// Package shutdown decides what the node agent does while its node shuts down: KEP-2000 and KEP-4212, "kubelet: Graceful Node
// Shutdown".
//
//	PrepareForShutdown(true) ─► ask for a NodeMaintenance ─► await that the Node is drained ─► let go of the lock
//	                              │ nobody answers, nobody acts, or the time runs out
//	                              └─► stop the kubelet, end the Pods by priority ─► let go of the lock
//
// It is a set of pure functions: what was observed is an argument, and the time is. The agent asks again and again, so that a
// connection that comes back, or goes, changes its course.
package shutdown
