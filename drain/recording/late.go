package recording

import (
	"slices"
	"strconv"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// lateAfter is how long after its start a drain may be observed first: the clocks differ, and the plugin connects to a workload cluster
// when its first drain begins.
const lateAfter = 10 * time.Second

// late says what a recording lacks of a drain that it observes after its beginning.
type late struct {
	// isLate means that Pods may have been evacuated before, so that it is not known what happened to their applications.
	isLate bool
	// pods is how many Pods had been evacuated before, as far as that is known.
	pods int32
}

// lateOf returns what is missing of a drain whose NodeMaintenance is observed first.
func lateOf(m *Maintenance, now time.Time) late {
	isOld := m.Stage == string(v1alpha1.StageDrain) && m.Since != nil && now.Sub(*m.Since) > lateAfter
	pods := min(max(m.Evacuated, 0), maxEvicted)
	return late{isLate: pods > 0 || isOld, pods: pods}
}

// beganUnobserved reports whether a Machine may have been first observed during or after its drain, of which no NodeMaintenance was
// observed.
func (d *Drain) beganUnobserved() bool {
	return d.Start.IsZero() && len(d.Phases) > 0 && (d.before == notRecorded || slices.Contains(
		[]string{v1alpha1.ReasonMachineDraining, v1alpha1.ReasonWaitingForVolumeDetach, v1alpha1.ReasonMachineDrained}, d.Phases[0].Reason))
}

// sentence says what is missing of the drain. It is empty if nothing is.
func (l late) sentence() string {
	switch {
	case l.pods == 1:
		return "1 Pod had been evacuated before the recording observed the drain, and is missing."
	case l.pods > 1:
		return text.Count(l.pods, "Pod") + " had been evacuated before the recording observed the drain, and are missing."
	case l.isLate:
		return "Pods that were evacuated before the recording observed the drain are missing."
	default:
		return ""
	}
}

// IsLate reports whether Pods may have been evacuated before the recording observed their drains, so that it is not known what happened to
// their applications before.
func (h *History) IsLate() bool {
	return slices.ContainsFunc(h.Drains, func(d Drain) bool { return d.late.isLate })
}

// before says in a sentence that it is not known what happened to applications before the recording. It is empty if that is known.
func (h *History) before() []string {
	drains, pods := 0, int32(0)
	for i := range h.Drains {
		if l := h.Drains[i].late; l.isLate {
			drains, pods = drains+1, min(pods+l.pods, maxEvicted)
		}
	}
	if drains == 0 {
		return nil
	}
	sentence := text.Count(drains, "drain") + " may have evacuated Pods before the recording observed them"
	if drains == 1 {
		sentence = "1 drain may have evacuated Pods before the recording observed it"
	}
	if pods > 0 {
		sentence += ", at least " + strconv.Itoa(int(pods))
	}
	return []string{sentence + ". What happened to their applications before is not known."}
}
