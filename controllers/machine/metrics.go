package machine

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// buckets are those of durations of drains, in seconds, up to a week.
var buckets = []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 4 * 3600, 24 * 3600, 7 * 24 * 3600}

var (
	drainsInProgress = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capnm_drains_in_progress",
		Help: "Machines whose Nodes are being drained, for their deletion or in place.",
	})
	drainDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "capnm_drain_duration_seconds",
		Help: "Time from the start of a drain, or the deletion of a Machine whose Node was drained before, to the removal of the Machine's hook, " +
			"by reason (Drained, TimedOut).",
		Buckets: buckets,
	}, []string{"reason"})
	oldestDrain = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "capnm_drain_start_timestamp_seconds",
		Help: "Start of the oldest drain that has not ended, or of the wait for it, in Unix time, by reason of the condition NodeMaintenance of the Machine.",
	}, []string{"cluster_namespace", "cluster", "reason"})
	volumesWaitedFor = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capnm_volumes_waited_for",
		Help: "Volumes that must detach from drained Nodes before their Machines are deleted.",
	})
	longestVolumeWait = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capnm_volume_wait_start_timestamp_seconds",
		Help: "Start of the longest current wait for volumes, in Unix time; 0 if no Machine waits.",
	})
	hookWait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "capnm_hook_wait_seconds",
		Help:    "Time from the deletion of a Machine to the removal of its hook, by reason (Drained, Skipped, TimedOut).",
		Buckets: buckets,
	}, []string{"reason"})
)

func init() {
	metrics.Registry.MustRegister(drainsInProgress, oldestDrain, drainDuration, volumesWaitedFor, longestVolumeWait, hookWait)
}

// inProgress are the running drains with the volumes that each waits for.
var inProgress = struct {
	sync.Mutex
	machines map[types.NamespacedName]volumeWait
}{machines: map[types.NamespacedName]volumeWait{}}

// unended are the Machines whose drains, or the waits for them, have not ended.
var unended = struct {
	sync.Mutex
	machines map[types.NamespacedName]unendedDrain
}{machines: map[types.NamespacedName]unendedDrain{}}

// reasonPaused is the reason of a drain whose Machine or Cluster is paused.
const reasonPaused = "Paused"

// unendedDrain is a drain with the labels of its series.
type unendedDrain struct {
	cluster, reason string
	start           time.Time
}

// observeUnended records what the drain of a Machine waits for: the reason of its condition if reason is empty. It counts from the start of
// stage Drain, which is kept while it cannot be read, and before that from the request. A start in the future would prevent the alert: a
// user of the workload cluster may have written it.
func observeUnended(s *scope, reason string) {
	requested, machine := machinedrain.RequestedAt(s.machine), client.ObjectKeyFromObject(s.machine)
	if reason == "" && machinedrain.MayDrain(s.machine) { // otherwise that reason is the result of the drain
		reason = conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance)
	}
	if requested == nil || reason == "" {
		return
	}
	unended.Lock()
	defer unended.Unlock()
	before, known := unended.machines[machine]
	drain := unendedDrain{s.machine.Spec.ClusterName, reason, *requested}
	if s.maintenance != nil {
		if began := s.maintenance.StageStart(v1alpha1.StageDrain); began != nil && began.After(drain.start) && !began.After(s.now) {
			drain.start = *began
		}
	} else if before.start.After(drain.start) {
		drain.start = before.start
	}
	unended.machines[machine] = drain
	if known && before != drain {
		updateOldest(machine.Namespace, before)
	}
	updateOldest(machine.Namespace, drain)
}

func removeUnended(machine types.NamespacedName) {
	unended.Lock()
	defer unended.Unlock()
	if before, known := unended.machines[machine]; known {
		delete(unended.machines, machine)
		updateOldest(machine.Namespace, before)
	}
}

// updateOldest sets the series that a drain belongs to, or had belonged to.
func updateOldest(namespace string, of unendedDrain) {
	oldest := time.Time{}
	for machine, drain := range unended.machines {
		isOfSeries := machine.Namespace == namespace && drain.cluster == of.cluster && drain.reason == of.reason
		if isOfSeries && (oldest.IsZero() || drain.start.Before(oldest)) {
			oldest = drain.start
		}
	}
	if oldest.IsZero() {
		oldestDrain.DeleteLabelValues(namespace, of.cluster, of.reason)
		return
	}
	oldestDrain.WithLabelValues(namespace, of.cluster, of.reason).Set(float64(oldest.Unix()))
}

// volumeWait is the number of volumes that a drained Node waits for, and the start of the wait.
type volumeWait struct {
	volumes int
	start   time.Time
}

// observeDrain counts a running drain. It keeps the last observed volumes: they are observed in a later step.
func observeDrain(s *scope) {
	inProgress.Lock()
	defer inProgress.Unlock()
	machine := client.ObjectKeyFromObject(s.machine)
	if _, known := inProgress.machines[machine]; !known {
		inProgress.machines[machine] = volumeWait{}
	}
	updateGauges()
}

func observeVolumes(s *scope, decision volumes.Decision) {
	inProgress.Lock()
	defer inProgress.Unlock()
	inProgress.machines[client.ObjectKeyFromObject(s.machine)] = volumeWait{volumes: decision.Count(), start: *s.VolumeWaitStart}
	updateGauges()
}

func removeDrainMetrics(machine types.NamespacedName) {
	removeUnended(machine)
	inProgress.Lock()
	defer inProgress.Unlock()
	delete(inProgress.machines, machine)
	updateGauges()
}

func updateGauges() {
	all, since := 0, time.Time{}
	for _, wait := range inProgress.machines {
		if wait.volumes == 0 {
			continue
		}
		all += wait.volumes
		if since.IsZero() || wait.start.Before(since) {
			since = wait.start
		}
	}
	drainsInProgress.Set(float64(len(inProgress.machines)))
	volumesWaitedFor.Set(float64(all))
	if since.IsZero() {
		longestVolumeWait.Set(0)
		return
	}
	longestVolumeWait.Set(float64(since.Unix()))
}

func recordReleaseMetrics(s *scope, result outcome) {
	removeDrainMetrics(client.ObjectKeyFromObject(s.machine))
	if s.machine.DeletionTimestamp != nil {
		hookWait.WithLabelValues(result.reason).Observe(s.now.Sub(s.machine.DeletionTimestamp.Time).Seconds())
	}
	if s.maintenance == nil {
		return
	}
	if start := s.maintenance.StageStart(v1alpha1.StageDrain); start != nil {
		if deleted := s.machine.DeletionTimestamp; deleted != nil && deleted.After(*start) { // the Node was drained in place
			start = &deleted.Time
		}
		drainDuration.WithLabelValues(result.reason).Observe(s.now.Sub(*start).Round(time.Millisecond).Seconds())
	}
}
