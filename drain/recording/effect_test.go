package recording_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// deployment selects the Pods of the evacuations of a scene, as its budget does.
func deployment(name string, ready, replicas int32) appsv1.Deployment {
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "payments", Name: name}}
	d.Spec.Replicas, d.Status.ReadyReplicas = &replicas, ready
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	d.Spec.Template.Labels = map[string]string{"app": "db", "version": "1"}
	return d
}

func applicationLines(lines []recording.Line) []recording.Application {
	var applications []recording.Application
	for _, line := range lines {
		if line.Application != nil {
			applications = append(applications, *line.Application)
		}
	}
	return applications
}

func TestRecordedApplications(t *testing.T) {
	state := recording.Application{Cluster: "default/prod", Kind: "Deployment", Name: "payments/db", Ready: 3, Replicas: 3, Budget: "payments/db"}
	evacuate := func(w *recording.Workload) { w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", "")} }

	t.Run("K65: the ready replicas of a Deployment are recorded from its first evacuated Pod on, also after the drain", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		other := deployment("other", 1, 1)
		other.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
		s.observe(0, func(w *recording.Workload) { w.Deployments = []appsv1.Deployment{deployment("db", 3, 3), other} })
		g.Expect(applicationLines(s.lines)).To(BeEmpty())
		s.observe(1, evacuate)
		s.observe(2, func(w *recording.Workload) { w.Evacuations = nil })
		s.observe(3, func(w *recording.Workload) { w.Deployments[0].Status.ReadyReplicas = 2 })
		s.observe(4, func(w *recording.Workload) { w.Deployments = nil })
		fewer, gone := state, state
		fewer.Ready, gone.Ready, gone.Gone = 2, 2, true
		g.Expect(applicationLines(s.lines)).To(Equal([]recording.Application{state, fewer, gone}))
	})

	t.Run("K65: a StatefulSet is recorded, and its PodDisruptionBudget", func(t *testing.T) {
		s := newScene()
		s.observe(0, func(w *recording.Workload) {
			evacuate(w)
			set := appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "payments", Name: "db"}}
			set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
			set.Spec.Template.Labels, set.Spec.Replicas, set.Status.ReadyReplicas = map[string]string{"app": "db"}, ptr.To[int32](3), 3
			w.StatefulSets = []appsv1.StatefulSet{set}
		})
		set := state
		set.Kind = "StatefulSet"
		NewWithT(t).Expect(applicationLines(s.lines)).To(Equal([]recording.Application{set}))
	})

	t.Run("K65: of several Deployments that select a Pod, its name tells its own", func(t *testing.T) {
		s := newScene()
		s.observe(0, func(w *recording.Workload) {
			w.Evacuations = []v1alpha1.Evacuation{evacuation("db-new-5c785857f7-pp8fk", "")}
			w.Deployments = []appsv1.Deployment{deployment("another", 1, 1), deployment("db", 1, 1), deployment("db-new", 3, 3), deployment("db-ne", 1, 1)}
		})
		NewWithT(t).Expect(applicationLines(s.lines)).To(HaveExactElements(HaveField("Name", "payments/db-new")))
	})

	t.Run("K67: an application that was not read yet is recorded once it is read, and not as its PodDisruptionBudget", func(t *testing.T) {
		s := newScene()
		s.observe(0, func(w *recording.Workload) {
			evacuate(w)
			w.Unread = sets.New("Deployment")
		})
		s.observe(1, func(w *recording.Workload) {
			w.Deployments, w.Unread = []appsv1.Deployment{deployment("db", 3, 3)}, nil
		})
		NewWithT(t).Expect(applicationLines(s.lines)).To(Equal([]recording.Application{state}))
	})

	t.Run("K67: what cannot be read any more is recorded as unread, and its last numbers are no news", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observe(0, func(w *recording.Workload) {
			evacuate(w)
			w.Deployments = []appsv1.Deployment{deployment("db", 3, 3)}
		})
		s.observe(10, func(w *recording.Workload) { w.Unread = sets.New("Deployment", "PodDisruptionBudget") })
		s.observe(20, nil)
		s.observe(30, func(w *recording.Workload) { w.Unread = nil })
		s.observe(60, func(w *recording.Workload) { w.Evacuations = nil })
		unread := state
		unread.Unread = true
		g.Expect(applicationLines(s.lines)).To(Equal([]recording.Application{state, unread, state}))
		e := read(t, s.file()).Effects[0]
		g.Expect(e.Ready).To(HaveExactElements(recording.Level{From: at(0), To: at(10), Value: 3}, recording.Level{From: at(30), To: at(60), Value: 3}))
		g.Expect(e.Required).To(HaveExactElements(recording.Level{From: at(0), To: at(10), Value: 2}, recording.Level{From: at(30), To: at(60), Value: 2}))
		g.Expect(e.Sentence()).To(Equal("3 of 3 ready at least, budget 2; not read for 20 s"))
	})

	t.Run("K67: that PodDisruptionBudgets cannot be read is no sign that there is none", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observe(0, func(w *recording.Workload) {
			evacuate(w)
			w.Deployments, w.Budgets, w.Unread = []appsv1.Deployment{deployment("db", 3, 3)}, nil, sets.New("PodDisruptionBudget")
		})
		s.observe(60, func(w *recording.Workload) { w.Evacuations = nil })
		h := read(t, s.file())
		g.Expect(h.Effects[0].Sentence()).To(Equal("3 of 3 ready at least, budget not read"))
		g.Expect(h.Summary()).To(ContainElement(HaveSuffix("without a ready replica, as far as they could be read.")))
		s.observe(70, func(w *recording.Workload) { w.Unread = nil })
		s.observe(80, func(w *recording.Workload) { w.Unread = sets.New("PodDisruptionBudget") })
		g.Expect(read(t, s.file()).Effects[0].Sentence()).To(Equal("3 of 3 ready at least, no budget"), "it was read meanwhile")
	})

	t.Run("K65: at most 500 applications are recorded, and a gap says so", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observe(0, func(w *recording.Workload) {
			for i := range 501 {
				name := fmt.Sprintf("db%d", i)
				w.Evacuations = append(w.Evacuations, evacuation(name+"-x", ""))
				w.Deployments = append(w.Deployments, deployment(name, 1, 1))
			}
		})
		g.Expect(applicationLines(s.lines)).To(HaveLen(500))
		g.Expect(read(t, s.file()).Gaps).To(ConsistOf(ContainSubstring("more than 500 applications")))
	})
}

// course is the states of an application and of its budget, by second.
type course map[int]any

func app(ready, replicas int32) recording.Application {
	return recording.Application{Kind: "Deployment", Name: "shop/web", Ready: ready, Replicas: replicas, Budget: "shop/web"}
}

func pdb(healthy, required, pods int32) recording.Budget {
	return recording.Budget{Name: "shop/web", Healthy: healthy, Required: required, Pods: pods}
}

// recorded returns what a recording of 100 seconds says.
func recorded(t *testing.T, c course) *recording.History {
	t.Helper()
	s := &scene{lines: []recording.Line{{Time: begin, Start: &recording.Start{Version: recording.Version}}}}
	for second := range 100 {
		switch state := c[second].(type) {
		case recording.Application:
			s.lines = append(s.lines, recording.Line{Time: at(second), Application: &state})
		case recording.Budget:
			s.lines = append(s.lines, recording.Line{Time: at(second), Budget: &state})
		}
	}
	return read(t, s.file(recording.Line{Time: at(100), End: recording.EndStopped}))
}

func TestEffect(t *testing.T) {
	unread := app(4, 4)
	unread.Unread = true
	gone := app(0, 4)
	gone.Gone = true
	bare := app(1, 1)
	bare.Budget = ""
	down := bare
	down.Ready = 0
	for name, tc := range map[string]struct {
		course   course
		want     string
		affected bool
	}{
		"an application that kept its replicas": {course{0: pdb(4, 3, 4), 1: app(4, 4)}, "4 of 4 ready at least, budget 3", false},
		"an application that used its budget":   {course{0: pdb(4, 3, 4), 1: app(4, 4), 2: app(3, 4), 10: app(4, 4)}, "3 of 4 ready at least, budget 3", true},
		"an application below its budget": {
			course{0: pdb(4, 3, 4), 1: app(4, 4), 2: app(2, 4), 3: pdb(2, 3, 4), 10: app(4, 4), 15: pdb(4, 3, 4)},
			"2 of 4 ready at least, budget 3; below the budget for 12 s", true,
		},
		"the only replica of an application without a budget": {
			course{1: bare, 2: down, 10: bare}, "0 of 1 ready at least, no budget; none ready for 8 s", true,
		},
		"a Pod that was not replaced": {
			course{0: pdb(4, 3, 4), 1: app(4, 4), 90: app(3, 4)}, "3 of 4 ready at least, budget 3; 1 not ready at the end", true,
		},
		"a surge, whose additional replica is not ready yet": {
			course{0: pdb(4, 4, 4), 1: app(4, 4), 2: app(4, 5), 3: pdb(4, 5, 5), 10: app(5, 5), 11: pdb(5, 5, 5), 20: app(4, 4), 21: pdb(4, 4, 4)},
			"4 of 4 ready at least, budget 4", false,
		},
		"an application that was scaled down": {course{0: pdb(4, 3, 4), 1: app(4, 4), 2: app(2, 2), 3: pdb(2, 1, 2)}, "2 of 2 ready at least, budget 1", false},
		"an application that could not be read, and is not said to have had no replicas": {
			course{0: pdb(4, 3, 4), 1: app(4, 4), 10: unread, 30: app(4, 4)}, "4 of 4 ready at least, budget 3; not read for 20 s", false,
		},
		"an application that was deleted": {course{0: pdb(4, 3, 4), 1: app(4, 4), 10: gone}, "4 of 4 ready at least, budget 3", false},
		"a budget that counts the Pods of others": {
			course{0: pdb(9, 8, 9), 1: app(4, 4), 2: app(3, 4), 3: pdb(7, 8, 9), 5: pdb(8, 8, 9), 6: app(4, 4)},
			"3 of 4 ready at least, budget shop/web with other Pods; below the budget for 2 s", true,
		},
		"a budget that counts Pods that are terminating": {
			course{0: pdb(4, 3, 4), 1: app(4, 4), 2: app(3, 4), 3: pdb(3, 3, 5), 10: app(4, 4), 11: pdb(4, 3, 4)}, "3 of 4 ready at least, budget 3", true,
		},
		"a budget that could not be read":       {course{1: app(4, 4), 2: app(3, 4), 3: app(4, 4)}, "3 of 4 ready at least, budget not read", true},
		"numbers below zero, as no API accepts": {course{1: app(-4, -3)}, "0 of 0 ready at least, budget not read", false},
	} {
		t.Run("K66: the report is right about "+name, func(t *testing.T) {
			g, h := NewWithT(t), recorded(t, tc.course)
			g.Expect(h.Effects).To(HaveLen(1))
			g.Expect(h.Effects[0].Title()).To(Equal("Deployment shop/web"))
			g.Expect(h.Effects[0].Sentence()).To(Equal(tc.want))
			g.Expect(h.Effects[0].IsAffected()).To(Equal(tc.affected))
		})
	}

	t.Run("K66: the most affected application is the first", func(t *testing.T) {
		named := func(name string, ready int32) recording.Application {
			a := app(ready, 4)
			a.Name, a.Budget = "shop/"+name, ""
			return a
		}
		h := recorded(t, course{
			1: named("well", 4), 2: named("half", 4), 3: named("most", 4), 4: named("none", 4), 5: named("half", 2), 6: named("most", 3), 7: named("none", 0),
			8: named("none", 4),
		})
		NewWithT(t).Expect(h.Effects).To(HaveExactElements(HaveField("Name", "shop/none"), HaveField("Name", "shop/half"), HaveField("Name", "shop/most"),
			HaveField("Name", "shop/well")))
	})
}

func TestVerdict(t *testing.T) {
	t.Run("K66: the summary says whether the drains hurt an application, and names the most affected one", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observe(0, func(w *recording.Workload) {
			w.Evacuations, w.Deployments = []v1alpha1.Evacuation{evacuation("db-0", "")}, []appsv1.Deployment{deployment("db", 3, 3)}
			w.Budgets = []policyv1.PodDisruptionBudget{*w.Budgets[0].DeepCopy()}
			w.Budgets[0].Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2, ExpectedPods: 3}
		})
		s.observe(10, func(w *recording.Workload) { w.Deployments[0].Status.ReadyReplicas = 2 })
		g.Expect(read(t, s.file()).Summary()).To(ContainElement(
			"Applications with evacuated Pods: 1; none was below its PodDisruptionBudget or without a ready replica.",
		))
		s.observe(20, func(w *recording.Workload) { w.Deployments[0].Status.ReadyReplicas = 0 })
		s.observe(30, func(w *recording.Workload) { w.Deployments[0].Status.ReadyReplicas = 3 })
		g.Expect(read(t, s.file()).Summary()).To(ContainElements(
			"Applications with evacuated Pods: 1; below their PodDisruptionBudget for a time: 0; without a ready replica for a time: 1.",
			"Most affected: Deployment payments/db, 0 of 3 ready at least, budget 2; none ready for 10 s.",
		))
	})

	t.Run("K67: nothing is said not to have happened while something could not be read", func(t *testing.T) {
		s := newScene()
		s.observe(0, func(w *recording.Workload) {
			w.Evacuations, w.Deployments = []v1alpha1.Evacuation{evacuation("db-0", "")}, []appsv1.Deployment{deployment("db", 3, 3)}
		})
		s.observe(10, func(w *recording.Workload) { w.Unread = sets.New("Deployment") })
		s.observe(20, func(w *recording.Workload) { w.Unread = nil })
		NewWithT(t).Expect(read(t, s.file()).Summary()).To(ContainElement(HaveSuffix("without a ready replica, as far as they could be read.")))
	})
}
