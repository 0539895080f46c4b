package workload

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var connectedClusters = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "capnm_connected_clusters",
	Help: "Workload clusters that are connected and serve the CRDs that the manager installs.",
})

var watchingClusters = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "capnm_watching_clusters",
	Help: "Workload clusters in which the manager watches Nodes or surges, which it does not in an idle one, by what is watched: nodes, surges.",
}, []string{"watched"})

func init() { metrics.Registry.MustRegister(connectedClusters, watchingClusters) }
