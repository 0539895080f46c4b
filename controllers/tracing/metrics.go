package tracing

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
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

	podsWithoutPlace = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "capnm_pods_without_place",
		Help: "Pods that drains have evicted and that are Pending or not replaced three minutes after the end of their drain or later, for 70 minutes at most.",
	}, []string{"cluster_namespace", "cluster"})
)

func init() { metrics.Registry.MustRegister(waits, parts, podsWithoutPlace) }

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

// places are the Pods without a place by what observes them, a MachineDrainPolicy or NodeMaintenance, and by Cluster.
var places = struct {
	sync.Mutex
	bySource map[string]map[types.NamespacedName]int32
}{bySource: map[string]map[types.NamespacedName]int32{}}

// ObserveWithoutPlace sets the Pods without a place that a source observes, by Cluster. Clusters that are missing have none.
func ObserveWithoutPlace(source string, pods map[types.NamespacedName]int32) {
	places.Lock()
	defer places.Unlock()
	before := places.bySource[source]
	if delete(places.bySource, source); len(pods) > 0 {
		places.bySource[source] = pods
	}
	for _, clusters := range []map[types.NamespacedName]int32{before, pods} {
		for cluster := range clusters {
			updateWithoutPlace(cluster)
		}
	}
}

// forgetPlaces drops a Cluster that does not exist any more.
func forgetPlaces(cluster types.NamespacedName) {
	places.Lock()
	defer places.Unlock()
	for source, clusters := range places.bySource {
		if delete(clusters, cluster); len(clusters) == 0 {
			delete(places.bySource, source)
		}
	}
	updateWithoutPlace(cluster)
}

func updateWithoutPlace(cluster types.NamespacedName) {
	sum, known := int32(0), false
	for _, clusters := range places.bySource {
		if pods, of := clusters[cluster]; of {
			sum, known = sum+pods, true
		}
	}
	if !known {
		podsWithoutPlace.DeleteLabelValues(cluster.Namespace, cluster.Name)
		return
	}
	podsWithoutPlace.WithLabelValues(cluster.Namespace, cluster.Name).Set(float64(sum))
}
