// Package clusterctl tests the provider as operators use it: the real clusterctl and the real Cluster API operator install, upgrade, move
// and remove it, in real control planes, from a local repository with the files of a release. The manager runs with the ServiceAccount and
// the arguments of the installed manifests, but as a process, since no kubelet runs images here: see fleet.Kubelet. So does Cluster API's
// core manager. Of cert-manager, which clusterctl requires, only the CRDs are installed.
package clusterctl
