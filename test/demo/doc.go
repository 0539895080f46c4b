// Command demo starts control planes and shows a drain, in a few minutes, without Docker and without network.
//
//	make demo
//
// It starts a management cluster with Cluster API's core manager and this provider, and a workload cluster with six workers. Both
// are real control planes on loopback (see test/fleet). Then it runs two acts:
//
//   - One Machine is deleted. Its Node has Pods of each application: web Pods with a strict budget, storage Pods that a
//     MachineDrainRule orders last, monitoring that another rule skips, a Job's Pod that must complete, and a DaemonSet's Pod. The
//     kubectl plugin predicts the drain, and shows it live.
//   - A rollout of the MachineDeployment drains and replaces every worker.
//
// The kubectl plugin records both acts, and writes a report to out/demo/report.html.
//
// At the end the demo checks the invariants of the chaos tests (see test/chaos), against the audit logs of both API servers and all
// versions of all objects. It exits with status 1 if a check fails.
//
//	KEEP=1 make demo      keeps the clusters running afterwards, until Ctrl-C, and prints commands to inspect them
//	NO_COLOR=1, TERM=dumb as usual; without a terminal, the plugin writes a line for each change
//
// The files: scene.go builds the objects, watch.go observes them, world.go stores the observed state, acts.go runs the acts, view.go and
// record.go run the kubectl plugin, screen.go writes to the terminal, checks.go checks the behavior, summary.go reports.
package main
