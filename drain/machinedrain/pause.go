package machinedrain

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// IsClusterPaused reports whether a Cluster is paused together with everything that belongs to it: by spec.paused. As in Cluster API, the
// annotation cluster.x-k8s.io/paused on a Cluster pauses only the controllers of the Cluster object, and Machines are still created and
// deleted.
func IsClusterPaused(cluster *clusterv1.Cluster) bool { return ptr.Deref(cluster.Spec.Paused, false) }

// HasPauseAnnotation reports whether a Machine or a MachineDeployment is paused by its annotation, which pauses only the object that has
// it.
func HasPauseAnnotation(object metav1.Object) bool {
	_, found := object.GetAnnotations()[clusterv1.PausedAnnotation]
	return found
}

// IsPaused reports whether a Machine or a MachineDeployment of a Cluster is paused: by its annotation, or with the Cluster. cluster is nil
// if it does not exist.
func IsPaused(cluster *clusterv1.Cluster, object metav1.Object) bool {
	return cluster != nil && IsClusterPaused(cluster) || HasPauseAnnotation(object)
}
