// Package e2e tests the provider on real clusters: kind runs the management cluster, and Cluster API's kubeadm and docker providers the
// workload clusters. `make test-e2e` runs it; README.md describes what that needs.
//
// The provider is the output of `make release`, installed by clusterctl. What happens in workload clusters is asserted from the audit logs
// of their API servers.
package e2e
