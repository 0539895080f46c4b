// Package forecast predicts the drain of a Node: what happens to each Pod, in which step, and what would block it now.
//
// It makes no decisions. It asks the packages that the manager asks (plan, rules, budgets, evacuation), and repeats plan.Decide as if the
// targets of each step had terminated. The prediction holds while rules, labels and Pods stay as observed.
package forecast
