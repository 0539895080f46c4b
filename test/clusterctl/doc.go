// Package clusterctl tests the provider as operators use it: the real clusterctl installs, upgrades, moves and removes it, in
// real control planes, from a local repository with the files of a release. The manager runs with the ServiceAccount and the
// arguments of the installed manifests, but as a process, since no kubelet runs images here: see fleet.Kubelet. So does Cluster API's
// core manager. Of cert-manager, which clusterctl requires, only the CRDs are installed.
package clusterctl
