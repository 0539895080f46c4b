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

// copiedAnnotation on a Pod says how much of its data has been copied. An evacuator keeps what it has done where it finds it again
// after a crash.
const copiedAnnotation = "migrator.example.com/copied"

// migrator moves the data of a Pod away, part by part, and then has the Pod end.
type migrator struct {
	client.Client
	class string // who we are, in annotations of Pods
	parts int
	pace  time.Duration // how long a part takes

	behavior behavior
}

// Reconcile does the next part of the work on one Pod, when it is our turn, and reports it.
func (m *migrator) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	evacuation := &v1alpha1.Evacuation{}
	if err := m.Get(ctx, request.NamespacedName, evacuation); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if ptr.Deref(evacuation.Status.ActiveEvacuatorClass, "") != m.class || evacuation.Status.ActiveEvacuatorCompleted {
		return reconcile.Result{}, nil // not our turn: the next event tells
	}
	pod := &corev1.Pod{}
	key := types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Spec.PodRef.Name}
	if err := m.Get(ctx, key, pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if string(pod.UID) != evacuation.Spec.PodRef.UID || pod.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // another Pod of this name, or on its way already
	}
	if m.behavior == declines {
		return reconcile.Result{}, m.complete(ctx, evacuation, "This Pod has no data here, leaving it to others.")
	}
	return m.migrate(ctx, evacuation, pod)
}

// migrate copies one part after the other, and deletes the Pod when all are copied.
func (m *migrator) migrate(ctx context.Context, evacuation *v1alpha1.Evacuation, pod *corev1.Pod) (reconcile.Result, error) {
	copied, _ := strconv.Atoi(pod.Annotations[copiedAnnotation]) // none yet: 0
	if m.behavior == hangs && copied > 0 {
		return reconcile.Result{}, nil
	}
	if rest := m.pace - time.Since(ptr.Deref(evacuation.Status.EvacuationProgressTimestamp, metav1.Time{}).Time); copied > 0 && rest > 0 {
		return reconcile.Result{RequeueAfter: rest}, nil // our own report is an event, too
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

// progress reports that work is being done: before spec.progressDeadlineSeconds have passed since the last time, or the next
// evacuator has its turn. Once data is on its way there is no return, so the Evacuation can't be cancelled any more.
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

// complete passes the turn on. Whoever deletes the Pod doesn't need it: that the Pod is gone says enough.
func (m *migrator) complete(ctx context.Context, evacuation *v1alpha1.Evacuation, why string) error {
	before := evacuation.DeepCopy()
	evacuation.Status.ActiveEvacuatorCompleted = true
	evacuation.Status.Message = why
	return client.IgnoreNotFound(m.Status().Patch(ctx, evacuation, client.MergeFrom(before)))
}
