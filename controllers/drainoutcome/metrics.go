package drainoutcome

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var podsWithoutPlace = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "capnm_pods_without_place",
	Help: "Pods that drains have evicted and that are Pending or not replaced three minutes after the end of their drain or later, for 70 minutes at most.",
}, []string{"cluster_namespace", "cluster"})

func init() { metrics.Registry.MustRegister(podsWithoutPlace) }

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

// ForgetCluster drops a Cluster that does not exist any more.
func ForgetCluster(cluster types.NamespacedName) {
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
