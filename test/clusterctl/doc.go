// Package clusterctl tests the provider as an operator meets it: the real clusterctl installs, upgrades, moves and removes it, in
// real control planes, from a local repository of what a release has. The manager runs with the ServiceAccount of the installed
// manifests, and with their arguments, but as a process: no kubelet runs images here, see fleet.Kubelet. The same goes for
// Cluster API's core manager; of cert-manager, which clusterctl insists on, there are the CRDs alone.
package clusterctl
