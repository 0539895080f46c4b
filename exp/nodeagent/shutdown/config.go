package shutdown

import (
	"cmp"
	"slices"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config says how a node is shut down. Its fields are named like the kubelet's.
type Config struct {
	// ShutdownGracePeriod is the time that a shutdown is delayed by, at most.
	ShutdownGracePeriod metav1.Duration `json:"shutdownGracePeriod"`
	// ShutdownGracePeriodCriticalPods is the part of it that is for critical Pods.
	ShutdownGracePeriodCriticalPods metav1.Duration `json:"shutdownGracePeriodCriticalPods"`
	// ShutdownGracePeriodByPodPriority takes the place of both, as with KEP-2712.
	ShutdownGracePeriodByPodPriority []PriorityPeriod `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// APIServerPatience is for how long the API server may not answer before Pods are ended without it.
	APIServerPatience metav1.Duration `json:"apiServerPatience"`
	// ManagementPatience is how long it may take until a management cluster acts on the NodeMaintenance.
	ManagementPatience metav1.Duration `json:"managementPatience"`
	// CompleteOnBoot completes the NodeMaintenance of a shutdown when the node has booted. By default whoever maintains the
	// node does.
	CompleteOnBoot bool `json:"completeOnBoot"`
	// LogindDropInDir is where a drop-in for logind may be written that has it wait for ShutdownGracePeriod. Empty: nowhere.
	LogindDropInDir string `json:"logindDropInDir,omitempty"`
}

// PriorityPeriod is the time for the Pods of a priority or higher, up to the next one in the list.
type PriorityPeriod struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// Defaults of the configuration.
func Defaults() Config {
	return Config{
		ShutdownGracePeriod:             metav1.Duration{Duration: 30 * time.Second},
		ShutdownGracePeriodCriticalPods: metav1.Duration{Duration: 10 * time.Second},
		APIServerPatience:               metav1.Duration{Duration: 5 * time.Second},
		ManagementPatience:              metav1.Duration{Duration: 15 * time.Second},
	}
}

// Validate says what is wrong with it.
func (c Config) Validate() error {
	switch {
	case c.ShutdownGracePeriod.Duration <= 0 && len(c.ShutdownGracePeriodByPodPriority) == 0:
		return errors.New("shutdownGracePeriod must be positive")
	case c.ShutdownGracePeriodCriticalPods.Duration < 0 || c.ShutdownGracePeriodCriticalPods.Duration > c.ShutdownGracePeriod.Duration:
		return errors.New("shutdownGracePeriodCriticalPods must be from 0 to shutdownGracePeriod")
	case c.APIServerPatience.Duration <= 0 || c.ManagementPatience.Duration <= 0:
		return errors.New("apiServerPatience and managementPatience must be positive")
	}
	seen := map[int32]bool{}
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		if p.ShutdownGracePeriodSeconds < 0 {
			return errors.Errorf("shutdownGracePeriodByPodPriority: the seconds of priority %d are negative", p.Priority)
		}
		if seen[p.Priority] {
			return errors.Errorf("shutdownGracePeriodByPodPriority: priority %d is there twice", p.Priority)
		}
		seen[p.Priority] = true
	}
	return nil
}

// systemCritical is the priority from which Pods are critical: that of system-cluster-critical.
const systemCritical = int32(2_000_000_000)

// Phase is the time for the Pods from one priority up to that of the next phase.
type Phase struct {
	From   int32
	Period time.Duration
}

// Phases returns how the time is divided, in the order in which Pods go: by ascending priority.
func (c Config) Phases() []Phase {
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		critical := c.ShutdownGracePeriodCriticalPods.Duration
		return []Phase{{From: 0, Period: c.ShutdownGracePeriod.Duration - critical}, {From: systemCritical, Period: critical}}
	}
	var phases []Phase
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		phases = append(phases, Phase{From: p.Priority, Period: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	slices.SortFunc(phases, func(a, b Phase) int { return cmp.Compare(a.From, b.From) })
	return phases
}

// Total is the time that all phases take.
func Total(phases []Phase) time.Duration {
	var total time.Duration
	for _, phase := range phases {
		total += phase.Period
	}
	return total
}

// Occupied returns the phases in which Pods remain to be ended. The others have no period, so that they take no share of a short time.
func Occupied(phases []Phase, pods []Pod) []Phase {
	occupied := slices.Clone(phases)
	for i := range occupied {
		if !slices.ContainsFunc(pods, func(pod Pod) bool { return PhaseOf(phases, pod.Priority) == i }) {
			occupied[i].Period = 0
		}
	}
	return occupied
}

// Within divides what is left of the time as the phases divide all of it.
func Within(phases []Phase, left time.Duration) []Phase {
	total := Total(phases)
	shrunk := slices.Clone(phases)
	if left >= total || total == 0 {
		return shrunk
	}
	left = max(left, 0)
	for i := range shrunk {
		shrunk[i].Period = time.Duration(float64(shrunk[i].Period) * (float64(left) / float64(total)))
	}
	return shrunk
}

// PhaseOf returns the phase of a priority. One below the first phase belongs to it.
func PhaseOf(phases []Phase, priority int32) int {
	for i := len(phases) - 1; i > 0; i-- {
		if priority >= phases[i].From {
			return i
		}
	}
	return 0
}

// Budget is for how long the agent delays a shutdown: less than logind allows, in every case.
func Budget(c Config, inhibitDelayMax time.Duration) time.Duration {
	return min(Total(c.Phases()), inhibitDelayMax-margin(inhibitDelayMax))
}

// margin is what is left between our end and logind's: for the lock to be closed, on a node that is busy ending.
func margin(inhibitDelayMax time.Duration) time.Duration {
	return min(time.Second, inhibitDelayMax/10)
}
