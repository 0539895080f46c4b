package machine

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	drainoutcome "github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// Outcomes keeps the drains that have ended. The controller of drain outcomes implements it.
type Outcomes interface {
	// Record adds a drain that has ended to those of a policy.
	Record(policy types.NamespacedName, drain v1alpha1.RecentDrain)
	// IsComplete reports whether it is known that the drain of a Machine with a UID has been complete, see drainoutcome.IsComplete.
	IsComplete(machine string) bool
}

// recordEnd logs how the deletion of a Machine ended, and records its history. It runs after the write that ends it.
func (r *Reconciler) recordEnd(ctx context.Context, s *scope, result outcome) {
	evicted := r.evicted(s)
	line := r.Recorder.EndDeletion(s.maintenanceRequest(), s.trace(), s.course(), tracing.Result{
		Outcome: result.reason, Message: result.message, Released: r.Clock.Now(),
	})
	if line == nil || result.reason == v1alpha1.ReasonSkipped { // the Node is not drained
		return
	}
	ctrl.LoggerFrom(ctx).Info("The drain has ended", append([]any{"Node", klog.KRef("", s.machine.Status.NodeRef.Name)}, line...)...)
	if r.Outcomes != nil && s.policy != nil && s.policy.Name != "" {
		r.Outcomes.Record(client.ObjectKeyFromObject(s.policy), v1alpha1.RecentDrain{
			MachineUID: string(s.machine.UID), Machine: s.machine.Name, Cluster: s.machine.Spec.ClusterName, Node: s.machine.Status.NodeRef.Name,
			DrainOutcome: evicted,
		})
	}
}

// evicted returns the Pods that the drain of the Machine has evicted. What became of them is not known yet.
func (r *Reconciler) evicted(s *scope) v1alpha1.DrainOutcome {
	start, pods := s.now, int32(0)
	if s.maintenance != nil {
		pods = s.maintenance.Status.Summary.PodsEvacuated
		if began := drainoutcome.Start(s.maintenance, s.machine.DeletionTimestamp); began != nil {
			start = *began
		}
	}
	return r.Recorder.Outcome(s.maintenanceRequest(), s.trace(), start, pods, r.Clock.Now())
}

// nameOfCluster returns the name of the Cluster, which may not have been read.
func (s *scope) nameOfCluster() types.NamespacedName {
	return types.NamespacedName{Namespace: s.machine.Namespace, Name: s.machine.Spec.ClusterName}
}

// maintenanceRequest identifies the NodeMaintenance of the Machine.
func (s *scope) maintenanceRequest() workload.Request {
	request := workload.Request{Cluster: s.nameOfCluster()}
	if s.maintenance != nil {
		request.Object = types.NamespacedName{Name: s.maintenance.Name}
	}
	return request
}

// trace returns the trace of the Machine's deletion.
func (s *scope) trace() history.Trace {
	trace := history.Trace{Root: s.machine.UID, Cluster: s.nameOfCluster(), Machine: s.machine.Name, Node: s.machine.Status.NodeRef.Name}
	if s.maintenance != nil {
		trace.Maintenance = s.maintenance.Name
	}
	return trace
}

// course returns the times of the Machine's deletion so far.
func (s *scope) course() history.Course {
	course := history.Course{
		DrainEnd: s.now, Releasing: s.now,
		DrainTimedOut: s.drainTimeoutMessage, VolumesTimedOut: s.volumesTimeoutMessage,
		Limited: machinedrain.LimitOf(s.machine, s.policy).IsSet() && !machinedrain.IsControlPlane(s.machine),
	}
	if s.machine.DeletionTimestamp != nil {
		course.Deleted = s.machine.DeletionTimestamp.Time
	}
	if s.maintenance == nil {
		return course
	}
	course.DrainStart = s.maintenance.StageStart(v1alpha1.StageDrain)
	course.DrainEnd = s.clock().VolumeWaitStart(s.machine, s.maintenance, s.now)
	course.Pods = int(s.maintenance.Status.Summary.PodsEvacuated)
	course.WaitsForVolumes = s.VolumeWaitStart != nil && machinedrain.WaitsForVolumes(s.machine, s.node)
	if machinedrain.DrainsDaemonSets(s.policy) && machinedrain.DaemonSetRuleLifted(s.maintenance) {
		course.DaemonSets = course.DrainEnd
	}
	return course
}
