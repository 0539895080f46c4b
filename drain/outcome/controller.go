package outcome

import (
	"cmp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Limits of the parts of a Controller's text, which tenants choose: kinds and groups of custom resources have at most 63 and 253
// characters.
const maxKind, maxName = 317, 253

// kindPod is the kind of Pods without a controller.
const kindPod = "Pod"

// Controller names what recreates a Pod, see v1alpha1.EvictedApplication.
type Controller struct{ Kind, Namespace, Name string }

// ControllerOf returns the controller of a Pod. The controller of a ReplicaSet is its Deployment. Two drains of a Pod without a controller
// have the same Controller if the Pod is created again with the same name or generateName.
func ControllerOf(pod *corev1.Pod) Controller {
	controller := Controller{Kind: kindPod, Namespace: pod.Namespace, Name: cmp.Or(pod.GenerateName, pod.Name)}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		controller.Kind, controller.Name = kindOf(owner), owner.Name
		if deployment := rules.DeploymentOf(pod); deployment != "" {
			controller.Kind, controller.Name = "Deployment", deployment
		}
	}
	controller.Kind, controller.Name = text.Cut(clean(controller.Kind), maxKind), text.Cut(clean(controller.Name), maxName)
	return controller
}

// clean replaces the characters that no kind or name has, which parse and readers cannot handle, and which take more than a byte: the API
// server does not check the owner references of Pods.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("-._:", r):
			return r
		default:
			return '_'
		}
	}, name)
}

// kindOf returns the kind of a controller, with its group if it is not built into Kubernetes: other groups have kinds of the same names.
func kindOf(owner *metav1.OwnerReference) string {
	group := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group
	if group == "" && owner.Kind != kindPod || NewObject(owner.Kind) != nil && (group == appsv1.GroupName || group == batchv1.GroupName) {
		return owner.Kind
	}
	return owner.Kind + "." + group
}

// String returns the text of the controller in the API: "Deployment web/shop".
func (c Controller) String() string { return c.Kind + " " + c.Namespace + "/" + c.Name }

// parse returns the controller with a text, see clean.
func parse(controller string) Controller {
	kind, name, _ := strings.Cut(controller, " ")
	namespace, name, _ := strings.Cut(name, "/")
	return Controller{Kind: kind, Namespace: namespace, Name: name}
}

// Object is a controller.
type Object interface {
	metav1.Object
	runtime.Object
}

// NewObject returns an empty object of a kind of controllers that Wanted understands, nil for other kinds.
func NewObject(kind string) Object {
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{}
	case "StatefulSet":
		return &appsv1.StatefulSet{}
	case "ReplicaSet":
		return &appsv1.ReplicaSet{}
	case "ReplicationController":
		return &corev1.ReplicationController{}
	case "Job":
		return &batchv1.Job{}
	default:
		return nil
	}
}

// Wanted returns how many Pods a controller wants that are not finished, at least 0. known is false if its kind is not one of NewObject.
func Wanted(controller Object) (pods int32, known bool) {
	if controller.GetDeletionTimestamp() != nil {
		return 0, true
	}
	switch c := controller.(type) {
	case *appsv1.Deployment:
		pods = ptr.Deref(c.Spec.Replicas, 1)
	case *appsv1.StatefulSet:
		pods = ptr.Deref(c.Spec.Replicas, 1)
	case *appsv1.ReplicaSet:
		pods = ptr.Deref(c.Spec.Replicas, 1)
	case *corev1.ReplicationController:
		pods = ptr.Deref(c.Spec.Replicas, 1)
	case *batchv1.Job:
		pods = wantedOfJob(c)
	default:
		return 0, false
	}
	return max(pods, 0), true
}

// wantedOfJob returns how many Pods a Job wants. A Job without completions creates no Pods once one has succeeded.
func wantedOfJob(job *batchv1.Job) int32 {
	if ptr.Deref(job.Spec.Suspend, false) || job.Spec.Completions == nil && job.Status.Succeeded > 0 {
		return 0
	}
	for _, condition := range job.Status.Conditions {
		switch condition.Type {
		case batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet:
			if condition.Status == corev1.ConditionTrue {
				return 0
			}
		case batchv1.JobSuspended: // spec.suspend says that
		}
	}
	parallelism := ptr.Deref(job.Spec.Parallelism, 1)
	if job.Spec.Completions == nil {
		return parallelism
	}
	return min(parallelism, *job.Spec.Completions-job.Status.Succeeded)
}
