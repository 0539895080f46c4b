// Package differential compares the decisions of this project with those of Cluster API's own drain.
//
// A case is a random fixture: a Machine, its Cluster, MachineDrainRules, and a Node with Pods. Cluster API's drain, and drain/rules with
// drain/plan, decide about it round by round until the drain is done. The test compares the verdict for each Pod, and then the
// rounds. A difference fails unless it is intended: see intended_test.go. Each intended difference has a name and an example,
// and its share of the cases is printed.
//
//	make test-differential CASES=100000
//
// TestHealth shows what health GitOps tools compute for our kinds. It is here because the main module must not require kstatus.
package differential
