package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KwokClusterKind is the kind of a KwokCluster.
const KwokClusterKind = "KwokCluster"

// KwokClusterSpec has the spec fields of an infrastructure cluster that the contract requires.
type KwokClusterSpec struct {
	// controlPlaneEndpoint is the address of the workload cluster. The provider sets it.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// KwokClusterStatus has the status fields of an infrastructure cluster that the contract requires.
// +kubebuilder:validation:MinProperties=1
type KwokClusterStatus struct {
	// initialization is the progress of the initialization.
	// +optional
	Initialization KwokClusterInitializationStatus `json:"initialization,omitempty,omitzero"`
}

// KwokClusterInitializationStatus is the progress of the initialization.
// +kubebuilder:validation:MinProperties=1
type KwokClusterInitializationStatus struct {
	// provisioned is true when the workload cluster is reachable and the kubeconfig Secret exists.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KwokCluster is a workload cluster whose control plane a test has started.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
type KwokCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +optional
	Spec KwokClusterSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status KwokClusterStatus `json:"status,omitempty,omitzero"`
}

// KwokClusterList is a list of KwokClusters.
//
// +kubebuilder:object:root=true
type KwokClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokCluster `json:"items"`
}
