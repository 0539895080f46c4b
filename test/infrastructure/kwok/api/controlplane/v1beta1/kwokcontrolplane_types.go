package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KwokControlPlaneKind is the kind of a KwokControlPlane.
const KwokControlPlaneKind = "KwokControlPlane"

// KwokControlPlaneSpec describes the control plane.
type KwokControlPlaneSpec struct {
	// version of Kubernetes.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
}

// KwokControlPlaneStatus has the status fields of a control plane that the contract requires.
// +kubebuilder:validation:MinProperties=1
type KwokControlPlaneStatus struct {
	// initialization is the progress of the initialization.
	// +optional
	Initialization KwokControlPlaneInitializationStatus `json:"initialization,omitempty,omitzero"`

	// externalManagedControlPlane makes Cluster API drain and delete Nodes without control plane Machines.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`

	// version is the running version. While it differs from spec.version, Cluster API assumes an upgrade and
	// creates no Machines.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
}

// KwokControlPlaneInitializationStatus is the progress of the initialization.
// +kubebuilder:validation:MinProperties=1
type KwokControlPlaneInitializationStatus struct {
	// controlPlaneInitialized is true when the control plane can be used.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// KwokControlPlane is a control plane without Machines, as that of a managed service.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
type KwokControlPlane struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +optional
	Spec KwokControlPlaneSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status KwokControlPlaneStatus `json:"status,omitempty,omitzero"`
}

// KwokControlPlaneList is a list of KwokControlPlanes.
//
// +kubebuilder:object:root=true
type KwokControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokControlPlane `json:"items"`
}
