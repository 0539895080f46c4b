package shutdown

import (
	"fmt"
	"time"
)

// Observed is what the agent knows while the node shuts down.
type Observed struct {
	Now time.Time
	// Since is when logind announced the shutdown, Budget how long the agent may delay it.
	Since  time.Time
	Budget time.Duration
	// KubeletTerminatesPods is true if the kubelet's own graceful shutdown is enabled.
	KubeletTerminatesPods bool

	// LastAnswer is when the API server last answered. Zero if it has not answered during this shutdown.
	LastAnswer time.Time
	// Created is true if the NodeMaintenance of the shutdown exists in stage Drain, Acting if a management cluster acts on it. Drained
	// is true once the Node has been drained in this shutdown. It stays true, because the kubelet must not be started again after
	// the agent has begun to terminate Pods.
	Created, Acting, Drained bool

	// PodsTerminated is true when the agent has terminated the Pods that the container runtime listed.
	PodsTerminated bool
}

// Action is what the agent does next during a shutdown.
type Action string

const (
	// Request creates the NodeMaintenance.
	Request Action = "Request"
	// Await waits until the Node is drained.
	Await Action = "Await"
	// TerminatePods terminates the Pods that the container runtime lists, without the kubelet.
	TerminatePods Action = "TerminatePods"
	// Release releases the lock.
	Release Action = "Release"
)

// Decide returns the action to take now, and the reason for it.
func Decide(c Config, o Observed) (Action, string) {
	elapsed := o.Now.Sub(o.Since)
	silent := elapsed
	if o.LastAnswer.After(o.Since) {
		silent = o.Now.Sub(o.LastAnswer)
	}
	// Limit the configured waiting times, so that enough of a short budget remains for the Pods.
	apiPatience := min(c.APIServerPatience.Duration, o.Budget/4)
	managementPatience := min(c.ManagementPatience.Duration, o.Budget/2)
	switch {
	case elapsed >= o.Budget:
		return Release, "the deadline is exceeded"
	case o.PodsTerminated:
		return Release, "the Pods have terminated"
	case o.KubeletTerminatesPods:
		return leaveToKubelet(o.Created || silent >= apiPatience || elapsed >= managementPatience), "the kubelet terminates the Pods"
	case o.Drained:
		// Some Pods still run after a drain: Pods of DaemonSets that tolerate every taint, static Pods in kube-system, and Pods that a
		// drain rule skips.
		return TerminatePods, "the Node is drained"
	case silent >= apiPatience:
		return TerminatePods, fmt.Sprintf("the API server has not answered for %s", apiPatience)
	case (!o.Created || !o.Acting) && elapsed >= managementPatience:
		return TerminatePods, fmt.Sprintf("no management cluster has acted on the NodeMaintenance within %s", managementPatience)
	case !o.Created:
		return Request, "the NodeMaintenance does not exist"
	case elapsed >= o.Budget/2:
		// Pods that still wait for a PodDisruptionBudget would not terminate gracefully before the power goes off. Pods that are already
		// terminating continue.
		return TerminatePods, "half of the time is used up"
	default:
		return Await, "waiting for the Node to be drained"
	}
}

// leaveToKubelet releases the lock as soon as the NodeMaintenance exists, or the API server has not answered, or has refused it, for long
// enough. The kubelet holds its own lock.
func leaveToKubelet(requested bool) Action {
	if requested {
		return Release
	}
	return Request
}

// Pod is a Pod that runs on the node.
type Pod struct {
	UID, Namespace, Name string
	GracePeriod          time.Duration
	Known
}

// Known is what the agent learns from the kubelet about a Pod, because the container runtime does not know it.
type Known struct {
	Priority int32 `json:"priority,omitempty"`
	// Sidecars are the names of the init containers with the restart policy Always, in the order in which they start.
	Sidecars []string `json:"sidecars,omitempty"`
}

// Remember adds to what the kubelet reports what was known before about running Pods that it does not report: a kubelet that has restarted
// reports static Pods only, until it has listed its Pods from the API server.
func Remember(reported, before map[string]Known, running []Pod) {
	for _, pod := range running {
		if _, found := reported[pod.UID]; found {
			continue
		}
		if known, found := before[pod.UID]; found {
			reported[pod.UID] = known
		}
	}
}

// Termination is a Pod and the grace period with which the agent terminates it.
type Termination struct {
	Pod
	GracePeriod time.Duration
}

// Terminations assigns each Pod to a phase, and limits its grace period to that of the phase. It returns one list for each phase.
func Terminations(phases []Phase, pods []Pod) [][]Termination {
	terminations := make([][]Termination, len(phases))
	for _, pod := range pods {
		i := PhaseOf(phases, pod.Priority)
		terminations[i] = append(terminations[i], Termination{Pod: pod, GracePeriod: min(pod.GracePeriod, phases[i].Period)})
	}
	return terminations
}
