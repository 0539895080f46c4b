package machine

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// checkContact reports whether contact with the workload cluster is lost, with the outcome that waits for it: the workload cluster does not
// answer the health probes of the ClusterCache. The ClusterCache closes such a connection within about a minute. Until then, watches
// deliver no events and their caches are stale.
func (r *Reconciler) checkContact(ctx context.Context, s *scope) (waiting outcome, lost bool) {
	state := r.Clusters.HealthState(ctx, s.clusterKey())
	if state.ConsecutiveFailures == 0 {
		r.Clusters.ContactRestored(s.clusterKey())
		return outcome{}, false
	}
	if !workload.IsContactLost(state, s.now) { // the ClusterCache triggers an event when it is
		return outcome{}, false
	}
	r.Clusters.ContactLost(s.clusterKey())
	waiting = waitingForCluster(state)
	waiting.at = s.now.Add(contactRetry)
	return waiting, true
}

func waitingForCluster(state clustercache.HealthCheckingState) outcome {
	waiting := outcome{action: wait, blind: true, reason: v1alpha1.ReasonWaitingForWorkloadCluster, message: machinedrain.WaitingForConnection}
	if last := state.LastProbeSuccessTime; !last.IsZero() {
		waiting.message += fmt.Sprintf(" (last reached at %s)", last.UTC().Format(time.RFC3339))
	}
	return waiting
}

// unreachable turns the error of a request to the workload cluster into an outcome. Without a connection, the step waits for the next one.
// A request without an answer is retried after contactRetry instead of with the backoff of errors, unless it has failed, see
// machinedrain.Unanswered. An answer that is an error is returned.
func (r *Reconciler) unreachable(ctx context.Context, s *scope, err error) (outcome, error) {
	if answers.KindNotServed(err) {
		r.Clusters.RequestCheck(s.clusterKey())
	}
	connected := !workload.IsNotConnected(err)
	if connected && !answers.IsUnanswered(err) {
		return outcome{}, err
	}
	state := r.Clusters.HealthState(ctx, s.clusterKey())
	key, waiting := client.ObjectKeyFromObject(s.machine), waitingForCluster(state)
	request := machinedrain.Unanswered{
		Began: s.now, FailedBefore: r.memoryOf(s.machine).failure.Err != nil, ProbeAnswered: state.LastProbeSuccessTime, ProbesFail: state.ConsecutiveFailures > 0,
	}
	if conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance) == waiting.reason {
		request.Reported = r.conditions.LastWrite(key)
	}
	if connected && request.HasFailed() {
		return outcome{}, err
	}
	if !connected {
		r.ConnectNow(s.clusterKey())
		switch problem := r.Filter.NotSelectedMessage(s.cluster); {
		case problem != "":
			waiting.message += problem
		case !isProvisioned(s.cluster):
			waiting.message += ": the infrastructure of the Cluster is not provisioned"
		default:
			waiting.message += r.kubeconfigProblem(ctx, s)
		}
	} else {
		ctrl.LoggerFrom(ctx).V(2).Info("The workload cluster does not answer", "err", err)
		if state.ConsecutiveFailures > 0 {
			r.Clusters.ContactLost(s.clusterKey())
		}
		waiting.at = s.now.Add(contactRetry)
	}
	return waiting, nil
}

// kubeconfigProblem returns why the kubeconfig Secret of the Cluster permits no connection, as the end of a message without data of the
// Secret, or "". The result is at most pollInterval old.
func (r *Reconciler) kubeconfigProblem(ctx context.Context, s *scope) string {
	key := s.cluster.UID + "/kubeconfig"
	if seen, known := r.references.Get(s.clusterKey(), key); known {
		return seen.problem
	}
	var facts referenced
	name := klog.KRef(s.cluster.Namespace, secret.Name(s.cluster.Name, secret.Kubeconfig))
	if content, err := kubeconfig.FromSecret(ctx, r.APIReader, s.clusterKey()); err != nil {
		facts.problem = fmt.Sprintf(": cannot read the kubeconfig in Secret %s: %v", name, err)
	} else if _, err := clientcmd.RESTConfigFromKubeConfig(content); err != nil {
		facts.problem = fmt.Sprintf(": the kubeconfig in Secret %s is invalid", name)
	}
	r.references.Set(s.clusterKey(), key, facts, pollInterval)
	return facts.problem
}
