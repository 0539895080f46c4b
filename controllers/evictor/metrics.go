package evictor

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Results of evictions: the values of the label result.
const (
	resultEvicted = "evicted"
	resultGone    = "gone"
	resultRefused = "refused"
	resultSignal  = "signal"
	resultError   = "error"
)

var (
	evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capnm_evictions_total",
		Help: "Eviction requests, by result: evicted, gone (the Pod no longer existed), refused (by a PodDisruptionBudget, an admission policy or a terminating " +
			"namespace), signal (refused as expected, for an admission webhook that receives it), error.",
	}, []string{"result"})

	reactionSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "capnm_eviction_reaction_seconds",
		Help:    "Time from the event of a PodDisruptionBudget that allows a disruption which Pods wait for, as received, to the eviction request, as sent.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
	})

	decisions = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capnm_evictor_decisions_total",
		Help: "Decisions whether to evict the Pod of an Evacuation. An event that may permit an eviction causes one for each Evacuation of the workload cluster.",
	})

	podsBlocked = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "capnm_pods_blocked",
		Help: "Pods that wait for their eviction, by reason: of the PodDisruptionBudget, of the order of the StatefulSet, or of the last refusal.",
	}, []string{"cluster_namespace", "cluster", "reason"})
)

func init() {
	metrics.Registry.MustRegister(evictions, reactionSeconds, decisions, podsBlocked)
}

// observeBlocked sets the metric of blocked Pods of a workload cluster. The series of a reason that persists is never deleted temporarily,
// which would restart the pending period of an alert.
func (s *state) observeBlocked(cluster types.NamespacedName, blocked map[string]int) {
	for reason := range s.reportedReasons {
		if blocked[reason] == 0 {
			podsBlocked.DeleteLabelValues(cluster.Namespace, cluster.Name, reason)
			delete(s.reportedReasons, reason)
		}
	}
	for reason, count := range blocked {
		podsBlocked.WithLabelValues(cluster.Namespace, cluster.Name, reason).Set(float64(count))
		s.reportedReasons[reason] = true
	}
}
