package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KwokClusterKind is the kind of a KwokCluster.
const KwokClusterKind = "KwokCluster"

// KwokClusterSpec is what the contract asks of an infrastructure cluster's spec.
type KwokClusterSpec struct {
	// controlPlaneEndpoint is where Cluster API reaches the workload cluster. The provider fills it in.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// KwokClusterStatus is what the contract asks of an infrastructure cluster's status.
// +kubebuilder:validation:MinProperties=1
type KwokClusterStatus struct {
	// initialization says what has been done once and for all.
	// +optional
	Initialization KwokClusterInitializationStatus `json:"initialization,omitempty,omitzero"`
}

// KwokClusterInitializationStatus says what has been done once and for all.
// +kubebuilder:validation:MinProperties=1
type KwokClusterInitializationStatus struct {
	// provisioned is true when the workload cluster can be reached and the kubeconfig Secret is there.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KwokCluster is a workload cluster whose control plane a test has started already.
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
