package workload

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var connectedClusters = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "capnm_connected_clusters",
	Help: "Workload clusters that are connected and serve the CRDs that the manager installs.",
})

func init() { metrics.Registry.MustRegister(connectedClusters) }
