// Package clusterapi runs the real Cluster API core manager against a management cluster of
// test/controlplane, as a separate process outside the cluster:
//
//	management := controlplane.ForTest(t, controlplane.Options{Name: "management"})
//	core, err := clusterapi.Install(ctx, management, clusterapi.Options{})
//	defer core.Stop()
//
// CRDs and webhook configurations come from the module that the manager was built from. In a
// real installation they refer to a Service and get their CA from cert-manager. Here they contain
// the manager's URL on loopback and the control plane's CA, so that conversion, defaulting and
// validation work as in a release.
//
// test/infrastructure/kwok is an infrastructure provider to use with it.
package clusterapi
