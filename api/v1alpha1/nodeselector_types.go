package v1alpha1

import corev1 "k8s.io/api/core/v1"

// NodeSelector is corev1.NodeSelector with limits, so that CEL can look into it at a bounded cost. A Node is selected when
// one of the terms matches.
type NodeSelector struct {
	// nodeSelectorTerms: one match is enough.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	NodeSelectorTerms []NodeSelectorTerm `json:"nodeSelectorTerms,omitempty"`
}

// NodeSelectorTerm selects Nodes; all its requirements must match.
// +kubebuilder:validation:MinProperties=1
type NodeSelectorTerm struct {
	// matchExpressions are requirements on the Node's labels.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`

	// matchFields are requirements on the Node's fields: metadata.name alone, In or NotIn one value.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(f, f.key == 'metadata.name' && f.operator in ['In', 'NotIn'] && has(f.values) && size(f.values) == 1)",message="a matchFields requirement is on metadata.name, with operator In or NotIn and one value"
	MatchFields []NodeSelectorRequirement `json:"matchFields,omitempty"`
}

// NodeSelectorRequirement compares a label or field with values.
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : true",message="operators In and NotIn need values"
// +kubebuilder:validation:XValidation:rule="self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : true",message="operators Exists and DoesNotExist take no values"
// +kubebuilder:validation:XValidation:rule="self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1 && self.values[0].matches('^-?[0-9]{1,18}$') : true",message="operators Gt and Lt take one integer"
type NodeSelectorRequirement struct {
	// key of the label, or metadata.name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator that compares.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`

	// values to compare with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Values []string `json:"values,omitempty"`
}

// Core returns the selector as the core type, for use with its matchers.
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

// SelectNodes selects Nodes by their names.
func SelectNodes(names ...string) NodeSelector {
	selector := NodeSelector{}
	for _, name := range names {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, NodeSelectorTerm{
			MatchFields: []NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		})
	}
	return selector
}
