package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// copiedAnnotation on a Pod is the number of parts that were copied. An evacuator stores its progress in the API, so that it can continue
// after a crash.
const copiedAnnotation = "migrator.example.com/copied"

// migrator copies the data of a Pod part by part and then deletes the Pod.
type migrator struct {
	client.Client
	class string // our evacuator class
	parts int
	pace  time.Duration // the duration of a part

	behavior behavior
}

// Reconcile copies the next part of one Pod and reports it, while we are the active evacuator.
func (m *migrator) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	evacuation := &v1alpha1.Evacuation{}
	if err := m.Get(ctx, request.NamespacedName, evacuation); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if ptr.Deref(evacuation.Status.ActiveEvacuatorClass, "") != m.class || evacuation.Status.ActiveEvacuatorCompleted {
		return reconcile.Result{}, nil // we are not active: wait for the next event
	}
	pod := &corev1.Pod{}
	key := types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Spec.PodRef.Name}
	if err := m.Get(ctx, key, pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if string(pod.UID) != evacuation.Spec.PodRef.UID || pod.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // another Pod of this name, or already terminating
	}
	if m.behavior == declines {
		return reconcile.Result{}, m.complete(ctx, evacuation, "The Pod has no data to copy.")
	}
	return m.migrate(ctx, evacuation, pod)
}

// migrate copies one part in each call and deletes the Pod after the last part.
func (m *migrator) migrate(ctx context.Context, evacuation *v1alpha1.Evacuation, pod *corev1.Pod) (reconcile.Result, error) {
	copied, _ := strconv.Atoi(pod.Annotations[copiedAnnotation]) // 0 if the annotation is missing
	if m.behavior == hangs && copied > 0 {
		return reconcile.Result{}, nil
	}
	if remaining := m.pace - time.Since(ptr.Deref(evacuation.Status.EvacuationProgressTimestamp, metav1.Time{}).Time); copied > 0 && remaining > 0 {
		return reconcile.Result{RequeueAfter: remaining}, nil // our report has caused this event
	}
	if copied == m.parts {
		return reconcile.Result{}, client.IgnoreNotFound(m.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
	}
	before := pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, copiedAnnotation, strconv.Itoa(copied+1))
	if err := m.Patch(ctx, pod, client.MergeFrom(before)); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return reconcile.Result{RequeueAfter: m.pace}, m.progress(ctx, evacuation, copied+1)
}

// progress reports progress. An evacuator must do so within spec.progressDeadlineSeconds of its last report, otherwise the next evacuator
// becomes active. A migration that has started cannot be reverted, so progress can forbid the cancellation of the Evacuation.
func (m *migrator) progress(ctx context.Context, evacuation *v1alpha1.Evacuation, copied int) error {
	before := evacuation.DeepCopy()
	now := metav1.Now()
	finish := metav1.NewTime(now.Add(time.Duration(m.parts-copied) * m.pace))
	evacuation.Status.EvacuationProgressTimestamp = &now
	evacuation.Status.ExpectedEvacuationFinishTime = &finish
	evacuation.Status.Message = fmt.Sprintf("Copied %d of %d parts.", copied, m.parts)
	if m.behavior == forbids {
		evacuation.Status.EvacuationCancellationPolicy = v1alpha1.CancellationForbid
	}
	return client.IgnoreNotFound(m.Status().Patch(ctx, evacuation, client.MergeFrom(before)))
}

// complete lets the next evacuator become active. An evacuator that deletes the Pod does not need to call it.
func (m *migrator) complete(ctx context.Context, evacuation *v1alpha1.Evacuation, why string) error {
	before := evacuation.DeepCopy()
	evacuation.Status.ActiveEvacuatorCompleted = true
	evacuation.Status.Message = why
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}) // the next evacuator may be active by now
	return client.IgnoreNotFound(m.Status().Patch(ctx, evacuation, patch))
}
