package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KwokMachineTemplateKind is the kind of a KwokMachineTemplate.
const KwokMachineTemplateKind = "KwokMachineTemplate"

// KwokMachineTemplateSpec has the template.
type KwokMachineTemplateSpec struct {
	// template of KwokMachines.
	// +required
	Template KwokMachineTemplateResource `json:"template"`
}

// KwokMachineTemplateResource is the template of KwokMachines.
type KwokMachineTemplateResource struct {
	// metadata of the KwokMachines.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the KwokMachines.
	// +required
	Spec KwokMachineSpec `json:"spec"`
}

// KwokMachineTemplate is the template from which MachineDeployments create KwokMachines.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
type KwokMachineTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +required
	Spec KwokMachineTemplateSpec `json:"spec"`
}

// KwokMachineTemplateList is a list of KwokMachineTemplates.
//
// +kubebuilder:object:root=true
type KwokMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokMachineTemplate `json:"items"`
}
