package workload

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

var connectedClusters = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "capnm_connected_clusters",
	Help: "Workload clusters that are connected and serve the CRDs that the manager installs.",
})

var watchingClusters = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "capnm_watching_clusters",
	Help: "Workload clusters in which the manager watches Nodes or surges, which it does not in an idle one, by what is watched: nodes, surges.",
}, []string{"watched"})

var evacuations = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "capnm_evacuations_total",
	Help: "Activations of evacuators, by class: one of the built-in classes, other, or eviction for Pods that were evicted.",
}, []string{"evacuator_class"})

func init() { metrics.Registry.MustRegister(connectedClusters, watchingClusters, evacuations) }

// CountEviction counts a Pod that was evicted.
func CountEviction() { evacuations.WithLabelValues("eviction").Inc() }

// CountActivation counts the change of the active evacuator. All classes of third parties count as "other", since tenants can write any
// class.
func CountActivation(before, after *v1alpha1.Evacuation) {
	switch to := after.ActiveEvacuator(); {
	case to == "" || to == before.ActiveEvacuator():
	case evacuators.IsBuiltIn(to):
		evacuations.WithLabelValues(to).Inc()
	default:
		evacuations.WithLabelValues("other").Inc()
	}
}
