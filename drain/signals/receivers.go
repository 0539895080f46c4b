package signals

import (
	"slices"
	"strings"
	"unicode/utf8"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// eviction is the resource that the rules of a receiver name.
	eviction = "pods/eviction"
	// maxOthers is how many other resources the rules of a receiver may name. Policy engines name many, or all.
	maxOthers = 2
)

// Receivers are the admission webhooks of a workload cluster that the API server calls for the eviction requests of Pods.
type Receivers []receiver

type receiver struct {
	name       string
	namespaces labels.Selector
	waits      bool // the webhook is for evictions and hardly anything else, so that its operator waits for them
}

// ReceiversOf returns the receivers among the webhooks of all configurations. Their matchConditions do not count.
func ReceiversOf(
	validating []admissionregistrationv1.ValidatingWebhookConfiguration, mutating []admissionregistrationv1.MutatingWebhookConfiguration,
) Receivers {
	var found Receivers
	for i := range validating {
		for _, w := range validating[i].Webhooks {
			found = found.add(w.Name, w.Rules, w.NamespaceSelector, w.ObjectSelector)
		}
	}
	for i := range mutating {
		for _, w := range mutating[i].Webhooks {
			found = found.add(w.Name, w.Rules, w.NamespaceSelector, w.ObjectSelector)
		}
	}
	return found
}

// add adds a webhook if it is a receiver. The API server compares the objectSelector with the labels of the Eviction, which has none.
func (r Receivers) add(name string, rules []admissionregistrationv1.RuleWithOperations, namespaces, objects *metav1.LabelSelector) Receivers {
	ofNamespaces, invalid := selectorOf(namespaces)
	ofObjects, alsoInvalid := selectorOf(objects)
	if invalid != nil || alsoInvalid != nil || !ofObjects.Matches(labels.Set{}) || !slices.ContainsFunc(rules, matchesEvictions) {
		return r
	}
	return append(r, receiver{name: name, namespaces: ofNamespaces, waits: nameHardlyMore(rules)})
}

// selectorOf parses the selector of a webhook. One that is not set selects everything.
func selectorOf(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// nameHardlyMore reports whether the rules of a webhook name at most maxOthers resources besides evictions, and use no wildcard.
func nameHardlyMore(rules []admissionregistrationv1.RuleWithOperations) bool {
	others := map[string]bool{}
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			switch {
			case strings.Contains(resource, "*"):
				return false
			case resource != eviction:
				others[resource] = true
			}
		}
	}
	return len(others) <= maxOthers
}

// matchesEvictions reports whether a rule matches the creation of evictions. The wildcard for all resources includes no subresources.
func matchesEvictions(rule admissionregistrationv1.RuleWithOperations) bool {
	return createsInCore(rule) && hasAny(rule.Resources, eviction, "pods/*", "*/eviction", "*/*")
}

// createsInCore reports whether a rule matches the creation of resources of the API group of Pods.
func createsInCore(rule admissionregistrationv1.RuleWithOperations) bool {
	isNamespaced := rule.Scope == nil || *rule.Scope != admissionregistrationv1.ClusterScope
	return isNamespaced && hasAny(rule.Operations, admissionregistrationv1.Create, admissionregistrationv1.OperationAll) &&
		hasAny(rule.APIGroups, "", "*") && hasAny(rule.APIVersions, "v1", "*")
}

func hasAny[T comparable](list []T, values ...T) bool {
	return slices.ContainsFunc(list, func(each T) bool { return slices.Contains(values, each) })
}

// Of returns the names of the webhooks that wait for the eviction requests of the Pods of a Namespace with these labels: those that are for
// evictions and hardly anything else, and others if they are named.
func (r Receivers) Of(namespace map[string]string, named []string) []string {
	var names []string
	for _, each := range r {
		if (each.waits || slices.Contains(named, each.name)) && each.namespaces.Matches(labels.Set(namespace)) {
			names = append(names, each.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// maxNames is the number of webhooks that a message names, and maxName the length of a name, which users choose.
const maxNames, maxName = 3, 100

// Message adds to a message about a Pod whose budget allows no disruption that these webhooks receive its eviction requests.
func Message(message string, receivers []string) string {
	names := make([]string, 0, len(receivers))
	for _, name := range receivers {
		names = append(names, text.Cut(name, maxName))
	}
	said := " receives the eviction requests of this Pod; its owner may move the Pod"
	if len(names) > 1 {
		said = " receive the eviction requests of this Pod; their owners may move the Pod"
	}
	said = "; " + text.Named("webhook", names, maxNames) + said
	return text.Cut(message, text.MaxMessage-utf8.RuneCountInString(said)) + said
}
