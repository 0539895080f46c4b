package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LabelSelector selects objects by their labels. It is the LabelSelector of meta/v1, restricted to what the API server accepts as labels: a
// selector that cannot be parsed would select nothing.
// +structType=atomic
type LabelSelector struct {
	// matchLabels are the labels that an object must have.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) > 0 && size(key) <= 317)",message="label keys have 1 to 317 characters"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// matchExpressions are further requirements on the labels of an object.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// LabelSelectorRequirement is a requirement on a label.
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",message="operators In and NotIn require values, operators Exists and DoesNotExist do not allow values"
type LabelSelectorRequirement struct {
	// key is the label key.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`
	Key string `json:"key,omitempty"`

	// operator is the relation between the key and the values.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator,omitempty"`

	// values are the values of the operators In and NotIn.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []LabelValue `json:"values,omitempty"`
}

// Core converts the selector to the type of meta/v1, which can be parsed. It returns nil for nil.
func (s *LabelSelector) Core() *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	core := &metav1.LabelSelector{}
	for key, value := range s.MatchLabels {
		metav1.AddLabelToSelector(core, key, string(value))
	}
	for _, requirement := range s.MatchExpressions {
		expression := metav1.LabelSelectorRequirement{Key: requirement.Key, Operator: requirement.Operator}
		for _, value := range requirement.Values {
			expression.Values = append(expression.Values, string(value))
		}
		core.MatchExpressions = append(core.MatchExpressions, expression)
	}
	return core
}
