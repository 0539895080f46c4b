package recording

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Effect is what happened to an application during a recording, from its first evacuated Pod on. Times in which it could not be read count
// for nothing.
type Effect struct {
	Cluster, Kind, Name string
	// Budget is the name of the PodDisruptionBudget, empty if there is none. IsShared means that it counts other Pods, too.
	Budget   string
	IsShared bool
	// Ready are the ready replicas over time, and Wanted how many there should be: a number that grows, for example in a surge, counts once
	// that many are ready.
	Ready, Wanted []Level
	// Required are the healthy Pods that the PodDisruptionBudget requires. A number that grows counts once that many are healthy.
	Required []Level
	// Hurt is when no replica was ready, or fewer Pods were healthy than the budget requires.
	Hurt []Span
	// Least is the smallest number of ready replicas while there should have been more, or else of all, and Of how many there should have
	// been.
	Least, Of int32
	// None is how long no replica was ready, Below how long fewer Pods were healthy than the budget requires, Short how long fewer replicas
	// were ready than there should be, Unread how long the application could not be read.
	None, Below, Short, Unread time.Duration
	// Missing is how many replicas were not ready when the recording ended, or was the last time that they could be read.
	Missing int32

	leastAt        time.Time
	isBudgetUnread bool // whether there is one is not known
}

// Level is a number in a time. Between two levels with a gap between them, it is not known.
type Level struct {
	From, To time.Time
	Value    int32
}

// Span is a time.
type Span struct{ From, To time.Time }

// IsAffected reports whether fewer replicas were ready than there should be, or than the budget requires.
func (e *Effect) IsAffected() bool { return e.Short > 0 || e.Below > 0 }

// share is the part of the replicas that were ready at least.
func (e *Effect) share() float64 {
	if e.Of == 0 {
		return 1
	}
	return float64(e.Least) / float64(e.Of)
}

// Title names the application.
func (e *Effect) Title() string { return e.Kind + " " + e.Name }

// Sentence says what happened: "3 of 4 ready at least, budget 3; below the budget for 12 s".
func (e *Effect) Sentence() string {
	parts := []string{fmt.Sprintf("%d of %d ready at least, %s", e.Least, e.Of, e.requirement())}
	if e.None > 0 {
		parts = append(parts, "none ready for "+Duration(e.None))
	}
	if e.Below > 0 {
		parts = append(parts, "below the budget for "+Duration(e.Below))
	}
	if e.Missing > 0 {
		parts = append(parts, fmt.Sprintf("%d not ready at the end", e.Missing))
	}
	if e.Unread > 0 {
		parts = append(parts, "not read for "+Duration(e.Unread))
	}
	return strings.Join(parts, "; ")
}

func (e *Effect) requirement() string {
	switch {
	case e.Budget == "" && !e.isBudgetUnread:
		return "no budget"
	case len(e.Required) == 0:
		return "budget not read"
	case e.IsShared:
		return "budget " + e.Budget + " with other Pods"
	}
	required := e.Required[len(e.Required)-1].Value
	for _, level := range e.Required {
		if e.Short > 0 && !e.leastAt.Before(level.From) && e.leastAt.Before(level.To) {
			required = level.Value
		}
	}
	return fmt.Sprintf("budget %d", required)
}

// grown returns how many there should be: as many as wanted, but not more than were there since that number has grown.
func grown(before, wanted, have int32) int32 { return min(wanted, max(before, have)) }

// effectOf returns the effect on an application, with its budget or nil.
func effectOf(course *ApplicationCourse, budget *BudgetCourse, end time.Time) Effect {
	e := Effect{Cluster: course.Cluster, Kind: course.Kind, Name: course.Name, Budget: course.budget(), isBudgetUnread: course.isBudgetUnread()}
	e.replicas(course, end)
	if budget != nil && len(e.Ready) > 0 {
		e.budget(budget, end)
		e.IsShared = budget.isShared(course)
	}
	return e
}

func (e *Effect) replicas(course *ApplicationCourse, end time.Time) {
	wanted, isFirst := int32(0), true
	for i, step := range course.Steps {
		until := end
		if i+1 < len(course.Steps) {
			until = course.Steps[i+1].Time
		}
		switch {
		case step.Gone:
			isFirst, e.Missing = true, 0
			continue
		case step.Unread:
			e.Unread += until.Sub(step.Time)
			continue
		case isFirst:
			wanted, isFirst = step.Replicas, false
		default:
			wanted = grown(wanted, step.Replicas, step.Ready)
		}
		e.add(Level{step.Time, until, step.Ready}, wanted)
	}
}

// add adds how many replicas were ready, and how many there should have been.
func (e *Effect) add(ready Level, wanted int32) {
	isFirst, wasAffected, took := len(e.Ready) == 0, e.Short > 0, ready.To.Sub(ready.From)
	e.Ready, e.Wanted = append(e.Ready, ready), append(e.Wanted, Level{ready.From, ready.To, wanted})
	if e.Missing = max(wanted-ready.Value, 0); e.Missing > 0 {
		e.Short += took
		if ready.Value == 0 {
			e.None += took
			e.Hurt = append(e.Hurt, Span{ready.From, ready.To})
		}
	}
	if isFirst || (e.Missing > 0) == wasAffected && ready.Value < e.Least || e.Missing > 0 && !wasAffected {
		e.Least, e.Of, e.leastAt = ready.Value, wanted, ready.From
	}
}

// budget sets what the budget requires, and how long there was less, since the first time of the application.
func (e *Effect) budget(course *BudgetCourse, end time.Time) {
	begin, required, isFirst := e.Ready[0].From, int32(0), true
	for i, step := range course.Steps {
		from, until := step.Time, end
		if i+1 < len(course.Steps) {
			until = course.Steps[i+1].Time
		}
		if from.Before(begin) {
			from = begin
		}
		switch {
		case step.Gone:
			isFirst = true
			continue
		case step.Unread:
			continue
		case isFirst:
			required, isFirst = max(step.Required, 0), false
		default:
			required = grown(required, max(step.Required, 0), step.Healthy)
		}
		if !until.After(from) {
			continue
		}
		e.Required = append(e.Required, Level{from, until, required})
		if step.Healthy < required {
			e.Below += until.Sub(from)
			e.Hurt = append(e.Hurt, Span{from, until})
		}
	}
}

// isShared reports whether a budget always counted more Pods than an application should have. For an integer minAvailable, it counts Pods
// that are terminating, too.
func (b *BudgetCourse) isShared(of *ApplicationCourse) bool {
	replicas := int32(0)
	for i := range of.Steps {
		replicas = max(replicas, of.Steps[i].Replicas)
	}
	return !slices.ContainsFunc(b.Steps, func(step BudgetStep) bool { return step.Pods <= replicas })
}

// verdict says in sentences whether the drains hurt an application.
func (h *History) verdict() []string {
	before := h.before()
	if len(h.Effects) == 0 {
		return before
	}
	below, none, isUnread := 0, 0, len(h.Gaps) > 0
	for i := range h.Effects {
		e := &h.Effects[i]
		isUnread = isUnread || e.Unread > 0 || e.isBudgetUnread
		if e.Below > 0 {
			below++
		}
		if e.None > 0 {
			none++
		}
	}
	all := "Applications with evacuated Pods: " + itoa(len(h.Effects)) + "; "
	if below == 0 && none == 0 {
		all += "none was below its PodDisruptionBudget or without a ready replica"
		if len(before) > 0 {
			all += " while they were recorded"
		}
		if isUnread {
			all += ", as far as they could be read"
		}
		return append([]string{all + "."}, before...)
	}
	worst := h.Effects[0].Title()
	if AreOfSeveral(h.Drains) {
		worst += " of Cluster " + h.Effects[0].Cluster
	}
	return append([]string{
		all + fmt.Sprintf("below their PodDisruptionBudget for a time: %d; without a ready replica for a time: %d.", below, none),
		"Most affected: " + worst + ", " + h.Effects[0].Sentence() + ".",
	}, before...)
}
