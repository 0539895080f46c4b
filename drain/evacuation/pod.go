package evacuation

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Limits of the names in ControllerOf, which tenants choose.
const maxKind, maxName = 63, 253

// Pod is what is known about the Pod of an Evacuation.
type Pod struct {
	// Known is false until it has been observed whether the Pod exists.
	Known bool
	// Exists is true if a Pod with the name and the UID of spec.podRef exists.
	Exists bool
	// Terminating is true if the Pod has a deletionTimestamp.
	Terminating bool
	// Finished is true if the Pod has succeeded or failed: all its containers have terminated.
	Finished bool
	// Type decides whether the Pod may be evicted.
	Type v1alpha1.PodType
	// Node is the name of the Pod's Node, Controller the object that recreates the Pod, see ControllerOf.
	Node, Controller string
	// GracePeriod is the termination grace period of the Pod.
	GracePeriod time.Duration
}

// IsOf reports whether an Evacuation refers to a Pod: the Pod has the Evacuation's namespace, and the name and the UID of its
// spec.podRef. Admission checks the author's permissions on the Pod with that namespace and name, so the
// Evacuation must not affect a Pod with another name, even one with the same UID.
func IsOf(e *v1alpha1.Evacuation, pod *corev1.Pod) bool {
	return pod.Namespace == e.Namespace && pod.Name == e.Spec.PodRef.Name && string(pod.UID) == e.Spec.PodRef.UID
}

// ObservedPod describes the Pod of an Evacuation. Nil, or a Pod that the Evacuation does not refer to, means that the Pod of the
// Evacuation does not exist.
func ObservedPod(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) Pod {
	if pod == nil || !IsOf(e, pod) {
		return Pod{Known: true}
	}
	return Pod{
		Known:       true,
		Exists:      true,
		Terminating: pod.DeletionTimestamp != nil,
		Finished:    rules.Finished(pod),
		Type:        podType,
		Node:        pod.Spec.NodeName,
		Controller:  ControllerOf(pod),
		GracePeriod: rules.GracePeriodOf(pod),
	}
}

// ControllerOf names what recreates a Pod after its eviction: kind, namespace and name of its controller. The controller of a
// ReplicaSet is its Deployment. A Pod without a controller is recreated with the same name or generateName.
func ControllerOf(pod *corev1.Pod) string {
	kind, name := "Pod", cmp.Or(pod.GenerateName, pod.Name)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		kind, name = owner.Kind, owner.Name
		if deployment := rules.DeploymentOf(pod); deployment != "" {
			kind, name = "Deployment", deployment
		}
	}
	return text.Cut(kind, maxKind) + " " + pod.Namespace + "/" + text.Cut(name, maxName)
}

func (p Pod) gone() bool { return p.Known && (!p.Exists || p.Finished) }

func (p Pod) evictable() bool {
	return p.Type != v1alpha1.PodTypeDaemonSet && p.Type != v1alpha1.PodTypeStatic
}

// RecordedNode is the Node that the annotation of an Evacuation names as that of its Pod, with what is known about it without reading the
// Pod. The annotation is untrusted: all users with write access to the Evacuation can change it.
type RecordedNode struct {
	// Name of the Node.
	Name string
	// Node of that name, nil if it does not exist.
	Node *corev1.Node
	// Watched is true if the Pods of the Node are watched already.
	Watched bool
	// Maintenances that may select the Node.
	Maintenances []v1alpha1.NodeMaintenance
}

// NeedsPod reports whether the Pod of the Evacuation must be read to verify the annotation before the Pods of the Node are watched, since
// each watch costs memory. It returns false if the annotation adds no watch: the Pods of the Node are watched already, or a
// NodeMaintenance drains it.
func (n RecordedNode) NeedsPod() bool {
	if n.Name == "" {
		return true
	}
	if n.Watched {
		return false
	}
	for i := range n.Maintenances {
		if m := &n.Maintenances[i]; n.Node != nil && m.Drains() && nodeselection.Selects(m, n.Node) {
			return false
		}
	}
	return true
}
