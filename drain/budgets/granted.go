package budgets

import "time"

// An eviction that is cut off after the API server has used a disruption of the budget, and before it has deleted the Pod, leaves the Pod
// in the disruptedPods of the budget. The disruption controller counts the Pod as disrupted for two minutes, in which a budget of one
// allows no other disruption.
const (
	// grantedAfter is the age from which on an entry belongs to an eviction that was cut off: the API server deletes the Pod right after it
	// writes the entry.
	grantedAfter = 3 * time.Second
	// grantedUntil is the age up to which an entry is used. The disruption controller drops an entry after two minutes, and then allows the
	// disruption to another Pod. The difference allows for clocks that differ.
	grantedUntil = 90 * time.Second
)

// Granted returns those of the waiting Pods whose disruption the API server has already granted to an eviction that was cut off: they may
// be deleted, which uses no second disruption. others are the rest. Where an entry is too recent, retryAt is when to decide again.
func (i *Index) Granted(waiting []Waiting, now time.Time) (granted []Admitted, others []Waiting, retryAt time.Time) {
	for _, w := range waiting {
		budget, from := i.grants(w.Pod, now)
		switch {
		case budget == nil:
			others = append(others, w)
		case now.Before(from):
			others = append(others, w)
			if retryAt.IsZero() || from.Before(retryAt) {
				retryAt = from
			}
		default:
			granted = append(granted, Admitted{Candidate: w.Candidate, Budget: budget, Granted: true})
		}
	}
	return granted, others, retryAt
}

// grants returns the budget that has granted the disruption of a Pod, and from when on the Pod may be deleted. It returns nil if none has.
func (i *Index) grants(pod Pod, now time.Time) (_ *Budget, from time.Time) {
	selecting := i.Covering(pod)
	if len(selecting) != 1 || selecting[0].err != nil || i.stale[selecting[0]] || !selecting[0].Grants(pod, now) {
		return nil, time.Time{}
	}
	return selecting[0], selecting[0].pdb.Status.DisruptedPods[pod.Name].Add(grantedAfter)
}

// Grants reports whether the budget has granted the disruption of a Pod, and does not count it as healthy. An entry has the name of a Pod:
// it belongs to an earlier Pod of that name if the Pod was not created before it. The other Pods must be as healthy as the budget requires.
func (b *Budget) Grants(pod Pod, now time.Time) bool {
	entry, found := b.pdb.Status.DisruptedPods[pod.Name]
	status := b.pdb.Status
	return found && b.observed() && status.CurrentHealthy >= status.DesiredHealthy &&
		pod.Created.Before(entry.Time) && now.Before(entry.Add(grantedUntil))
}
