package evacuation

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Results of evictions: the values of the label result.
const (
	resultEvicted = "evicted"
	resultGone    = "gone"
	resultRefused = "refused"
	resultError   = "error"
)

var (
	evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capnm_evictions_total",
		Help: "Eviction calls, by result: evicted, gone (the Pod wasn't there any more), refused (by a budget, an admission policy, a terminating namespace), error.",
	}, []string{"result"})

	podsBlocked = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "capnm_pods_blocked",
		Help: "Pods that wait to be evicted, by reason: that of their budget, of the order of their StatefulSet, or of the last refusal.",
	}, []string{"cluster_namespace", "cluster", "reason"})

	evacuations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capnm_evacuations_total",
		Help: "Turns given to evacuators, by class: one of the built-in classes, other, or eviction for Pods that were evicted.",
	}, []string{"evacuator_class"})
)

func init() {
	metrics.Registry.MustRegister(evictions, podsBlocked, evacuations)
}

// observeBlocked sets the metric of blocked Pods of a workload cluster. The series of a reason that persists is never deleted temporarily,
// which would restart the pending period of an alert.
func (r *record) observeBlocked(cluster types.NamespacedName, blocked map[string]int) {
	for reason := range r.reportedReasons {
		if blocked[reason] == 0 {
			podsBlocked.DeleteLabelValues(cluster.Namespace, cluster.Name, reason)
			delete(r.reportedReasons, reason)
		}
	}
	for reason, count := range blocked {
		podsBlocked.WithLabelValues(cluster.Namespace, cluster.Name, reason).Set(float64(count))
		r.reportedReasons[reason] = true
	}
}

// observeTransition counts the change of the active evacuator. All classes of third parties count as "other", since tenants can write any
// class.
func observeTransition(before, after *v1alpha1.Evacuation) {
	from, to := before.Status.ActiveEvacuatorClass, after.Status.ActiveEvacuatorClass
	switch {
	case to == nil:
	case from == nil || *from != *to:
		switch *to {
		case v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassStatefulSet, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet:
			evacuations.WithLabelValues(*to).Inc()
		default:
			evacuations.WithLabelValues("other").Inc()
		}
	}
}
