// Package nodemaintenance carries out NodeMaintenances in workload clusters: it cordons the selected Nodes, creates an
// Evacuation for each Pod that drain/plan targets, withdraws those that it doesn't, says how far the drain has come, and leaves
// Nodes as they were found. How a Pod is made to go is the evacuation controllers' business. The Sweeper takes back what
// maintenances have left that are gone.
package nodemaintenance
