// Package nodemaintenance reconciles NodeMaintenances in workload clusters. It cordons the selected Nodes, creates an Evacuation for
// each Pod that drain/plan targets, withdraws from the Evacuations of other Pods, reports the progress of the drain, and finally restores
// the Nodes. The evacuation controllers carry out the Evacuations. The Sweeper cleans up what NodeMaintenances that no longer exist have
// left behind.
package nodemaintenance
