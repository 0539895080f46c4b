// Package rules decides what a drain does with a Pod: evacuate it, skip it, or wait until it completes.
//
// Cluster API and kubectl implement this decision as a list of filters in code. Here it is data: one ordered list of rules, of which the
// first matching one decides. The list is in the spec of each NodeMaintenance, where users can read it.
//
//	Compile   MachineDrainRules, labels, policy  ──►  []v1alpha1.DrainRule    in the management cluster, at each change
//	Matcher   []v1alpha1.DrainRule, Pod          ──►  Verdict                 for each Pod of the workload cluster
//
// Compile returns the rules in this order (see compile.go):
//
//  1. static-pods               Skip: the kubelet runs static Pods; an eviction only deletes the mirror Pod
//  2. daemonset-pods            Skip: the DaemonSet would replace them; omitted if the policy drains them
//  3. node-agent                Skip: our agent must run until the drain has ended
//  4. drain-label-skip, drain-label-wait-completed: what the owner of the Pod requests with the label cluster.x-k8s.io/drain
//  5. machine-drain-rule/<name> the MachineDrainRules that select the Machine, by name
//
// A NodeMaintenance of a user has the rules of its spec, preceded by those of 4 unless it ignores drain labels: see InEffect.
//
// A Pod that no rule matches drains with order 0. Cluster API decides the same for the same input.
//
// # Unknown answers
//
// An invalid rule, a Namespace that is not in the cache yet, or a DaemonSet that cannot be read leave a question open. Cluster API then
// stops the whole drain. Here answers have three values (see truth), and a Pod is undecided only if its verdict depends on the unknown
// answer. It is then neither evicted nor ignored, and the verdict says what is missing. The drain of all other Pods continues.
//
// # Limits
//
// Labels and selectors are the input of tenants. Nothing here panics or recurses, a decision evaluates each requirement of the rules at
// most once (256 rules of 32 entries at most, by the CRD), and messages are cut to the limits of a status.
package rules
