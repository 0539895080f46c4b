// Package fleet starts the whole product on real control planes: a management cluster with Cluster API's core manager and this
// project's manager, each a separate process, and any number of workload clusters with scheduler and kwok's kubelets. Tests,
// benchmarks and the demo run on it.
package fleet
