package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// statefulSets is the StatefulSet controller.
type statefulSets struct{ hashes hashes }

func (s *statefulSets) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	sets, pods := &appsv1.StatefulSetList{}, &corev1.PodList{}
	if err := read(ctx, c, sets, pods); err != nil {
		return 0, err
	}
	owned := byController(pointers(pods.Items))
	for _, set := range pointers(sets.Items) {
		if set.DeletionTimestamp == nil {
			failed = cmp.Or(failed, s.reconcile(ctx, c, set, owned[set.UID]))
		}
	}
	return 0, failed
}

func (s *statefulSets) reconcile(ctx context.Context, c client.Client, set *appsv1.StatefulSet, pods []*corev1.Pod) error {
	revision := set.Name + "-" + s.hashes.of(set, set.Spec.Template)
	byOrdinal := map[int]*corev1.Pod{}
	for _, pod := range pods {
		if ordinal, err := strconv.Atoi(strings.TrimPrefix(pod.Name, set.Name+"-")); err == nil {
			byOrdinal[ordinal] = pod
		}
	}
	failed := newMembers(set, byOrdinal, revision).scale(ctx, c)
	active := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	return cmp.Or(failed, setStatus(ctx, c, set, func(set *appsv1.StatefulSet) {
		status := &set.Status
		status.ObservedGeneration, status.UpdateRevision = set.Generation, revision
		status.Replicas, status.ReadyReplicas = int32(len(pods)), ready(pods)
		status.AvailableReplicas, status.UpdatedReplicas = ready(active), 0
		for _, pod := range active {
			if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == revision {
				status.UpdatedReplicas++
			}
		}
		if status.CurrentRevision == "" || status.UpdatedReplicas == ptr.Deref(set.Spec.Replicas, 1) {
			status.CurrentRevision = revision
		}
		status.CurrentReplicas = 0
		for _, pod := range active {
			if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == status.CurrentRevision {
				status.CurrentReplicas++
			}
		}
	}))
}

// members are the Pods of a StatefulSet by ordinal. The ordinals from first to end-1 are wanted.
type members struct {
	set        *appsv1.StatefulSet
	pods       map[int]*corev1.Pod
	revision   string
	first, end int
	ordered    bool // one Pod after the other
}

func newMembers(set *appsv1.StatefulSet, pods map[int]*corev1.Pod, revision string) *members {
	first := int(ptr.Deref(set.Spec.Ordinals, appsv1.StatefulSetOrdinals{}).Start)
	return &members{
		set: set, pods: pods, revision: revision, first: first, end: first + int(ptr.Deref(set.Spec.Replicas, 1)),
		ordered: set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement,
	}
}

// scale creates missing Pods in order, or else deletes Pods in the reverse order: first those that are not wanted, then outdated ones.
func (m *members) scale(ctx context.Context, c client.Client) error {
	healthy, failed := m.createMissing(ctx, c)
	if failed != nil || m.ordered && !healthy {
		return failed
	}
	surplus := m.surplus()
	if m.ordered {
		surplus = surplus[:min(len(surplus), 1)]
	}
	for _, ordinal := range surplus {
		failed = cmp.Or(failed, remove(ctx, c, m.pods[ordinal]))
	}
	if failed != nil || m.ordered && len(surplus) > 0 || !healthy {
		return failed
	}
	return m.removeOutdated(ctx, c)
}

// createMissing creates missing Pods and removes failed ones. It returns whether all wanted Pods are ready.
func (m *members) createMissing(ctx context.Context, c client.Client) (healthy bool, failed error) {
	healthy = true
	for ordinal := m.first; ordinal < m.end && (healthy || !m.ordered); ordinal++ {
		pod := m.pods[ordinal]
		switch {
		case pod == nil:
			failed = cmp.Or(failed, createMember(ctx, c, m.set, ordinal, m.revision))
		case pod.DeletionTimestamp == nil && rules.Finished(pod):
			failed = cmp.Or(failed, remove(ctx, c, pod))
		}
		healthy = healthy && pod != nil && pod.DeletionTimestamp == nil && rules.Ready(pod)
	}
	return healthy, failed
}

// surplus returns the ordinals of the Pods that are not wanted, the highest one first.
func (m *members) surplus() (surplus []int) {
	for ordinal := range m.pods {
		if ordinal < m.first || ordinal >= m.end {
			surplus = append(surplus, ordinal)
		}
	}
	slices.Sort(surplus)
	slices.Reverse(surplus)
	return surplus
}

// removeOutdated deletes the last outdated Pod. All wanted Pods exist.
func (m *members) removeOutdated(ctx context.Context, c client.Client) error {
	strategy := &m.set.Spec.UpdateStrategy
	if strategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	partition := int(ptr.Deref(ptr.Deref(strategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{}).Partition, 0))
	for ordinal := m.end - 1; ordinal >= max(m.first, partition); ordinal-- {
		if m.pods[ordinal].Labels[appsv1.ControllerRevisionHashLabelKey] != m.revision {
			return remove(ctx, c, m.pods[ordinal])
		}
	}
	return nil
}

func createMember(ctx context.Context, c client.Client, set *appsv1.StatefulSet, ordinal int, revision string) error {
	name := fmt.Sprintf("%s-%d", set.Name, ordinal)
	pod := newPod(&set.Spec.Template, set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"), map[string]string{
		appsv1.ControllerRevisionHashLabelKey: revision, appsv1.StatefulSetPodNameLabel: name, appsv1.PodIndexLabel: strconv.Itoa(ordinal),
	})
	pod.Name, pod.GenerateName, pod.Spec.Hostname, pod.Spec.Subdomain = name, "", name, set.Spec.ServiceName
	for i := range set.Spec.VolumeClaimTemplates {
		template := &set.Spec.VolumeClaimTemplates[i]
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		claim.Namespace, claim.Name = set.Namespace, template.Name+"-"+name
		if err := create(ctx, c, claim); err != nil {
			return err
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: template.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	return create(ctx, c, pod)
}

// daemonSets is the DaemonSet controller.
type daemonSets struct{ hashes hashes }

// daemonTolerations are those of every Pod of a DaemonSet.
var daemonTolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

func (d *daemonSets) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	sets, nodes, pods := &appsv1.DaemonSetList{}, &corev1.NodeList{}, &corev1.PodList{}
	if err := read(ctx, c, sets, nodes, pods); err != nil {
		return 0, err
	}
	owned := byController(pointers(pods.Items))
	for _, set := range pointers(sets.Items) {
		if set.DeletionTimestamp == nil {
			failed = cmp.Or(failed, d.reconcile(ctx, c, set, pointers(nodes.Items), owned[set.UID]))
		}
	}
	return 0, failed
}

func (d *daemonSets) reconcile(ctx context.Context, c client.Client, set *appsv1.DaemonSet, nodes []*corev1.Node, pods []*corev1.Pod) (failed error) {
	hash := d.hashes.of(set, set.Spec.Template)
	onNode := map[string][]*corev1.Pod{}
	for _, pod := range pods {
		onNode[nodeOfDaemon(pod)] = append(onNode[nodeOfDaemon(pod)], pod)
	}
	wanted := newPod(&set.Spec.Template, set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"), map[string]string{appsv1.ControllerRevisionHashLabelKey: hash})
	wanted.Spec.Tolerations = append(wanted.Spec.Tolerations, daemonTolerations...)
	s := &daemons{
		set: set, hash: hash, wanted: wanted, affinity: nodeaffinity.GetRequiredNodeAffinity(wanted),
		status: appsv1.DaemonSetStatus{ObservedGeneration: set.Generation},
	}
	for _, node := range nodes {
		failed = cmp.Or(failed, s.reconcileNode(ctx, c, node, onNode[node.Name]))
	}
	s.status.NumberAvailable = s.status.NumberReady
	s.status.NumberUnavailable = s.status.DesiredNumberScheduled - s.status.NumberAvailable
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType && len(s.outdated) > 0 && s.status.NumberUnavailable == 0 {
		failed = cmp.Or(failed, remove(ctx, c, s.outdated[0]))
	}
	return cmp.Or(failed, setStatus(ctx, c, set, func(set *appsv1.DaemonSet) {
		s.status.Conditions, s.status.CollisionCount = set.Status.Conditions, set.Status.CollisionCount
		set.Status = s.status
	}))
}

// daemons is the state of the reconciliation of a DaemonSet.
type daemons struct {
	set      *appsv1.DaemonSet
	hash     string
	wanted   *corev1.Pod // for any Node
	affinity nodeaffinity.RequiredNodeAffinity
	status   appsv1.DaemonSetStatus
	outdated []*corev1.Pod
}

// reconcileNode creates a missing Pod on a Node, deletes Pods that may not run there, and counts in the status.
func (s *daemons) reconcileNode(ctx context.Context, c client.Client, node *corev1.Node, present []*corev1.Pod) (failed error) {
	matches, _ := s.affinity.Match(node) // an invalid affinity matches no Node
	shouldRun := matches && tolerates(s.wanted, node, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
	shouldContinue := matches && tolerates(s.wanted, node, corev1.TaintEffectNoExecute)
	if shouldRun {
		s.status.DesiredNumberScheduled++
		if len(present) == 0 {
			pod := s.wanted.DeepCopy()
			pinTo(pod, node.Name)
			failed = errors.Wrapf(c.Create(ctx, pod), "creating a Pod of DaemonSet %s", s.set.Name)
		}
	}
	for i, pod := range slices.SortedStableFunc(slices.Values(present), func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	}) {
		switch {
		case pod.DeletionTimestamp != nil:
		case !shouldContinue || i > 0 || rules.Finished(pod):
			failed = cmp.Or(failed, remove(ctx, c, pod))
		case pod.Labels[appsv1.ControllerRevisionHashLabelKey] != s.hash:
			s.outdated = append(s.outdated, pod)
		default:
			s.status.UpdatedNumberScheduled++
		}
		if i == 0 && shouldRun {
			s.status.CurrentNumberScheduled++
			s.status.NumberReady += int32(number(rules.Ready(pod) && pod.DeletionTimestamp == nil))
		}
	}
	return failed
}

// pinTo lets the scheduler bind the Pod to one Node only.
func pinTo(pod *corev1.Pod, node string) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}
}

// nodeOfDaemon returns the Node that a Pod of a DaemonSet is for.
func nodeOfDaemon(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return pod.Spec.NodeName
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 || len(required.NodeSelectorTerms[0].MatchFields) == 0 {
		return ""
	}
	return required.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// jobs is the Job controller. It counts the Pods of each Job that have succeeded, as the real controller does with finalizers.
type jobs struct {
	succeeded map[types.UID]map[types.UID]bool
}

func (j *jobs) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	all, pods := &batchv1.JobList{}, &corev1.PodList{}
	if err := read(ctx, c, all, pods); err != nil {
		return 0, err
	}
	owned := byController(pointers(pods.Items))
	for _, job := range pointers(all.Items) {
		if job.DeletionTimestamp == nil && job.Status.CompletionTime == nil {
			failed = cmp.Or(failed, j.reconcile(ctx, c, job, owned[job.UID]))
		}
	}
	return 0, failed
}

func (j *jobs) reconcile(ctx context.Context, c client.Client, job *batchv1.Job, pods []*corev1.Pod) (failed error) {
	if j.succeeded[job.UID] == nil {
		j.succeeded[job.UID] = map[types.UID]bool{}
	}
	succeeded := j.succeeded[job.UID]
	var active []*corev1.Pod
	terminating, failedPods := int32(0), int32(0)
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			succeeded[pod.UID] = true
		case pod.Status.Phase == corev1.PodFailed:
			failedPods++
		case pod.DeletionTimestamp != nil:
			terminating++
		default:
			active = append(active, pod)
		}
	}
	parallelism := ptr.Deref(job.Spec.Parallelism, 1)
	missing := ptr.Deref(job.Spec.Completions, parallelism) - int32(len(succeeded))
	wanted := min(parallelism, missing)
	if ptr.Deref(job.Spec.Suspend, false) {
		wanted = 0
	}
	short := wanted - int32(len(active))
	if ptr.Deref(job.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed {
		short -= terminating
	}
	for range max(0, short) {
		pod := newPod(&job.Spec.Template, job, batchv1.SchemeGroupVersion.WithKind("Job"), map[string]string{
			batchv1.JobNameLabel: job.Name, "job-name": job.Name, batchv1.ControllerUidLabel: string(job.UID), "controller-uid": string(job.UID),
		})
		failed = cmp.Or(failed, errors.Wrapf(c.Create(ctx, pod), "creating a Pod of Job %s", job.Name))
	}
	for _, pod := range byDeletion(active)[:max(0, int32(len(active))-max(0, wanted))] {
		failed = cmp.Or(failed, remove(ctx, c, pod))
	}
	return cmp.Or(failed, setStatus(ctx, c, job, func(job *batchv1.Job) {
		status := &job.Status
		status.Active, status.Ready, status.Terminating = int32(len(active))+max(0, short), ptr.To(ready(active)), &terminating
		status.Succeeded, status.Failed = int32(len(succeeded)), max(status.Failed, failedPods)
		if status.StartTime == nil {
			status.StartTime = ptr.To(now())
		}
		if missing <= 0 && len(active) == 0 {
			status.CompletionTime = ptr.To(now())
			status.Conditions = append(status.Conditions, batchv1.JobCondition{
				Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastProbeTime: now(), LastTransitionTime: now(), Reason: "CompletionsReached",
			})
		}
	}))
}
