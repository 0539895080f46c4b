// Package chaos drains Machines on real control planes while random faults are injected, and checks the history of each run afterwards, in
// the manner of etcd's robustness tests. A seed determines the load, the drains and the faults of a run. The invariants are functions of
// the audit logs of the API servers and of every version of every object that etcd has stored: see History.
//
//	make test-chaos SEED=1 RUNS=10
package chaos
