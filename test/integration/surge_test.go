package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestSurge drains Nodes whose Deployments get additional replicas before their Pods are removed, with the real controllers of Deployments,
// ReplicaSets and HorizontalPodAutoscalers. Each scene uses separate Nodes.
func TestSurge(t *testing.T) {
	parallel(t, 160*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 500 * time.Millisecond, PodDeletionDelay: 200 * time.Millisecond})
	hanging := all.sub(t)
	hanging.beginWithoutMetrics() // this drain takes two minutes
	unschedulable := all.sub(t)
	unschedulable.beginUnschedulable() // this surge takes a minute

	t.Run("E24: moves a single replica without downtime and without an eviction", func(t *testing.T) { all.sub(t).singleReplicaMoves() })
	t.Run("E24: moves ten replicas three at a time while ten stay available", func(t *testing.T) { all.sub(t).tenReplicasMove() })
	t.Run("E24: drains two Nodes with replicas of one Deployment at the same time", func(t *testing.T) { all.sub(t).twoNodesDrainAtOnce() })
	t.Run("E24, E26: evicts Pods that cannot surge and reports why", func(t *testing.T) { all.sub(t).whatCannotSurgeIsEvicted() })
	t.Run("E32: surges only Deployments whose Pods request it with OnRequest", func(t *testing.T) { all.sub(t).onRequest() })
	t.Run("E25, E27: restores a Deployment whose new Pods cannot start when the surge is cancelled", func(t *testing.T) { all.sub(t).cancelledSurge() })
	t.Run("E25: keeps a change of replicas by another actor during a surge, and evicts", func(t *testing.T) { all.sub(t).editedSurge() })
	t.Run("E25, E69, R67: completes a surge unless another field manager applies another number of replicas, and then evicts", func(t *testing.T) {
		all.sub(t).appliedSurge()
	})
	t.Run("E79: restarts a Deployment with one replica and a budget, while a tool applies its manifest", func(t *testing.T) { all.sub(t).restartedOnce() })
	t.Run("E67: ends a surge at once when an admission policy refuses the new Pod", func(t *testing.T) { all.sub(t).refusedSurge() })
	t.Run("E63: surges after a rollback that brings back the record of an earlier surge, and restores the number of replicas after a rollback during a surge",
		func(t *testing.T) { all.sub(t).rolledBack() })
	t.Run("E25: cleans up when a Deployment is deleted during a surge", func(t *testing.T) { all.sub(t).deletedSurge() })
	t.Run("E26: raises and restores minReplicas of an autoscaler, which scales back", func(t *testing.T) { all.sub(t).autoscaledMoves() })
	t.Run("E25: continues and reverts a surge once, wherever the manager is killed", func(t *testing.T) { all.sub(t).surgeSurvivesCrashes() })
	t.Run("E37: does not change Deployments that only have the label of a surge, or the baseline of another Deployment", func(t *testing.T) {
		all.sub(t).labelledDeployments()
	})
	t.Run("E28: evicts Pods of a StatefulSet one at a time, highest ordinal first", func(t *testing.T) { all.sub(t).statefulSetLeavesInOrder() })
	t.Run("E68: ends a surge whose new Pod stays unschedulable", func(t *testing.T) {
		ending := all.sub(t)
		ending.begin = unschedulable.begin
		ending.endUnschedulable()
	})
	t.Run("E26: restores the recorded number of replicas when an autoscaler does not scale back", func(t *testing.T) {
		ending := all.sub(t)
		ending.begin = hanging.begin
		ending.endWithoutMetrics()
	})
}

func (s *scene) singleReplicaMoves() {
	s.withNodes("single-1 pool=single")
	s.runSurging(deployment("single", 1, inPool("single")))
	pod := s.podsOf("single")[0]
	s.create(s.workload.Client, budget("single", 0))
	s.withNodes("single-2 pool=single")
	available := s.watchAvailable("single")
	s.create(s.workload.Client, surging("single", v1alpha1.SurgeIfSingleReplica, "single-1"))
	s.expectDrained("single")
	s.expectScaledBack("single", 1)

	least, most := available()
	s.Expect(least).To(Equal(1))
	s.Expect(most).To(Equal(2))
	s.Expect(s.podsOf("single")).To(ConsistOf(And(HaveField("Spec.NodeName", "single-2"), Not(HaveField("UID", pod.UID)))))
	s.Expect(s.evictions().Where(ofApp("single"))).To(BeEmpty())
	writes := s.ours().Resource("deployments").Named(namespace, "single")
	s.Expect(writes).To(HaveLen(3), "the baseline, the number of replicas, and the restoration of both: %s", writes)
	s.Expect(string(writes[0].RequestObject)).NotTo(ContainSubstring(`"spec"`), "the baseline comes first")
	s.Expect(s.ours().Resource("pods").Named(namespace, pod.Name)).To(HaveLen(1), "the deletion cost")
	s.deleteMaintenances("single")
}

// restartedOnce drains the Node of a Deployment with one replica and a budget by a restart, while a tool applies its manifest.
func (s *scene) restartedOnce() {
	s.withNodes("restart-1 pool=restart")
	s.applyAsGitOps("restart", ptr.To[int32](1))
	s.expectRolledOut("restart")
	pod := s.podsOf("restart")[0]
	s.create(s.workload.Client, budget("restart", 0))
	s.withNodes("restart-2 pool=restart")
	available := s.watchAvailable("restart")
	m := surging("restart", v1alpha1.SurgeIfSingleReplica, "restart-1")
	m.Spec.Evacuation.SurgeMethod = v1alpha1.SurgeMethodRestart
	s.create(s.workload.Client, m)
	s.expectEventOn("restart", surge.EventRestarted, "Restarting Deployment default/restart: a rollout replaces all of its Pods (1 replica).")
	s.applyAsGitOps("restart", ptr.To[int32](1))
	s.expectDrained("restart")
	s.expectRolledOut("restart")

	least, _ := available()
	s.Expect(least).To(Equal(1))
	s.Expect(s.podsOf("restart")).To(ConsistOf(And(HaveField("Spec.NodeName", "restart-2"), Not(HaveField("UID", pod.UID)))))
	s.Expect(s.evictions().Where(ofApp("restart"))).To(BeEmpty())
	s.Expect(s.ours().Resource("deployments").Named(namespace, "restart")).To(HaveLen(1))
	s.Expect(s.ours().Resource("pods").Named(namespace, pod.Name)).To(BeEmpty())
	s.deleteMaintenances("restart")
}

// labelledDeployments creates Deployments that have the label of a surge. The last one also has a valid baseline: when the manager has
// restored it, the manager has observed the others.
func (s *scene) labelledDeployments() {
	const record = `{"deployment":%q,"replicas":1,"surged":2,"raised":true,"template":"another","pods":[{"name":"gone","uid":"gone"}]}`
	var labelled []*appsv1.Deployment
	for i := range 20 {
		d := deployment(fmt.Sprintf("labelled-%d", i), 0)
		d.Labels = map[string]string{v1alpha1.SurgingLabel: ""}
		d.Annotations = map[string]string{
			v1alpha1.SurgeAnnotation: []string{"", "not a record", fmt.Sprintf(record, "11111111-2222-3333-4444-555555555555")}[i%3],
			"example.com/large":      strings.Repeat("x", 200_000),
		}
		s.create(s.workload.Client, d)
		labelled = append(labelled, d)
	}
	last := deployment("labelled-last", 0)
	s.create(s.workload.Client, last)
	s.patch(s.workload.Client, last, func() {
		last.Labels = map[string]string{v1alpha1.SurgingLabel: ""}
		last.Annotations = map[string]string{v1alpha1.SurgeAnnotation: fmt.Sprintf(record, last.UID)}
	})
	s.Eventually(func(g Gomega) {
		g.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(last), last)).To(Succeed())
		g.Expect(last.Labels).NotTo(HaveKey(v1alpha1.SurgingLabel))
	}, soon, pace).Should(Succeed())
	byManager := s.audited().WithUserAgent(fleet.ManagerAgent).Resource("deployments").Verb("get", "patch")
	s.Expect(byManager.Where(func(event controlplane.Event) bool {
		return strings.HasPrefix(event.Name, "labelled-") && event.Name != last.Name
	})).To(BeEmpty())
	s.Expect(byManager.Named(namespace, last.Name)).NotTo(BeEmpty())
	for _, d := range append(labelled, last) {
		s.Expect(s.workload.Client.Delete(s.Context(), d)).To(Succeed())
	}
}

// rolledBack rolls a Deployment back as `kubectl rollout undo` does, after a surge and during one.
func (s *scene) rolledBack() {
	s.withNodes("undo-1 pool=undo", "undo-2 pool=undo")
	s.runSurging(deployment("undo", 1, inPool("undo")))
	move := func(name string) {
		s.create(s.workload.Client, surging(name, v1alpha1.SurgeIfSingleReplica, s.podsOf("undo")[0].Spec.NodeName))
		s.expectDrained(name)
		s.expectScaledBack("undo", 1)
		s.deleteMaintenances(name)
	}
	move("undo-first")
	first := s.replicaSetOf("undo")
	s.Expect(first.Annotations).To(HaveKey(v1alpha1.SurgeAnnotation), "the Deployment controller copies annotations")
	s.patchDeployment("undo", `{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`)
	s.expectRolledOut("undo")
	second := s.replicaSetOf("undo")

	s.rollBack("undo", first)
	s.expectRolledOut("undo")
	move("undo-second")
	s.Expect(s.evictions().Where(ofApp("undo"))).To(BeEmpty())

	s.create(s.workload.Client, surging("undo-third", v1alpha1.SurgeAlways, "undo-1", "undo-2")) // the new Pod cannot start
	s.expectReplicas("undo", 2)
	s.rollBack("undo", second)
	s.Eventually(func(g Gomega) {
		d := read(g, s.workload.Client, keyOf("undo"), &appsv1.Deployment{})
		g.Expect(d.Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SurgingLabel))
	}, eventually, pace).Should(Succeed())
	s.deleteMaintenances("undo-third")
}

// replicaSetOf returns the ReplicaSet of the Deployment's template.
func (s *scene) replicaSetOf(deployment string) *appsv1.ReplicaSet {
	s.Helper()
	sets := &appsv1.ReplicaSetList{}
	s.Expect(s.workload.Client.List(s.Context(), sets, client.InNamespace(namespace), client.MatchingLabels{"app": deployment})).To(Succeed())
	for i := range sets.Items {
		if ptr.Deref(sets.Items[i].Spec.Replicas, 0) > 0 {
			return &sets.Items[i]
		}
	}
	s.Fatalf("Deployment %s has no ReplicaSet with Pods", deployment)
	return nil
}

// expectRolledOut waits until a Deployment has its replicas and no other Pods, such as those of an earlier template that terminate.
func (s *scene) expectRolledOut(name string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		d := read(g, s.workload.Client, keyOf(name), &appsv1.Deployment{})
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect([]int32{d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas}).To(HaveEach(*d.Spec.Replicas))
		g.Expect(s.podsOf(name)).To(HaveLen(int(*d.Spec.Replicas)))
	}, eventually, pace).Should(Succeed())
}

// rollBack replaces the template and the annotations of a Deployment by those of a ReplicaSet, as `kubectl rollout undo` does.
func (s *scene) rollBack(name string, to *appsv1.ReplicaSet) {
	s.Helper()
	d := read(s, s.workload.Client, keyOf(name), &appsv1.Deployment{})
	annotations := map[string]string{}
	for key, value := range to.Annotations {
		if !strings.HasPrefix(key, "deployment.kubernetes.io/") {
			annotations[key] = value
		}
	}
	for key, value := range d.Annotations {
		if strings.HasPrefix(key, "deployment.kubernetes.io/") {
			annotations[key] = value
		}
	}
	template := to.Spec.Template.DeepCopy()
	delete(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	patch, err := json.Marshal([]any{
		map[string]any{"op": "replace", "path": "/spec/template", "value": template},
		map[string]any{"op": "replace", "path": "/metadata/annotations", "value": annotations},
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.workload.Client.Patch(s.Context(), d, client.RawPatch(types.JSONPatchType, patch))).To(Succeed())
}

func (s *scene) tenReplicasMove() {
	s.withNodes("ten-1 pool=ten")
	quarter := intstr.FromString("25%")
	d := deployment("ten", 10, inPool("ten"))
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter},
	}
	s.runSurging(d)
	s.withNodes("ten-2 pool=ten")
	available := s.watchAvailable("ten")
	s.create(s.workload.Client, surging("ten", v1alpha1.SurgeAlways, "ten-1"))
	s.expectDrained("ten")
	s.expectScaledBack("ten", 10)

	least, most := available()
	s.Expect(least).To(Equal(10))
	s.Expect(most).To(Equal(13))
	s.Expect(s.podsOf("ten")).To(HaveEach(HaveField("Spec.NodeName", "ten-2")))
	s.Expect(s.evictions().Where(ofApp("ten"))).To(BeEmpty())
	s.Expect(s.ours().Resource("deployments").Named(namespace, "ten")).To(HaveLen(4*3), "three times three Pods, and one")
	s.deleteMaintenances("ten")
}

func (s *scene) twoNodesDrainAtOnce() {
	s.withNodes("two-1 pool=two", "two-2 pool=two")
	for _, node := range []string{"two-1", "two-2"} { // Nodes have a taint until they are ready
		s.Eventually(func() []corev1.Taint { return s.node(node).Spec.Taints }, eventually, pace).Should(BeEmpty())
	}
	s.runSurging(deployment("two", 4, inPool("two"), func(template *corev1.PodTemplateSpec) {
		template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: labelSelector("app", "two"),
			NodeTaintsPolicy: ptr.To(corev1.NodeInclusionPolicyHonor), // a cordoned Node is not counted
		}}
	}))
	s.Expect(s.podsOf("two")).To(ContainElements(HaveField("Spec.NodeName", "two-1"), HaveField("Spec.NodeName", "two-2")))
	s.withNodes("two-3 pool=two")
	available := s.watchAvailable("two")
	s.create(s.workload.Client, surging("two-a", v1alpha1.SurgeAlways, "two-1"))
	s.create(s.workload.Client, surging("two-b", v1alpha1.SurgeAlways, "two-2"))
	s.expectDrained("two-a")
	s.expectDrained("two-b")
	s.expectScaledBack("two", 4)

	least, _ := available()
	s.Expect(least).To(Equal(4))
	s.Expect(s.podsOf("two")).To(HaveEach(HaveField("Spec.NodeName", "two-3")))
	s.Expect(s.evictions().Where(ofApp("two"))).To(BeEmpty())
	s.deleteMaintenances("two-a", "two-b")
}

func (s *scene) onRequest() {
	s.withNodes("ask-1 pool=ask")
	asks := func(template *corev1.PodTemplateSpec) {
		template.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+v1alpha1.EvacuatorClassDeployment] = "10000/controller"
	}
	s.runSurging(deployment("asks", 2, inPool("ask"), asks), deployment("mute", 1, inPool("ask")))
	evicted := s.podsOf("mute")[0].Name
	s.withNodes("ask-2 pool=ask")
	available := s.watchAvailable("asks")
	s.create(s.workload.Client, surging("ask", v1alpha1.SurgeOnRequest, "ask-1"))
	s.expectDrained("ask")
	s.expectScaledBack("asks", 2)

	least, most := available()
	s.Expect(least).To(Equal(2))
	s.Expect(most).To(Equal(3))
	s.Expect(s.evictions().Where(ofApp("asks"))).To(BeEmpty())
	s.Expect(s.evictions().Succeeded().Where(ofApp("mute")).Names()).To(ConsistOf(evicted))
	s.Expect(s.ours().Resource("deployments").Named(namespace, "mute")).To(BeEmpty())
	s.deleteMaintenances("ask")
}

func (s *scene) cancelledSurge() {
	s.withNodes("off-1 pool=off")
	s.runSurging(deployment("off", 1, inPool("off")))
	pod := s.podsOf("off")[0]
	s.create(s.workload.Client, surging("off", v1alpha1.SurgeIfSingleReplica, "off-1"))
	s.expectReplicas("off", 2) // no Node is left for the second replica
	s.deleteMaintenances("off")
	s.expectScaledBack("off", 1)
	s.Eventually(func() []corev1.Pod { return s.podsOf("off") }, soon, pace).Should(ConsistOf(HaveField("UID", pod.UID)))
	s.Expect(s.pod(pod.Name).Annotations).NotTo(HaveKey(corev1.PodDeletionCost))
	s.Expect(s.evictions().Where(ofApp("off"))).To(BeEmpty())
	s.expectEventOn("off", surge.EventCanceled, "")
}

func (s *scene) editedSurge() {
	s.withNodes("edit-1 pool=edit")
	s.runSurging(deployment("edit", 1, inPool("edit")))
	pod := s.podsOf("edit")[0]
	s.create(s.workload.Client, surging("edit", v1alpha1.SurgeIfSingleReplica, "edit-1"))
	s.expectReplicas("edit", 2)
	s.patchDeployment("edit", `{"spec":{"replicas":4}}`)
	s.expectDrained("edit")
	s.expectScaledBack("edit", 4)
	s.Expect(s.evictions().Succeeded().Names()).To(ContainElement(pod.Name))
	s.Expect(s.reportsOf(&pod)).To(ContainElement(ContainSubstring(string(surge.Edited))))
	s.expectEventOn("edit", surge.EventSuperseded, "")
	s.deleteMaintenances("edit")
}

// appliedSurge applies Deployments as a GitOps tool does: by server-side apply, which takes over the fields of other managers, again and
// again during a surge and after it.
func (s *scene) appliedSurge() {
	for app, during := range map[string]*int32{"left-out": nil, "ignored": ptr.To[int32](2), "reverted": ptr.To[int32](1)} {
		first := during
		if app == "ignored" { // from then on, the tool applies the number of replicas that it finds
			first = ptr.To[int32](1)
		}
		s.withNodes(app + "-1 pool=" + app)
		s.applyAsGitOps(app, first)
		s.expectRolledOut(app)
		pod, generation := s.podsOf(app)[0], s.generation(app)
		available := s.watchAvailable(app)
		s.create(s.workload.Client, surging(app, v1alpha1.SurgeIfSingleReplica, app+"-1"))
		s.expectReplicas(app, 2) // no Node is left for the second replica: the surge does not end before the tool has applied the Deployment

		s.Eventually(func() bool {
			return meta.IsStatusConditionTrue(s.stored(app).Status.Conditions, v1alpha1.NodeMaintenanceReconciling)
		}, soon, pace).Should(BeTrue())
		for range 5 {
			s.applyAsGitOps(app, during)
		}
		if app == "reverted" {
			s.expectEventOn(app, surge.EventSuperseded, `Field manager "gitops" changed the number of replicas`) // E69
			s.expectReport(&pod, string(surge.Edited), `Field manager \"gitops\"`)
		} else {
			d := read(s, s.workload.Client, keyOf(app), &appsv1.Deployment{})
			s.Expect(d.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))
			s.Expect(d.Annotations).To(HaveKey(v1alpha1.SurgeAnnotation))
			s.Expect(d.Labels).To(HaveKey(v1alpha1.SurgingLabel))
		}
		s.withNodes(app + "-2 pool=" + app)
		s.expectDrained(app)
		s.Expect(meta.FindStatusCondition(s.stored(app).Status.Conditions, v1alpha1.NodeMaintenanceReconciling)).To(BeNil())
		s.expectScaledBack(app, 1)
		for range 5 {
			s.applyAsGitOps(app, first)
		}

		least, most := available()
		writes, changes := s.ours().Resource("deployments").Named(namespace, app), s.generation(app)-generation
		s.Expect(writes).To(HaveLen(3), "%s: the baseline, the number of replicas, and the end of the surge: %s", app, writes)
		if app == "reverted" {
			s.Expect(s.evictions().Succeeded().Where(ofApp(app)).Names()).To(ConsistOf(pod.Name))
			s.Expect(changes).To(BeEquivalentTo(4), "those of the manager, and one of the tool")
		} else {
			s.Expect(s.evictions().Where(ofApp(app))).To(BeEmpty(), app)
			s.Expect([]int{least, most}).To(Equal([]int{1, 2}), app)
			s.Expect(changes).To(BeEquivalentTo(3), "%s: those of the manager", app)
		}
		s.deleteMaintenances(app)
	}
}

func (s *scene) deletedSurge() {
	s.withNodes("gone-1 pool=gone")
	d := deployment("gone", 1, inPool("gone"))
	s.runSurging(d)
	s.create(s.workload.Client, surging("gone", v1alpha1.SurgeIfSingleReplica, "gone-1"))
	s.expectReplicas("gone", 2)
	s.Expect(s.workload.Client.Delete(s.Context(), d)).To(Succeed())
	s.expectDrained("gone")
	s.deleteMaintenances("gone")

	s.withNodes("orphan-1 pool=orphan")
	orphan := deployment("orphan", 1, inPool("orphan"))
	s.runSurging(orphan)
	s.create(s.workload.Client, autoscaler("orphan", 1, 5))
	s.create(s.workload.Client, surging("orphan", v1alpha1.SurgeIfSingleReplica, "orphan-1"))
	s.expectMinReplicas("orphan", 2)
	s.Expect(s.workload.Client.Delete(s.Context(), orphan)).To(Succeed())
	s.expectMinReplicas("orphan", 1)
	s.expectDrained("orphan")
	s.deleteMaintenances("orphan")
}

// autoscaledMoves sets the number of replicas, as an autoscaler with metrics does when it scales back.
func (s *scene) autoscaledMoves() {
	s.withNodes("auto-1 pool=auto")
	s.runSurging(deployment("auto", 1, inPool("auto")))
	s.create(s.workload.Client, autoscaler("auto", 1, 5))
	pod := s.podsOf("auto")[0]
	s.withNodes("auto-2 pool=auto")
	available := s.watchAvailable("auto")
	s.create(s.workload.Client, surging("auto", v1alpha1.SurgeIfSingleReplica, "auto-1"))
	s.expectMinReplicas("auto", 2)
	s.expectMinReplicas("auto", 1)
	s.patchDeployment("auto", `{"spec":{"replicas":1}}`)
	s.expectDrained("auto")
	s.expectScaledBack("auto", 1)
	least, most := available()
	s.Expect(least).To(Equal(1))
	s.Expect(most).To(Equal(2))
	s.Expect(s.podsOf("auto")).To(ConsistOf(And(HaveField("Spec.NodeName", "auto-2"), Not(HaveField("UID", pod.UID)))))
	s.Expect(s.evictions().Where(ofApp("auto"))).To(BeEmpty())
	s.Expect(s.ours().Resource("deployments").Named(namespace, "auto").Where(contains(`"spec"`))).To(BeEmpty(), "the number of replicas is the autoscaler's")
	s.deleteMaintenances("auto")
}

func (s *scene) statefulSetLeavesInOrder() {
	s.withNodes("set-1 pool=set")
	parallel, manual := statefulSet("parallel", 2), statefulSet("manual", 2)
	parallel.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	manual.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	for _, set := range []*appsv1.StatefulSet{statefulSet("ordered", 3), parallel, manual} {
		s.create(s.workload.Client, set)
	}
	for app, n := range map[string]int{"ordered": 3, "parallel": 2, "manual": 2} {
		s.Eventually(func(g Gomega) {
			g.Expect(s.podsOf(app)).To(And(HaveLen(n), HaveEach(HaveField("Status.Phase", corev1.PodRunning))))
		}, eventually, pace).Should(Succeed(), app)
	}
	s.withNodes("set-2 pool=set")
	available := s.watchAvailable("ordered")
	s.create(s.workload.Client, nm("set", v1alpha1.StageDrain, ofNodes("set-1"), inOrder))
	s.expectDrained("set")
	s.Eventually(func() []corev1.Pod { return s.podsOf("ordered") }, eventually, pace).Should(And(HaveLen(3), HaveEach(HaveField("Spec.NodeName", "set-2"))))

	s.Expect(s.evictions().Succeeded().Where(ofApp("ordered")).Names()).To(Equal([]string{"ordered-2", "ordered-1", "ordered-0"}))
	s.Expect(s.evictions().Succeeded().Where(ofApp("parallel")).Names()).To(ConsistOf("parallel-0", "parallel-1"))
	s.Expect(s.evictions().Succeeded().Where(ofApp("manual")).Names()).To(ConsistOf("manual-0", "manual-1"))
	least, _ := available()
	s.Expect(least).To(Equal(2), "one at a time")
	s.deleteMaintenances("set")
	s.Expect(s.workload.Client.DeleteAllOf(s.Context(), &appsv1.StatefulSet{}, client.InNamespace(namespace))).To(Succeed())
}

// surgeSurvivesCrashes kills the manager after each write of a surge. A first surge without a crash shows the number of writes.
func (s *scene) surgeSurvivesCrashes() {
	s.withNodes("crash-1 pool=crash", "crash-2 pool=crash")
	s.runSurging(deployment("crash", 1, inPool("crash")))
	move := func(s *scene, disturb func()) {
		node, generation := s.podsOf("crash")[0].Spec.NodeName, s.generation("crash")
		available := s.watchAvailable("crash")
		s.create(s.workload.Client, surging("crash", v1alpha1.SurgeIfSingleReplica, node))
		disturb()
		s.expectDrained("crash")
		s.expectScaledBack("crash", 1)
		least, most := available()
		s.Expect(least).To(Equal(1))
		s.Expect(most).To(Equal(2))
		s.Expect(s.evictions().Where(ofApp("crash"))).To(BeEmpty())
		// The generation also counts writes whose response the killed manager did not receive.
		s.Expect(s.generation("crash")-generation).To(BeEquivalentTo(3), "the baseline, one increase of replicas, one restoration")
		s.deleteMaintenances("crash")
	}
	undisturbed := s.sub(s.T)
	move(undisturbed, func() {})
	writes := undisturbed.surgeWrites()
	s.Expect(len(writes)).To(BeNumerically(">=", 8))
	for i, write := range writes[:len(writes)-1] { // after the last write, the surge has ended
		s.Run(fmt.Sprintf("killed after write %d: %s %s", i+1, write.Verb, write.Resource), func(t *testing.T) {
			each := s.sub(t)
			move(each, func() {
				each.Eventually(func() bool { // on a busy machine, the undisturbed surge has reported more often
					return len(each.surgeWrites()) > i || meta.IsStatusConditionTrue(each.stored("crash").Status.Conditions, v1alpha1.NodeMaintenanceDrained)
				}, eventually, time.Millisecond).Should(BeTrue())
				each.fleet.KillManager()
				each.Expect(each.fleet.StartManager(each.Context())).To(Succeed())
			})
		})
	}
}
