package tracing

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

var (
	waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "capnm_pod_wait_seconds",
		Help: "Time that Pods of drains waited, by reason: of the PodDisruptionBudget, of the refused eviction, of the order of the StatefulSet, Surge, " +
			"Evacuator, Eviction, ReplacementReturned, Completion, DrainRules, Termination.",
		Buckets: []float64{0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200},
	}, []string{"reason"})

	parts = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "capnm_drain_part_duration_seconds",
		Help:    "Duration of the parts of the deletion of a Machine, by part: request, turn, drain, volumes, daemonSets, release.",
		Buckets: []float64{0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200},
	}, []string{"part"})
)

func init() { metrics.Registry.MustRegister(waits, parts) }

func observeWaits(e *history.Evacuation) {
	for _, wait := range e.Waits {
		waits.WithLabelValues(wait.Reason).Observe(wait.End.Sub(wait.Start).Seconds())
	}
}

func observeParts(all []history.Part) {
	for _, part := range all {
		parts.WithLabelValues(part.Key).Observe(part.End.Sub(part.Start).Seconds())
	}
}
