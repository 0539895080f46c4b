package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// world is the observed state of both clusters. It keeps deleted objects.
type world struct {
	pods         map[types.UID]*observedPod
	machines     map[string]*observedMachine
	maintenances map[string]*v1alpha1.NodeMaintenance

	web webCount
}

type observedPod struct {
	*corev1.Pod
	gone    time.Time // of its deletion; zero if it exists
	evicted bool      // by the eviction API, which sets a condition on the Pod
}

type observedMachine struct {
	*clusterv1.Machine
	gone time.Time // as observed; zero if it exists
}

// webCount counts the web Pods that are ready and not terminating, as the budget does.
type webCount struct {
	ready int
	// complete is true once all replicas were ready; least is the smallest number since.
	complete bool
	least    int
}

func newWorld() *world {
	return &world{
		pods: map[types.UID]*observedPod{}, machines: map[string]*observedMachine{}, maintenances: map[string]*v1alpha1.NodeMaintenance{},
	}
}

func (w *world) sawPod(pod *corev1.Pod, deleted bool, now time.Time) {
	seen := w.pods[pod.UID]
	if seen == nil {
		seen = &observedPod{}
		w.pods[pod.UID] = seen
	}
	if seen.counts() {
		w.web.ready--
	}
	seen.Pod = pod
	if deleted {
		seen.gone = now
	}
	seen.evicted = seen.evicted || isEvicted(pod)
	if seen.counts() {
		w.web.ready++
	}
	if w.web.complete {
		w.web.least = min(w.web.least, w.web.ready)
	} else if w.web.ready == webReplicas {
		w.web.complete, w.web.least = true, webReplicas
	}
}

// counts returns whether the Pod is a web Pod that the budget counts as healthy.
func (p *observedPod) counts() bool {
	return p.Pod != nil && p.Labels[appLabel] == appWeb && p.gone.IsZero() && p.DeletionTimestamp == nil && rules.Ready(p.Pod)
}

func (w *world) sawMachine(machine *clusterv1.Machine, deleted bool, now time.Time) {
	seen := w.machines[machine.Name]
	if seen == nil {
		seen = &observedMachine{}
		w.machines[machine.Name] = seen
	}
	seen.Machine = machine
	if deleted {
		seen.gone = now
	}
}

func (w *world) sawMaintenance(m *v1alpha1.NodeMaintenance, _ bool, _ time.Time) {
	w.maintenances[m.Name] = m
}

// maintenanceOf returns the NodeMaintenance of a Machine, if it exists.
func (w *world) maintenanceOf(machine string) *v1alpha1.NodeMaintenance {
	for _, m := range w.maintenances {
		if m.Annotations[v1alpha1.OwnerMachineAnnotation] == namespace+"/"+machine &&
			(m.Spec.Stage == v1alpha1.StageDrain || m.Spec.Stage == v1alpha1.StageComplete) {
			return m
		}
	}
	return nil
}

// conditionOf returns the condition of a Machine, as "status reason: message".
func (w *world) conditionOf(machine string) string {
	seen := w.machines[machine]
	if seen == nil {
		return ""
	}
	condition := meta.FindStatusCondition(seen.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if condition == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
}

// workersThere returns the names of the existing worker Machines, sorted.
func (w *world) workersThere() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		if machine := w.machines[name]; machine.gone.IsZero() && machine.Labels[clusterv1.MachineDeploymentNameLabel] == pool {
			names = append(names, name)
		}
	}
	return names
}

// deletedMachines returns the names of the Machines that were deleted, sorted.
func (w *world) deletedMachines() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.machines)), func(name string) bool { return w.machines[name].DeletionTimestamp == nil })
}

// podsOn returns all Pods that were on a Node at any time.
func (w *world) podsOn(node string) []*observedPod {
	var pods []*observedPod
	for _, pod := range w.pods {
		if pod.Spec.NodeName == node {
			pods = append(pods, pod)
		}
	}
	return pods
}

// ready counts the ready Pods of an application.
func (w *world) ready(app string) int {
	ready := 0
	for _, pod := range w.pods {
		if pod.Labels[appLabel] == app && pod.gone.IsZero() && pod.DeletionTimestamp == nil && rules.Ready(pod.Pod) {
			ready++
		}
	}
	return ready
}

// evictions counts the Pods that have been evicted.
func (w *world) evictions() int {
	evicted := 0
	for _, pod := range w.pods {
		if pod.evicted {
			evicted++
		}
	}
	return evicted
}

func (m *observedMachine) isRunning() bool {
	return m.DeletionTimestamp == nil && m.Status.Phase == string(clusterv1.MachinePhaseRunning) &&
		meta.IsStatusConditionTrue(m.Status.Conditions, clusterv1.MachineNodeReadyCondition)
}

// isEvicted returns whether a Pod has the condition that the eviction API sets before it deletes it.
func isEvicted(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Reason == "EvictionByEvictionAPI" {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
