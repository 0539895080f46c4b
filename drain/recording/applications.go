package recording

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// The kinds of objects that an application is recorded from.
const (
	KindDeployment  = "Deployment"
	KindStatefulSet = "StatefulSet"
	KindBudget      = "PodDisruptionBudget"
)

// maxApplications is the maximum number of applications in a recording.
const maxApplications = 500

// applications knows which applications are recorded: those of the Pods that have, or had, an Evacuation.
type applications struct {
	recorded sets.Set[string] // their identities
	assigned sets.Set[string] // the Pods whose application was looked up, by Cluster and UID
	isFull   bool             // not all are recorded
}

// controller is a Deployment or StatefulSet.
type controller struct {
	Application

	namespace string
	selector  *metav1.LabelSelector
	pods      map[string]string // the labels of the Pod template
}

// observe adds a line for each recorded application.
func (a *applications) observe(w *Workload, index *budgets.Index, present map[string]Line) {
	controllers := controllersOf(w)
	a.assign(w, controllers, index)
	for i := range controllers {
		c := &controllers[i]
		if id := c.id(); a.recorded.Has(id) {
			c.Unread = w.Unread.Has(c.Kind)
			if covering := index.Covering(budgets.Pod{Namespace: c.namespace, Labels: c.pods}); len(covering) > 0 {
				c.Budget = covering[0].String()
			}
			c.BudgetUnread = c.Budget == "" && w.Unread.Has(KindBudget)
			present[id] = Line{Application: &c.Application}
		}
	}
	for i := range w.Budgets {
		b := &w.Budgets[i]
		application := &Application{
			Cluster: w.Cluster, Kind: KindBudget, Name: b.Namespace + "/" + b.Name, Ready: b.Status.CurrentHealthy, Replicas: b.Status.ExpectedPods,
			Budget: b.Namespace + "/" + b.Name, Unread: w.Unread.Has(KindBudget),
		}
		if id := application.id(); a.recorded.Has(id) {
			present[id] = Line{Application: application}
		}
	}
	if a.isFull {
		present["gap applications"] = Line{Gap: "more than " + itoa(maxApplications) + " applications: the ready replicas of the others are not recorded"}
	}
}

// id identifies an application among all lines.
func (a *Application) id() string { return "application " + a.Cluster + " " + a.Kind + " " + a.Name }

// assign looks up the applications of Pods that have a new Evacuation. As long as a kind cannot be read, a Pod without an application is
// looked up again.
func (a *applications) assign(w *Workload, controllers []controller, index *budgets.Index) {
	var selectors []labels.Selector // as controllers
	for i := range w.Evacuations {
		e := &w.Evacuations[i]
		pod := w.Cluster + " " + e.Spec.PodRef.UID
		if a.assigned.Has(pod) {
			continue
		}
		if selectors == nil {
			selectors = selectorsOf(controllers)
		}
		id := controllerOf(e, controllers, selectors)
		if id == "" && w.Unread.Len() > 0 {
			continue
		}
		a.assigned.Insert(pod)
		if covering := index.Covering(budgets.Pod{Namespace: e.Namespace, Labels: e.Labels}); id == "" && len(covering) > 0 {
			id = (&Application{Cluster: w.Cluster, Kind: KindBudget, Name: covering[0].String()}).id()
		}
		switch {
		case id == "" || a.recorded.Has(id):
		case a.recorded.Len() < maxApplications:
			a.recorded.Insert(id)
		default:
			a.isFull = true
		}
	}
}

// controllerOf returns the identity of the controller that selects the Pod of an Evacuation, which has the labels of its Pod. If several
// do, the name of the Pod tells which one has created it.
func controllerOf(e *v1alpha1.Evacuation, controllers []controller, selectors []labels.Selector) string {
	id, longest := "", -1
	for i := range controllers {
		c := &controllers[i]
		if c.namespace != e.Namespace || !selectors[i].Matches(labels.Set(e.Labels)) {
			continue
		}
		matched := 0
		if _, name, _ := strings.Cut(c.Name, "/"); strings.HasPrefix(e.Spec.PodRef.Name, name+"-") {
			matched = len(name)
		}
		if matched > longest {
			id, longest = c.id(), matched
		}
	}
	return id
}

func selectorsOf(controllers []controller) []labels.Selector {
	selectors := make([]labels.Selector, 0, len(controllers))
	for i := range controllers {
		selector, err := metav1.LabelSelectorAsSelector(controllers[i].selector)
		if err != nil {
			selector = labels.Nothing()
		}
		selectors = append(selectors, selector)
	}
	return selectors
}

func controllersOf(w *Workload) []controller {
	controllers := make([]controller, 0, len(w.Deployments)+len(w.StatefulSets))
	for i := range w.Deployments {
		d := &w.Deployments[i]
		controllers = append(controllers, controller{
			Application{
				Cluster: w.Cluster, Kind: KindDeployment, Name: d.Namespace + "/" + d.Name, Ready: d.Status.ReadyReplicas, Replicas: ptr.Deref(d.Spec.Replicas, 1),
			}, d.Namespace, d.Spec.Selector, d.Spec.Template.Labels,
		})
	}
	for i := range w.StatefulSets {
		s := &w.StatefulSets[i]
		controllers = append(controllers, controller{
			Application{
				Cluster: w.Cluster, Kind: KindStatefulSet, Name: s.Namespace + "/" + s.Name, Ready: s.Status.ReadyReplicas, Replicas: ptr.Deref(s.Spec.Replicas, 1),
			}, s.Namespace, s.Spec.Selector, s.Spec.Template.Labels,
		})
	}
	return controllers
}
