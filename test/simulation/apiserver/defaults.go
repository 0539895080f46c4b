package apiserver

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// applyBuiltInDefaults sets the defaults of a new object that controllers depend on.
func applyBuiltInDefaults(object client.Object) {
	switch object := object.(type) {
	case *corev1.Namespace:
		object.Status.Phase = corev1.NamespaceActive
		if object.Labels == nil {
			object.Labels = map[string]string{}
		}
		object.Labels[corev1.LabelMetadataName] = object.Name
	case *corev1.Pod:
		object.Status.Phase = corev1.PodPending
		setDefault(&object.Spec.RestartPolicy, corev1.RestartPolicyAlways)
		setDefault(&object.Spec.DNSPolicy, corev1.DNSClusterFirst)
		setDefault(&object.Spec.SchedulerName, corev1.DefaultSchedulerName)
		setPointer(&object.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	case *appsv1.Deployment:
		setPointer(&object.Spec.Replicas, 1)
		setPointer(&object.Spec.RevisionHistoryLimit, 10)
		setPointer(&object.Spec.ProgressDeadlineSeconds, 600)
		setDefault(&object.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
		if object.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
			setPointer(&object.Spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
			setPointer(&object.Spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
			setPointer(&object.Spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
		}
	case *appsv1.ReplicaSet:
		setPointer(&object.Spec.Replicas, 1)
	case *appsv1.StatefulSet:
		setPointer(&object.Spec.Replicas, 1)
		setDefault(&object.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
		setDefault(&object.Spec.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
	case *appsv1.DaemonSet:
		setDefault(&object.Spec.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	case *batchv1.Job:
		setPointer(&object.Spec.Parallelism, 1)
		setPointer(&object.Spec.BackoffLimit, 6)
	}
}

func setDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

func setPointer[T any](value **T, fallback T) {
	if *value == nil {
		*value = &fallback
	}
}

// establish returns a CustomResourceDefinition with the status that says that it is served.
func (s *Server) establish(k *resource, object client.Object) (client.Object, error) {
	if k.gvr.Group != apiextensionsv1.GroupName {
		return object, nil
	}
	definition, err := definitionOf(object)
	if err != nil {
		return nil, err
	}
	definition = ptr.To(*definition)
	definition.Status = apiextensionsv1.CustomResourceDefinitionStatus{
		Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
			{
				Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: s.now(),
				Reason: "NoConflicts", Message: "no conflicts found",
			},
			{
				Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: s.now(),
				Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
			},
		},
		AcceptedNames: definition.Spec.Names,
	}
	for _, version := range definition.Spec.Versions {
		if version.Storage {
			definition.Status.StoredVersions = append(definition.Status.StoredVersions, version.Name)
		}
	}
	if k.typed {
		definition.SetGroupVersionKind(k.gvk())
		return definition, nil
	}
	content, err := toContent(definition)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: content}, nil
}
