package recording

import (
	"cmp"
	"slices"
	"time"
)

// BudgetCourse is how the disruptions that a PodDisruptionBudget allows changed.
type BudgetCourse struct {
	Cluster, Name string
	Steps         []BudgetStep
}

// BudgetStep is the state of a PodDisruptionBudget from a time on.
type BudgetStep struct {
	Time time.Time
	Budget
}

// ApplicationCourse is how the ready replicas of an application changed.
type ApplicationCourse struct {
	Cluster, Kind, Name string
	Steps               []ApplicationStep
}

// ApplicationStep is the state of an application from a time on.
type ApplicationStep struct {
	Time time.Time
	Application
}

// budget returns the last known name of the PodDisruptionBudget, or nothing.
func (a *ApplicationCourse) budget() string {
	for _, step := range slices.Backward(a.Steps) {
		if step.Budget != "" {
			return step.Budget
		}
	}
	return ""
}

// isBudgetUnread reports whether it was never known whether a PodDisruptionBudget selects the Pods.
func (a *ApplicationCourse) isBudgetUnread() bool {
	return !slices.ContainsFunc(a.Steps, func(step ApplicationStep) bool { return !step.Gone && !step.BudgetUnread })
}

// courses collects the states of budgets and applications while a recording is read.
type courses struct {
	budgets      map[string]*BudgetCourse      // by Cluster and name
	applications map[string]*ApplicationCourse // by id
}

func newCourses() courses {
	return courses{map[string]*BudgetCourse{}, map[string]*ApplicationCourse{}}
}

// budget adds a state. It returns what is left out, or nothing.
func (c *courses) budget(budget *Budget, now time.Time) (gap string) {
	id := budget.Cluster + " " + budget.Name
	course := c.budgets[id]
	if course == nil {
		course = &BudgetCourse{Cluster: budget.Cluster, Name: budget.Name}
		c.budgets[id] = course
	}
	state := *budget
	if state.Unread = state.Unread || len(course.Steps) == maxSteps; len(course.Steps) <= maxSteps { // what follows the last step is not known
		course.Steps = append(course.Steps, BudgetStep{now, state})
	}
	return tooMany(len(course.Steps), KindBudget, budget.Name)
}

func tooMany(steps int, kind, name string) string {
	if steps <= maxSteps {
		return ""
	}
	return kind + " " + name + " changed more than " + itoa(maxSteps) + " times: later changes are missing"
}

// application adds a state. It returns what is left out, or nothing.
func (c *courses) application(application *Application, now time.Time) (gap string) {
	id := application.id()
	course := c.applications[id]
	if course == nil {
		if len(c.applications) >= maxApplications {
			return "more than " + itoa(maxApplications) + " applications; the others are missing"
		}
		course = &ApplicationCourse{Cluster: application.Cluster, Kind: application.Kind, Name: application.Name}
		c.applications[id] = course
	}
	state := *application
	state.Ready, state.Replicas = max(state.Ready, 0), max(state.Replicas, 0)
	if state.Unread = state.Unread || len(course.Steps) == maxSteps; len(course.Steps) <= maxSteps {
		course.Steps = append(course.Steps, ApplicationStep{now, state})
	}
	return tooMany(len(course.Steps), application.Kind, application.Name)
}

// finish returns the budgets by name, and the effects on applications, see History.
func (c *courses) finish(end time.Time) ([]BudgetCourse, []Effect) {
	budgets, effects := make([]BudgetCourse, 0, len(c.budgets)), make([]Effect, 0, len(c.applications))
	for _, course := range c.budgets {
		budgets = append(budgets, *course)
	}
	slices.SortFunc(budgets, func(a, b BudgetCourse) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
	})
	for _, course := range c.applications {
		effects = append(effects, effectOf(course, c.budgets[course.Cluster+" "+course.budget()], end))
	}
	slices.SortFunc(effects, func(a, b Effect) int {
		return cmp.Or(cmp.Compare(b.None, a.None), cmp.Compare(b.Below, a.Below), cmp.Compare(a.share(), b.share()), cmp.Compare(b.Short, a.Short),
			cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	return budgets, effects
}
