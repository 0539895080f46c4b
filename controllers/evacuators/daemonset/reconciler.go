package daemonset

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/jsonpatch"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Reconciler evacuates the Pods of DaemonSets, one Node at a time.
type Reconciler struct {
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Clock        clock.PassiveClock

	controller controller.TypedController[workload.Request]
	written    *expectations.Objects[*corev1.Pod] // the deleted Pods
}

// scope is the state of one reconciliation.
type scope struct {
	cluster  types.NamespacedName
	client   client.Client
	node     *corev1.Node
	draining []daemonset.Draining
	matchers []*rules.Matcher // of draining, one by one
	requeue  time.Duration    // 0: the next event suffices
}

// Reconcile reconciles one Node:
//
//	find the drains that target Pods of DaemonSets ─► set the taint and wait until the watch delivers it ─► report and delete
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"Node", klog.KRef("", request.Object.Name)))
	s := &scope{cluster: request.Cluster, node: &corev1.Node{}}
	var err error
	if s.client, err = r.Clusters.Client(ctx, request.Cluster); err != nil {
		return workload.Result(err)
	}
	if err := s.client.Get(ctx, request.Object, s.node); err != nil {
		return workload.Result(errors.Wrapf(answers.IgnoreDoesNotExist(err), "getting Node %s", request.Object.Name))
	}
	if err := r.findDrains(ctx, s); err != nil {
		return workload.Result(err)
	}
	kept, err := r.keepAway(ctx, s)
	if err != nil || !kept {
		return workload.Result(err)
	}
	if err := r.evacuate(ctx, s); err != nil {
		return workload.Result(err)
	}
	return reconcile.Result{RequeueAfter: s.requeue}, nil
}

// findDrains finds the drains of the Node and their rules. It returns an error if it cannot read whether one of them is suspended, or if
// the Cluster is paused.
func (r *Reconciler) findDrains(ctx context.Context, s *scope) (err error) {
	if s.client, err = r.Clusters.Client(ctx, s.cluster); err != nil {
		return err
	}
	maintenances, err := workload.MaintenancesOf(ctx, s.client, s.node.Name)
	if err != nil {
		return err
	}
	suspension := r.Maintenances.Suspension(ctx, s.cluster)
	s.draining, s.matchers = daemonset.On(s.node, maintenances, suspension.Of), nil
	for _, d := range s.draining {
		s.matchers = append(s.matchers, rules.NewMatcher(rules.InEffect(&d.Maintenance.Spec)))
	}
	return suspension.Err()
}

// keepAway adds or removes the taint of the Node. It returns true once the watch has delivered the taint: the DaemonSet controller, which
// watches Nodes too, is then expected to have observed it.
func (r *Reconciler) keepAway(ctx context.Context, s *scope) (bool, error) {
	wanted := daemonset.TaintWanted(s.draining)
	changed := s.node.DeepCopy()
	if !daemonset.SetTaint(changed, wanted) {
		return wanted, nil
	}
	if aside := r.Clusters.SetAside(s.cluster, "NodeMaintenance"); !wanted && len(aside) > 0 { // it may drain the Node
		return false, aside[0]
	}
	if err := jsonpatch.Node(ctx, s.client, s.node, changed); err != nil {
		return false, errors.Wrapf(answers.IgnoreDoesNotExist(err), "setting the taint of Node %s", s.node.Name)
	}
	ctrl.LoggerFrom(ctx).Info("Changed the taint that keeps Pods of DaemonSets away from Node", "tainted", wanted)
	return false, nil
}

// evacuate deletes the Pods of the Node whose active evacuator is this one.
func (r *Reconciler) evacuate(ctx context.Context, s *scope) error {
	observation := r.Clusters.CurrentObservation(s.cluster)
	if observation == nil {
		return nil // Pods are not observed yet; a Change enqueues the Node when they are
	}
	evacuations := &v1alpha1.EvacuationList{}
	if err := s.client.List(ctx, evacuations, workload.OnNode(s.node.Name)); err != nil {
		return errors.Wrapf(err, "listing the Evacuations of Node %s", s.node.Name)
	}
	return r.deletePods(ctx, s, observation, evacuations.Items)
}

// deletePods deletes those Pods that the drains target.
func (r *Reconciler) deletePods(ctx context.Context, s *scope, observation workload.Observation, evacuations []v1alpha1.Evacuation) error {
	var failure error // a Pod that cannot be deleted does not delay the others
	for i := range evacuations {
		e := &evacuations[i]
		pod, found := workload.PodOf(observation, e)
		if !found || pod.Spec.NodeName != s.node.Name {
			continue // the annotation of the Evacuation names a wrong Node
		}
		if _, deleted := r.written.Latest(s.cluster, pod); deleted {
			s.requeue = expectations.TTL // the watch delivers its deletion before, unless a backup was restored (R73)
			continue
		}
		by, refusal := daemonset.Decide(s.input(observation, e, pod))
		var err error
		if refusal == daemonset.NotRefused {
			by, refusal, err = r.decideAgain(ctx, s, observation, e)
		}
		switch {
		case err != nil:
		case refusal != daemonset.NotRefused:
			ctrl.LoggerFrom(ctx).V(4).Info("Skipped Pod", "Pod", klog.KObj(pod), "reason", refusal)
		default:
			err = r.delete(ctx, s, observation, e, pod, by)
		}
		failure = cmp.Or(failure, err)
	}
	return failure
}

// decideAgain reads the drains, the Evacuation and its Pod from the caches again, and decides with them, since earlier requests may have
// taken long.
func (r *Reconciler) decideAgain(ctx context.Context, s *scope, observation workload.Observation, e *v1alpha1.Evacuation) (
	by *v1alpha1.NodeMaintenance, _ daemonset.Refusal, _ error,
) {
	if err := r.findDrains(ctx, s); err != nil {
		return nil, "", err
	}
	switch err := s.client.Get(ctx, client.ObjectKeyFromObject(e), e); {
	case apierrors.IsNotFound(err):
		return nil, daemonset.NotRequested, nil
	case err != nil:
		return nil, "", errors.Wrapf(err, "getting Evacuation %s", klog.KObj(e))
	}
	pod, found := workload.PodOf(observation, e)
	if !found {
		return nil, daemonset.NotRunning, nil
	}
	by, refusal := daemonset.Decide(s.input(observation, e, pod))
	return by, refusal, nil
}

// input returns what is known about a Pod.
func (s *scope) input(observation workload.Observation, e *v1alpha1.Evacuation, pod *corev1.Pod) daemonset.Input {
	described := planinput.RulePod(observation, pod)
	in := daemonset.Input{Evacuation: e, Pod: pod, Type: described.Type, TypeKnown: described.TypeKnown, Draining: s.draining}
	for _, matcher := range s.matchers {
		in.Verdicts = append(in.Verdicts, matcher.Decide(described))
	}
	return in
}

// delete reports the deletion of the Pod on its Evacuation, deletes it, and then reports an error of the API server. In this order, the
// reason is known before the Pod terminates. The report may take long, too, so it decides again after that.
func (r *Reconciler) delete(ctx context.Context, s *scope, observation workload.Observation, requested *v1alpha1.Evacuation, pod *corev1.Pod,
	by *v1alpha1.NodeMaintenance,
) error {
	period, seconds := rules.RequestedGracePeriod(pod, rules.Unreachable(s.node))
	e, err := patchStatus(ctx, s, requested, func(e *v1alpha1.Evacuation) bool { return daemonset.Report(e, by, period, r.Clock.Now()) })
	if err != nil {
		return answers.IgnoreDoesNotExist(err) // without an Evacuation, the Pod stays
	}
	if e != requested {
		copied := e.DeepCopy() // the cache may lag behind the report
		if _, refusal, err := r.decideAgain(ctx, s, observation, copied); err != nil || refusal != daemonset.NotRefused {
			return err
		}
	}
	options := &client.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}, GracePeriodSeconds: seconds}
	refusal := s.client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, options)
	failure := ""
	switch {
	case answers.IsGone(refusal):
		return nil // the watch will deliver the deletion
	case refusal != nil:
		failure = progress.Describe(refusal)
	default:
		r.written.RecordDeleted(s.cluster, pod)
		ctrl.LoggerFrom(ctx).V(2).Info("Deleted Pod", "Pod", klog.KObj(pod), "NodeMaintenance", klog.KRef("", by.Name))
		r.Clusters.Event(s.cluster, pod, corev1.EventTypeNormal, eventDeleted, "Deleted: "+evacuation.Cause(by, s.node.Name))
	}
	_, err = patchStatus(ctx, s, e, func(e *v1alpha1.Evacuation) bool { return daemonset.ReportResult(e, by, failure) })
	if refusal != nil {
		return errors.Wrapf(refusal, "deleting Pod %s", klog.KObj(pod))
	}
	return answers.IgnoreDoesNotExist(err)
}

// patchStatus patches the status of an Evacuation if a change is needed, and returns the Evacuation after it.
func patchStatus(ctx context.Context, s *scope, e *v1alpha1.Evacuation, change func(*v1alpha1.Evacuation) bool) (*v1alpha1.Evacuation, error) {
	changed := e.DeepCopy()
	if !change(changed) {
		return e, nil
	}
	err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(e, client.MergeFromWithOptimisticLock{}))
	return changed, errors.Wrapf(err, "patching the status of Evacuation %s", klog.KObj(e))
}
