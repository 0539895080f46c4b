// Package machinedeployment announces in workload clusters which Nodes the rollout of a MachineDeployment is going to replace. If the policy requires
// it, the package also cordons these Nodes. Package drain/rollout makes the decisions.
package machinedeployment
