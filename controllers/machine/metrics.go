package machine

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/drain/machines"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

var (
	drainsInProgress = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capnm_drains_in_progress",
		Help: "Deleted Machines whose Nodes are being drained.",
	})
	drainDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "capnm_drain_duration_seconds",
		Help:    "Time from the start of a drain to the release of the Machine's hook, by reason of the release (Drained, TimedOut).",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200},
	}, []string{"reason"})
	volumesWaitedFor = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capnm_volumes_waited_for",
		Help: "Volumes that have yet to be detached from drained Nodes before their Machines go.",
	})
	hookWait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "capnm_hook_wait_seconds",
		Help:    "Time from the deletion of a Machine to the release of its hook, by reason of the release (Drained, Skipped, TimedOut).",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200},
	}, []string{"reason"})
)

func init() {
	metrics.Registry.MustRegister(drainsInProgress, drainDuration, volumesWaitedFor, hookWait)
}

// inProgress counts each drain once, with the volumes that it waits for.
var inProgress = struct {
	sync.Mutex
	machines map[types.NamespacedName]int
}{machines: map[types.NamespacedName]int{}}

func observeDrain(s *scope) {
	inProgress.Lock()
	defer inProgress.Unlock()
	if machine := client.ObjectKeyFromObject(s.machine); inProgress.machines[machine] == 0 {
		inProgress.machines[machine] = 0
	}
	drainsInProgress.Set(float64(len(inProgress.machines)))
}

func observeVolumes(s *scope, decision volumes.Decision) {
	inProgress.Lock()
	defer inProgress.Unlock()
	inProgress.machines[client.ObjectKeyFromObject(s.machine)] = decision.Count()
	sumVolumes()
}

func sumVolumes() {
	all := 0
	for _, n := range inProgress.machines {
		all += n
	}
	volumesWaitedFor.Set(float64(all))
}

func forgetDrain(machine types.NamespacedName) {
	inProgress.Lock()
	defer inProgress.Unlock()
	delete(inProgress.machines, machine)
	drainsInProgress.Set(float64(len(inProgress.machines)))
	sumVolumes()
}

func observeRelease(s *scope, result outcome) {
	forgetDrain(client.ObjectKeyFromObject(s.machine))
	if s.machine.DeletionTimestamp != nil {
		hookWait.WithLabelValues(result.reason).Observe(s.now.Sub(s.machine.DeletionTimestamp.Time).Seconds())
	}
	if s.maintenance == nil {
		return
	}
	if start := machines.DrainStart(s.maintenance); start != nil {
		drainDuration.WithLabelValues(result.reason).Observe(s.now.Sub(*start).Round(time.Millisecond).Seconds())
	}
}
