// Package kwok is a small Cluster API infrastructure provider for tests: real Machines and
// MachineDeployments get real Nodes, whose kubelets kwok simulates.
//
// Cluster API's core manager delegates infrastructure to objects of other kinds and reads the fields
// of the contract (https://cluster-api.sigs.k8s.io/developer/providers/contracts). This package
// implements that contract, and nothing more:
//
//	KwokCluster       provides the endpoint and the kubeconfig Secret of the workload cluster
//	KwokMachine       creates one Node; its deletion stops the kubelet of that Node
//	KwokControlPlane  declares the control plane as externally managed
//
// All Machines have bootstrap data, so no bootstrap provider is needed. The workload cluster is a
// control plane with kwok that the test has started:
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
// Cluster API drains and deletes Nodes only in a cluster that has a control plane Machine or an
// external control plane (Cluster.WithExternalControlPlane): each cluster needs one of them.
package kwok

//go:generate sh -c "$(go run ../../../hack/tools/install path controller-gen) object crd paths=./api/... output:crd:dir=config/crd"
