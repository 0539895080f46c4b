// Package rollout tells workload clusters ahead of time which Nodes the rollout of a MachineDeployment is going to replace, and
// keeps Pods away from them where the policy says so. What is decided is in drain/rollouts.
package rollout
