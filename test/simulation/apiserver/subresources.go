package apiserver

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/pkg/errors"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// maxDisruptedPods is how many evictions of a budget the disruption controller may not have observed yet.
const maxDisruptedPods = 2000

// evict evicts a Pod: it decrements its budget, and then deletes the Pod.
func (s *Server) evict(r operation, eviction *policyv1.Eviction) error {
	pods := s.pods()
	if eviction.Name != "" && eviction.Name != r.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := eviction.DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	r.dryRun = r.dryRun || len(options.DryRun) > 0
	pod, err := s.evictUnprotected(r, pods, options)
	if err != nil || pod == nil {
		return err
	}
	budget, err := s.budgetOf(pod)
	if err != nil {
		return err
	}
	if budget == nil {
		return s.deleteEvicted(r, pods, options)
	}
	if !rules.Ready(pod) && allowsUnhealthy(budget) {
		return s.evictUnhealthy(r, pods, pod, budget, options)
	}
	if err := s.decrement(r, budget.Name); err != nil {
		return err
	}
	return s.deleteEvicted(r, pods, options)
}

// evictUnprotected evicts a Pod that no budget protects: one that is pending, finished or being deleted. It returns any other Pod without
// evicting it. If the Pod has changed meanwhile, it tries again. If another Pod has the name, it fails at once with the error that a real
// API server returns after ten seconds of attempts.
func (s *Server) evictUnprotected(r operation, pods *resource, options *metav1.DeleteOptions) (*corev1.Pod, error) {
	for {
		pod, err := s.pod(pods, r)
		if err != nil {
			return nil, err
		}
		terminal := isTerminal(pod)
		if !terminal && pod.Status.Phase != corev1.PodPending {
			return pod, nil
		}
		pinned := options
		if !terminal {
			pinned = withResourceVersion(options, pod)
		}
		err = s.deleteEvicted(r, pods, pinned)
		if !apierrors.IsConflict(err) || pinned == options || *cmp.Or(pinned.Preconditions.UID, &pod.UID) != pod.UID {
			return nil, err
		}
	}
}

// isTerminal returns whether a Pod is finished or being deleted.
func isTerminal(pod *corev1.Pod) bool {
	return rules.Finished(pod) || pod.DeletionTimestamp != nil
}

// allowsUnhealthy returns whether a budget allows the eviction of any Pod that is not ready.
func allowsUnhealthy(budget *policyv1.PodDisruptionBudget) bool {
	healthy := budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy && budget.Status.DesiredHealthy > 0
	return healthy || ptr.Deref(budget.Spec.UnhealthyPodEvictionPolicy, "") == policyv1.AlwaysAllow
}

// evictUnhealthy evicts a Pod that is not ready, without a disruption of its budget. The Pod must not have changed.
func (s *Server) evictUnhealthy(
	r operation, pods *resource, pod *corev1.Pod, budget *policyv1.PodDisruptionBudget, options *metav1.DeleteOptions,
) error {
	pinned := withResourceVersion(options, pod)
	err := s.deleteEvicted(r, pods, pinned)
	if apierrors.IsConflict(err) && pinned != options {
		return stillProcessed(budget.Name)
	}
	return err
}

func (s *Server) pod(pods *resource, r operation) (*corev1.Pod, error) {
	if stored := s.get(pods, r.key()); stored != nil {
		if pod, ok := stored.object.(*corev1.Pod); ok {
			return pod, nil
		}
	}
	return nil, pods.notFound(r.Name)
}

// withResourceVersion returns options that require that the Pod has not changed, unless they require a resourceVersion already.
func withResourceVersion(options *metav1.DeleteOptions, pod *corev1.Pod) *metav1.DeleteOptions {
	if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
		return options
	}
	options = options.DeepCopy()
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	options.Preconditions.ResourceVersion = ptr.To(pod.ResourceVersion)
	return options
}

// budgetOf returns the budget of a Pod, or nil.
func (s *Server) budgetOf(pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	var found *policyv1.PodDisruptionBudget
	objects, _ := s.list(s.budgets(), selector{namespace: pod.Namespace})
	for _, stored := range objects {
		budget, ok := stored.object.(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if found != nil {
			return nil, internalError("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
		}
		found = budget
	}
	return found, nil
}

func (s *Server) pods() *resource { return s.resource(corev1.SchemeGroupVersion.WithResource("pods")) }

func (s *Server) budgets() *resource {
	return s.resource(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"))
}

// decrement takes a disruption from a budget.
func (s *Server) decrement(r operation, name string) error {
	k, podName := s.budgets(), r.Name
	r.Request = Request{
		User: "system:apiserver", Verb: "update", Group: k.gvr.Group, Version: k.gvr.Version, Resource: k.gvr.Resource, Subresource: "status",
		Namespace: r.Namespace, Name: name,
	}
	_, err := s.mutateExisting(r, k, func(old *version) (client.Object, error) {
		budget := old.object.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		if err := allowsDisruption(budget); err != nil {
			return nil, err
		}
		if budget.Status.DisruptionsAllowed--; budget.Status.DisruptionsAllowed == 0 {
			poddisruptionbudget.UpdateDisruptionAllowedCondition(budget)
		}
		if budget.Status.DisruptedPods == nil {
			budget.Status.DisruptedPods = map[string]metav1.Time{}
		}
		budget.Status.DisruptedPods[podName] = s.now()
		return budget, nil
	})
	return err
}

// allowsDisruption returns an error if a budget does not allow an eviction.
func allowsDisruption(budget *policyv1.PodDisruptionBudget) error {
	status := budget.Status
	gr := schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}
	switch {
	case status.ObservedGeneration < budget.Generation:
		return stillProcessed(budget.Name)
	case status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(gr, budget.Name, errors.New("pdb disruptions allowed is negative"))
	case len(status.DisruptedPods) > maxDisruptedPods:
		return apierrors.NewForbidden(gr, budget.Name,
			errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case status.DisruptionsAllowed > 0:
		return nil
	}
	condition := apimeta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition)
	denied := condition != nil && condition.Status == metav1.ConditionFalse && condition.Message != ""
	message := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", budget.Name)
	switch {
	case denied && condition.Reason == policyv1.SyncFailedReason:
		message += " because it failed sync: " + condition.Message
	case status.CurrentHealthy <= status.DesiredHealthy:
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, status.DesiredHealthy, status.CurrentHealthy)
	case denied:
		message += fmt.Sprintf(" (%s): %s", condition.Reason, condition.Message)
	}
	return cannotEvict(message, 0)
}

func stillProcessed(budget string) error {
	return cannotEvict(fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget), 10)
}

func cannotEvict(cause string, retryAfter int) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retryAfter)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

// deleteEvicted deletes a Pod after it has set its condition.
func (s *Server) deleteEvicted(r operation, pods *resource, options *metav1.DeleteOptions) error {
	stored, err := s.mutateExisting(r, pods, func(old *version) (client.Object, error) {
		if err := checkPreconditions(pods, old.object, options.Preconditions); err != nil {
			return nil, err
		}
		pod := old.object.DeepCopyObject().(*corev1.Pod)
		setPodCondition(pod, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			LastTransitionTime: s.now(),
		})
		return pod, nil
	})
	if err != nil || r.dryRun {
		return err
	}
	if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
		options = options.DeepCopy()
		options.Preconditions.ResourceVersion = ptr.To(stored.object.GetResourceVersion())
	}
	r.Verb, r.Subresource = "delete", ""
	_, err = s.delete(r, pods, options)
	return err
}

func setPodCondition(pod *corev1.Pod, condition corev1.PodCondition) {
	for i := range pod.Status.Conditions {
		present := &pod.Status.Conditions[i]
		if present.Type == condition.Type {
			if present.Status == condition.Status {
				condition.LastTransitionTime = present.LastTransitionTime
			}
			*present = condition
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, condition)
}

// bind binds a Pod to a Node.
func (s *Server) bind(r operation, binding *corev1.Binding) error {
	pods := s.pods()
	_, err := s.mutateExisting(r, pods, func(old *version) (client.Object, error) {
		pod := old.object.DeepCopyObject().(*corev1.Pod)
		conflict := ""
		switch {
		case pod.DeletionTimestamp != nil:
			conflict = fmt.Sprintf("pod %s is being deleted, cannot be assigned to a host", r.Name)
		case pod.Spec.NodeName != "":
			conflict = fmt.Sprintf("pod %s is already assigned to node %q", r.Name, pod.Spec.NodeName)
		}
		if conflict != "" {
			return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, r.Name, errors.New(conflict))
		}
		pod.Spec.NodeName = binding.Target.Name
		setPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.now()})
		return pod, nil
	})
	return err
}

type scaleType = autoscalingv1.Scale

// scaleOf returns the scale of a workload.
func scaleOf(object client.Object) *scaleType {
	scale := &scaleType{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
		CreationTimestamp: object.GetCreationTimestamp(),
	}}
	scale.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	value := reflect.ValueOf(object).Elem()
	if replicas, ok := reflect.TypeAssert[*int32](value.FieldByName("Spec").FieldByName("Replicas")); ok {
		scale.Spec.Replicas = ptr.Deref(replicas, 1)
	}
	if replicas := value.FieldByName("Status").FieldByName("Replicas"); replicas.IsValid() && replicas.CanInt() {
		scale.Status.Replicas = int32(replicas.Int())
	}
	if selector, ok := reflect.TypeAssert[*metav1.LabelSelector](value.FieldByName("Spec").FieldByName("Selector")); ok {
		scale.Status.Selector = metav1.FormatLabelSelector(selector)
	}
	return scale
}

// replaceScale returns a workload with the replicas of a scale.
func replaceScale(k *resource, present, object client.Object) (client.Object, error) {
	scale, ok := object.(*scaleType)
	if !ok {
		return nil, apierrors.NewBadRequest("not a Scale")
	}
	if required := scale.ResourceVersion; required != "" && required != present.GetResourceVersion() {
		return nil, apierrors.NewConflict(k.gvr.GroupResource(), present.GetName(),
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	updated := present.DeepCopyObject().(client.Object)
	reflect.ValueOf(updated).Elem().FieldByName("Spec").FieldByName("Replicas").Set(reflect.ValueOf(&scale.Spec.Replicas))
	countGeneration(k, present, updated)
	return updated, nil
}
