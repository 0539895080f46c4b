// Package clusterapi runs the real Cluster API core manager against a management cluster of
// test/controlplane, out of cluster, as a process of its own:
//
//	management := controlplane.ForTest(t, controlplane.Options{Name: "management"})
//	core, err := clusterapi.Install(ctx, management, clusterapi.Options{})
//	defer core.Stop()
//
// CRDs and webhook configurations come from the very module the manager was built from. In a
// real installation they refer to a Service and get their CA from cert-manager; here they carry
// the manager's URL on loopback and the control plane's CA, so that conversion, defaulting and
// validation all work as released.
//
// test/infrastructure/kwok is the infrastructure provider to go with it.
package clusterapi
