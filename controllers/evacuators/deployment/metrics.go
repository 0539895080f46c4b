package deployment

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	surges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capnm_surges_total",
		Help: "Events of surges on Deployments, by event: SurgedForMaintenance, SurgeCompleted, SurgeCanceled, SurgeSuperseded, RestartedForMaintenance.",
	}, []string{"event"})

	refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capnm_surges_refused_total",
		Help: "Pods that were evicted although their NodeMaintenance requests a surge, by reason.",
	}, []string{"reason"})
)

func init() { metrics.Registry.MustRegister(surges, refusals) }
