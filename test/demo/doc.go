// Package main is the demo: from nothing to a drain that one can watch, in a few minutes, without Docker and without network.
//
//	make demo
//
// It starts a management cluster with Cluster API's core manager and this provider, and a workload cluster with six workers,
// all of them real control planes on loopback (see test/fleet). Then it plays two acts:
//
//   - One Machine is deleted. Its Node has some of everything: web Pods with a tight budget, storage Pods that a
//     MachineDrainRule orders last, monitoring that another one skips, a Job's Pod that asks to be waited for, and a
//     DaemonSet's Pod. A table shows live what is decided about each Pod, by which rule, and what it waits for.
//   - The MachineDeployment is rolled out, so that every worker is drained and replaced.
//
// In the end the demo proves what it has shown: it reads the audit logs of both API servers, and what its own watches have
// seen, and checks that no promise was broken. It exits with status 1 if one was.
//
//	KEEP=1 make demo      leaves all of it running afterwards and says how to look around, until Ctrl-C
//	NO_COLOR=1, TERM=dumb as everywhere; without a terminal only changes are printed
//
// The files: scene.go builds the objects, watch.go observes, world.go is what has been observed, frame.go makes of it what
// table.go renders, screen.go writes to the terminal, acts.go plays, checks.go and its evidence judge, summary.go reports.
package main
