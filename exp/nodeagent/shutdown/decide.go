package shutdown

import (
	"fmt"
	"time"
)

// Observed is what is known while the node shuts down.
type Observed struct {
	Now time.Time
	// Since is when the shutdown was announced, Budget for how long it may be delayed.
	Since  time.Time
	Budget time.Duration
	// KubeletEndsPods: the kubelet of the node has a graceful shutdown of its own.
	KubeletEndsPods bool

	// LastAnswer is when the API server last answered. Zero: not in this shutdown.
	LastAnswer time.Time
	// Created: our NodeMaintenance is there, in stage Drain. Acting: a management cluster acts on it. Drained: the Node has been
	// drained at some time in this shutdown. It stays true, since the kubelet must not be started again once the agent ends Pods.
	Created, Acting, Drained bool

	// Ended: the agent has ended the Pods that the container runtime listed.
	Ended bool
}

// Course is what the agent does.
type Course string

const (
	// Request a NodeMaintenance.
	Request Course = "Request"
	// Await that the Node is drained.
	Await Course = "Await"
	// EndPods that the container runtime lists, without the kubelet.
	EndPods Course = "EndPods"
	// Release the lock.
	Release Course = "Release"
)

// Decide says what to do now, and why.
func Decide(c Config, o Observed) (Course, string) {
	gone := o.Now.Sub(o.Since)
	silent := gone
	if o.LastAnswer.After(o.Since) {
		silent = o.Now.Sub(o.LastAnswer)
	}
	// However long the configured patience is, enough of the time must be left for the Pods.
	apiPatience := min(c.APIServerPatience.Duration, o.Budget/4)
	managementPatience := min(c.ManagementPatience.Duration, o.Budget/2)
	switch {
	case gone >= o.Budget:
		return Release, "the time is up"
	case o.Ended:
		return Release, "all Pods have ended"
	case o.KubeletEndsPods:
		return leaveToKubelet(o.Created || silent >= apiPatience), "the kubelet ends the Pods"
	case o.Drained:
		// A drain leaves Pods behind: those of DaemonSets that tolerate every taint, static Pods of a control plane, and those that
		// its rules skip.
		return EndPods, "the Node is drained"
	case silent >= apiPatience:
		return EndPods, fmt.Sprintf("the API server hasn't answered for %s", apiPatience)
	case (!o.Created || !o.Acting) && gone >= managementPatience:
		return EndPods, fmt.Sprintf("no management cluster acts within %s", managementPatience)
	case !o.Created:
		return Request, "there is no NodeMaintenance yet"
	case gone >= o.Budget/2:
		// What waits for its budget would be lost with the power. Those that terminate already go on as they do.
		return EndPods, "half of the time is over"
	default:
		return Await, "the Node drains"
	}
}

// leaveToKubelet has nothing held up but for the NodeMaintenance to be there.
func leaveToKubelet(asked bool) Course {
	if asked {
		return Release
	}
	return Request
}

// Pod is one that runs on the node.
type Pod struct {
	UID, Namespace, Name string
	Priority             int32
	GracePeriod          time.Duration
}

// Ending is a Pod and the time that it gets.
type Ending struct {
	Pod
	GracePeriod time.Duration
}

// Endings divides Pods into phases: who ends in which one, and in what time. There is one list for each phase.
func Endings(phases []Phase, pods []Pod) [][]Ending {
	endings := make([][]Ending, len(phases))
	for _, pod := range pods {
		i := PhaseOf(phases, pod.Priority)
		endings[i] = append(endings[i], Ending{Pod: pod, GracePeriod: min(pod.GracePeriod, phases[i].Period)})
	}
	return endings
}
