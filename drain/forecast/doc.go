// Package forecast predicts the drain of a Node: what happens to each Pod, in which step, what would block it now, and what it costs
// applications.
//
// It makes no decisions. It asks the packages that the manager asks (plan, rules, budgets, evacuation), and repeats plan.Decide as if the
// targets of each step had terminated. The prediction holds while rules, labels and Pods stay as observed.
// Whether a replacement finds a Node is the exception: the scheduler decides that, and Cluster repeats some of its filters.
package forecast
