// Package rules decides what a drain does with a pod: evacuate it, leave it alone, or wait until it has finished.
//
// Cluster API and kubectl hard-code that decision as a row of filters. Here it is data: one ordered list of rules, of which
// the first that matches a pod decides. The list stands in the spec of each NodeMaintenance, where everybody can read it.
//
//	Compile   MachineDrainRules, labels, policy  ──►  []v1alpha1.DrainRule    on the management side, once per change
//	Matcher   []v1alpha1.DrainRule, pod          ──►  Verdict                 on the workload side, for each pod
//
// Compile writes the rules in this order (see compile.go):
//
//  1. static-pods               Skip: the kubelet runs them, an eviction removes only their mirror
//  2. daemonset-pods            Skip: the DaemonSet would put them back; left out where the policy drains them
//  3. node-agent                Skip: our own agent has to outlive the drain
//  4. drain-label-skip, drain-label-wait-completed: what the owner of the pod asks for with the label cluster.x-k8s.io/drain
//  5. machine-drain-rule/<name> the MachineDrainRules that select the Machine, by name
//
// A NodeMaintenance that people write has the rules of its spec, with those of 4 before them unless it says otherwise: see InEffect.
//
// A pod that none of them matches drains at order 0. This is what Cluster API decides for the same input.
//
// # What can't be known
//
// A rule that can't be parsed, a namespace that isn't in the cache yet, a DaemonSet that can't be read: each leaves some
// question without an answer. Cluster API stops the whole drain then. Here answers have three values (see truth), and a pod
// is Undecided only when its verdict hangs on the missing one: it is then neither evicted nor ignored, and the verdict
// says what is missing. All others go on.
//
// # Bounds
//
// Labels and selectors come from tenants. Nothing here panics or recurses; a decision takes at most one pass over the
// rules' requirements (256 rules of 32 entries at most, by the CRD), and texts are cut to what a status holds.
package rules
