package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	// KwokMachineKind is the kind of a KwokMachine.
	KwokMachineKind = "KwokMachine"
	// KwokMachineFinalizer is removed when the kubelet of a KwokMachine has been stopped.
	KwokMachineFinalizer = "kwokmachine.infrastructure.test.capnm.dev"
)

// KwokMachineSpec describes a machine.
type KwokMachineSpec struct {
	// providerID identifies the Node of the Machine. The provider sets it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// capacity of the Node. Missing resources have the values of a typical machine.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// zone of the Node. The default is derived from the name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`
}

// KwokMachineStatus has the status fields of an infrastructure machine that the contract requires.
// +kubebuilder:validation:MinProperties=1
type KwokMachineStatus struct {
	// initialization is the progress of the initialization.
	// +optional
	Initialization KwokMachineInitializationStatus `json:"initialization,omitempty,omitzero"`

	// addresses of the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`
}

// KwokMachineInitializationStatus is the progress of the initialization.
// +kubebuilder:validation:MinProperties=1
type KwokMachineInitializationStatus struct {
	// provisioned is true when the machine's Node has been created.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KwokMachine is a machine with a Node and a kubelet that kwok simulates. Each KwokMachine has one
// Node of the same name, which is created once, as a kubelet registers once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Provider ID",type=string,JSONPath=`.spec.providerID`
// +kubebuilder:printcolumn:name="Provisioned",type=boolean,JSONPath=`.status.initialization.provisioned`
type KwokMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +optional
	Spec KwokMachineSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status KwokMachineStatus `json:"status,omitempty,omitzero"`
}

// KwokMachineList is a list of KwokMachines.
//
// +kubebuilder:object:root=true
type KwokMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokMachine `json:"items"`
}
