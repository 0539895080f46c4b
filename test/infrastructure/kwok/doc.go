// Package kwok is a small Cluster API infrastructure provider for tests: real Machines and
// MachineDeployments get real Nodes, whose kubelets are played by kwok.
//
// Cluster API's core manager delegates what it doesn't know to objects of other kinds and reads
// a few agreed fields of them, the contract (https://cluster-api.sigs.k8s.io/developer/providers/contracts).
// This package is the other side of that contract, and no more than that:
//
//	KwokCluster       tells where the workload cluster is, and writes its kubeconfig Secret
//	KwokMachine       creates one Node; when deleted, the kubelet of that Node stops
//	KwokControlPlane  declares the control plane somebody else's business
//
// All Machines are given their bootstrap data, so no bootstrap provider is needed. The workload
// cluster is a control plane that the test has started, with kwok running in it:
//
//	core, err := clusterapi.Install(ctx, management, clusterapi.Options{})
//	workload, err := kwok.Direct(controlPlane)
//	prod := kwok.NewCluster("prod")
//	workloads.Add(prod.Key(), workload)
//	provider, err := kwok.Start(ctx, kwok.Options{Management: management.AdminConfig(), Workload: workloads.Find})
//	err = kwok.Create(ctx, c,
//		prod.Objects(),
//		prod.ControlPlaneMachine("prod-control-plane"),
//		prod.MachineDeployment("prod-workers", 3))
//	err = kwok.WaitForMachinesRunning(ctx, c, prod.Key(), 4)
//
// Cluster API drains and deletes Nodes only in a cluster that has a control plane Machine, or
// whose control plane is external (Cluster.WithExternalControlPlane): give each cluster either.
package kwok

//go:generate sh -c "$(go run ../../../hack/tools/install path controller-gen) object crd paths=./api/... output:crd:dir=config/crd"
