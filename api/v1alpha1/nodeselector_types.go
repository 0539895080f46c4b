package v1alpha1

import corev1 "k8s.io/api/core/v1"

// NodeSelector selects the Nodes that match at least one of its terms. It is the NodeSelector of core/v1 with limits, which bound the cost
// of CEL expressions.
type NodeSelector struct {
	// nodeSelectorTerms are the terms. A Node must match at least one of them.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	NodeSelectorTerms []NodeSelectorTerm `json:"nodeSelectorTerms,omitempty"`
}

// NodeSelectorTerm selects the Nodes that match all of its requirements.
// +kubebuilder:validation:MinProperties=1
type NodeSelectorTerm struct {
	// matchExpressions are requirements on the Node's labels.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`

	// matchFields are requirements on the Node's fields. The only supported field is metadata.name, with operator In or NotIn and one
	// value.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(f, f.key == 'metadata.name' && f.operator in ['In', 'NotIn'] && has(f.values) && size(f.values) == 1)",message="matchFields supports only metadata.name, with operator In or NotIn and one value"
	MatchFields []NodeSelectorRequirement `json:"matchFields,omitempty"`
}

// NodeSelectorRequirement is a requirement on a label or a field.
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : true",message="operators In and NotIn require values"
// +kubebuilder:validation:XValidation:rule="self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : true",message="operators Exists and DoesNotExist do not allow values"
// +kubebuilder:validation:XValidation:rule="self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1 && self.values[0].matches('^-?[0-9]{1,18}$') : true",message="operators Gt and Lt require one integer value"
type NodeSelectorRequirement struct {
	// key is the label key, or metadata.name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator is the relation between the key and the values.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`

	// values are the values of the operator: none for Exists and DoesNotExist, one integer for Gt and Lt.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Values []string `json:"values,omitempty"`
}

// Core converts the selector to the type of core/v1, which has matchers.
func (s *NodeSelector) Core() *corev1.NodeSelector {
	core := &corev1.NodeSelector{}
	for _, term := range s.NodeSelectorTerms {
		core.NodeSelectorTerms = append(core.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchExpressions: coreRequirements(term.MatchExpressions),
			MatchFields:      coreRequirements(term.MatchFields),
		})
	}
	return core
}

func coreRequirements(requirements []NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
	var core []corev1.NodeSelectorRequirement
	for _, r := range requirements {
		core = append(core, corev1.NodeSelectorRequirement(r))
	}
	return core
}

// SelectNodes returns a selector of the Nodes with these names.
func SelectNodes(names ...string) NodeSelector {
	selector := NodeSelector{}
	for _, name := range names {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, NodeSelectorTerm{
			MatchFields: []NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		})
	}
	return selector
}
