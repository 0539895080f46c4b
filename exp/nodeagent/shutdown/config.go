package shutdown

import (
	"cmp"
	"slices"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config configures the shutdown of a node. The fields have the names of the kubelet's where they mean the same.
type Config struct {
	// ShutdownGracePeriod is the maximum time by which the agent delays a shutdown. 0 means that the agent does nothing in a shutdown.
	ShutdownGracePeriod metav1.Duration `json:"shutdownGracePeriod"`
	// ShutdownGracePeriodCriticalPods is the part of ShutdownGracePeriod that is reserved for critical Pods.
	ShutdownGracePeriodCriticalPods metav1.Duration `json:"shutdownGracePeriodCriticalPods"`
	// ShutdownGracePeriodByPodPriority replaces both, as in KEP-2712.
	ShutdownGracePeriodByPodPriority []PriorityPeriod `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// APIServerPatience is how long the API server may fail to answer before the agent terminates Pods itself. The agent uses at most
	// a quarter of the time that it may delay the shutdown.
	APIServerPatience metav1.Duration `json:"apiServerPatience"`
	// ManagementPatience is how long a management cluster may take to act on the NodeMaintenance before the agent terminates Pods
	// itself. The agent uses at most half of the time that it may delay the shutdown.
	ManagementPatience metav1.Duration `json:"managementPatience"`
	// CompleteOnBoot completes the NodeMaintenance of a shutdown when the node has booted. By default a user completes it.
	CompleteOnBoot bool `json:"completeOnBoot"`
	// LogindDropInDir is the directory for a logind drop-in that raises InhibitDelayMaxSec to ShutdownGracePeriod. If it is empty, the
	// agent writes no drop-in, and removes the one that it has written into logind.RuntimeDropIns.
	LogindDropInDir string `json:"logindDropInDir,omitempty"`
}

// PriorityPeriod is the grace period of the Pods whose priority is at least Priority and less than the next higher one in the list.
type PriorityPeriod struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// Defaults returns the default configuration.
func Defaults() Config {
	return Config{
		ShutdownGracePeriod:             metav1.Duration{Duration: 30 * time.Second},
		ShutdownGracePeriodCriticalPods: metav1.Duration{Duration: 10 * time.Second},
		APIServerPatience:               metav1.Duration{Duration: 5 * time.Second},
		ManagementPatience:              metav1.Duration{Duration: 15 * time.Second},
	}
}

const (
	// maxPriorities is the maximum number of priorities: a drain plan has at most 64 entries, and each priority takes three.
	maxPriorities = 64 / 3
	// maxSeconds is a year. A time.Duration of more than 292 years would be negative.
	maxSeconds = 365 * 24 * 60 * 60
)

// Validate returns an error that names the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.ShutdownGracePeriod.Duration < 0:
		return errors.New("shutdownGracePeriod must not be negative")
	case c.ShutdownGracePeriodCriticalPods.Duration < 0, c.ShutdownGracePeriod.Duration > 0 && c.criticalPods() < c.ShutdownGracePeriodCriticalPods.Duration:
		return errors.New("shutdownGracePeriodCriticalPods must be from 0 to shutdownGracePeriod")
	case c.APIServerPatience.Duration <= 0 || c.ManagementPatience.Duration <= 0:
		return errors.New("apiServerPatience and managementPatience must be positive")
	case len(c.ShutdownGracePeriodByPodPriority) > maxPriorities:
		return errors.Errorf("shutdownGracePeriodByPodPriority must have at most %d priorities", maxPriorities)
	}
	seen := map[int32]bool{}
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		if p.ShutdownGracePeriodSeconds < 0 || p.ShutdownGracePeriodSeconds > maxSeconds {
			return errors.Errorf("shutdownGracePeriodByPodPriority: shutdownGracePeriodSeconds of priority %d must be from 0 to %d", p.Priority, maxSeconds)
		}
		if seen[p.Priority] {
			return errors.Errorf("shutdownGracePeriodByPodPriority: duplicate priority %d", p.Priority)
		}
		seen[p.Priority] = true
	}
	return nil
}

// Enabled reports whether the agent delays shutdowns. As in the kubelet's configuration, periods of 0 disable this.
func (c Config) Enabled() bool { return Total(c.Phases()) > 0 }

// criticalPods returns the part of ShutdownGracePeriod for critical Pods. Its default does not exceed a ShutdownGracePeriod of 0.
func (c Config) criticalPods() time.Duration {
	return min(c.ShutdownGracePeriodCriticalPods.Duration, c.ShutdownGracePeriod.Duration)
}

// systemCritical is the lowest priority of critical Pods: that of system-cluster-critical.
const systemCritical = int32(2_000_000_000)

// Phase is the grace period of the Pods whose priority is at least From and less than that of the next phase.
type Phase struct {
	From   int32
	Period time.Duration
}

// Phases returns the phases of the shutdown in ascending order of priority, in which Pods are terminated.
func (c Config) Phases() []Phase {
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		critical := c.criticalPods()
		return []Phase{{From: 0, Period: c.ShutdownGracePeriod.Duration - critical}, {From: systemCritical, Period: critical}}
	}
	var phases []Phase
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		phases = append(phases, Phase{From: p.Priority, Period: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	slices.SortFunc(phases, func(a, b Phase) int { return cmp.Compare(a.From, b.From) })
	return phases
}

// Total returns the sum of the periods of all phases.
func Total(phases []Phase) time.Duration {
	var total time.Duration
	for _, phase := range phases {
		total += phase.Period
	}
	return total
}

// Occupied returns the phases, with a period of 0 for those without Pods: they take no share when the time is short.
func Occupied(phases []Phase, pods []Pod) []Phase {
	occupied := slices.Clone(phases)
	for i := range occupied {
		if !slices.ContainsFunc(pods, func(pod Pod) bool { return PhaseOf(phases, pod.Priority) == i }) {
			occupied[i].Period = 0
		}
	}
	return occupied
}

// Within returns the phases with periods that are shortened in proportion, so that their sum is at most the remaining time.
func Within(phases []Phase, remaining time.Duration) []Phase {
	total := Total(phases)
	shrunk := slices.Clone(phases)
	if remaining >= total || total == 0 {
		return shrunk
	}
	remaining = max(remaining, 0)
	for i := range shrunk {
		shrunk[i].Period = time.Duration(float64(shrunk[i].Period) * (float64(remaining) / float64(total)))
	}
	return shrunk
}

// PhaseOf returns the index of the phase of a priority. A priority below the first phase belongs to the first phase.
func PhaseOf(phases []Phase, priority int32) int {
	for i := len(phases) - 1; i > 0; i-- {
		if priority >= phases[i].From {
			return i
		}
	}
	return 0
}

// defaultDelayMax is logind's default of InhibitDelayMaxSec.
const defaultDelayMax = 5 * time.Second

// Budget returns how long the agent delays a shutdown: the sum of all phases, but always less than logind allows. 0 means that this is not
// known, because an agent that has just restarted could not read it from logind.
func Budget(c Config, inhibitDelayMax time.Duration) time.Duration {
	inhibitDelayMax = cmp.Or(inhibitDelayMax, defaultDelayMax)
	return min(Total(c.Phases()), inhibitDelayMax-margin(inhibitDelayMax))
}

// margin returns the time between the agent's deadline and logind's: closing the lock can take a moment on a busy node.
func margin(inhibitDelayMax time.Duration) time.Duration {
	return min(time.Second, inhibitDelayMax/10)
}
