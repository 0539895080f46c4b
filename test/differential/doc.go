// Package differential holds the decisions of this project against those of Cluster API's own drain: nobody may lose anything by
// switching.
//
// A case is a random world: a Machine, its Cluster, MachineDrainRules, and a Node with Pods. Cluster API's drain is asked what
// it does with it, round by round until nothing is left to do, and so are drain/rules and drain/plan. Verdicts are compared Pod
// by Pod, and then the rounds. A difference fails, unless it is one of those that are meant: see intended_test.go. Each of these has
// a name, a fixed example, and its share of the cases is printed.
//
//	make test-differential CASES=100000
package differential
