package observe

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list,roleName=capnm-plugin-workload-reader
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get,roleName=capnm-plugin-workload-reader

// readSurges reads Deployments and what else decides whether they surge: the HorizontalPodAutoscalers of their Namespaces, and the claims
// of their templates.
func (w *Workload) readSurges(ctx context.Context, names []types.NamespacedName) error {
	missing := slices.DeleteFunc(names, func(name types.NamespacedName) bool { _, known := w.surges[name]; return known })
	namespaces := sets.New[string]()
	for _, name := range missing {
		namespaces.Insert(name.Namespace)
	}
	autoscalers := map[string][]autoscalingv2.HorizontalPodAutoscaler{}
	if err := each(ctx, sets.List(namespaces), func(ctx context.Context, namespace string) error {
		list := &autoscalingv2.HorizontalPodAutoscalerList{}
		_, err := w.tolerate(w.listAll(ctx, list, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			autoscalers[namespace] = append(autoscalers[namespace], list.Items...)
		}, client.InNamespace(namespace)), "list", "horizontalpodautoscalers.autoscaling")
		return errors.Wrapf(err, "listing the HorizontalPodAutoscalers of Namespace %s of %s", namespace, w.Name)
	}); err != nil {
		return err
	}
	return each(ctx, missing, func(ctx context.Context, name types.NamespacedName) error {
		o := surge.Observation{Deployment: &appsv1.Deployment{}}
		exists, known, err := w.readOne(ctx, name, o.Deployment, "deployments.apps")
		if !exists {
			if known {
				w.keepSurge(name, surge.Observation{})
			}
			return err
		}
		for _, autoscaler := range autoscalers[name.Namespace] {
			if surge.Scales(&autoscaler, name.Name) {
				o.Autoscalers = append(o.Autoscalers, &autoscaler)
			}
		}
		if o.Claims, err = w.claimsOf(ctx, o.Deployment); err != nil {
			return err
		}
		w.keepSurge(name, o)
		return nil
	})
}

// readSets reads StatefulSets.
func (w *Workload) readSets(ctx context.Context, names []types.NamespacedName) error {
	missing := slices.DeleteFunc(names, func(name types.NamespacedName) bool { _, known := w.sets[name]; return known })
	return each(ctx, missing, func(ctx context.Context, name types.NamespacedName) error {
		set := &appsv1.StatefulSet{}
		exists, known, err := w.readOne(ctx, name, set, "statefulsets.apps")
		if !exists {
			set = nil
		}
		if known {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sets[name] = set
		}
		return err
	})
}

func (w *Workload) keepSurge(name types.NamespacedName, o surge.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.surges[name] = o
}

// claimsOf returns the PersistentVolumeClaims that all Pods of a Deployment share, nil for one that does not exist.
func (w *Workload) claimsOf(ctx context.Context, deployment *appsv1.Deployment) (map[string]*corev1.PersistentVolumeClaim, error) {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range surge.ClaimsOf(deployment.Spec.Template) {
		claim := &corev1.PersistentVolumeClaim{}
		exists, known, err := w.readOne(ctx, types.NamespacedName{Namespace: deployment.Namespace, Name: name}, claim, "persistentvolumeclaims")
		switch {
		case err != nil:
			return nil, err
		case exists:
			claims[name] = claim
		case known:
			claims[name] = nil
		}
	}
	return claims, nil
}

// Replicas returns how many replicas a Deployment or StatefulSet of a Cluster declares, or of the cluster of the context if the Cluster is
// empty. It returns 0 if that is not known: nothing depends on it but a note.
func (c *Connections) Replicas(ctx context.Context, cluster, kind string, name types.NamespacedName) int32 {
	w, err := c.named(ctx, cluster)
	if err != nil {
		return 0
	}
	deployment, set := &appsv1.Deployment{}, &appsv1.StatefulSet{}
	switch {
	case kind == "Deployment" && w.Get(ctx, name, deployment) == nil:
		return ptr.Deref(deployment.Spec.Replicas, 1)
	case kind == "StatefulSet" && w.sets[name] != nil:
		return ptr.Deref(w.sets[name].Spec.Replicas, 1)
	case kind == "StatefulSet" && w.Get(ctx, name, set) == nil:
		return ptr.Deref(set.Spec.Replicas, 1)
	default:
		return 0
	}
}
