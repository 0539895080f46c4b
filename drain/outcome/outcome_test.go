package outcome_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end   = start.Add(5 * time.Minute)

	web  = outcome.Controller{Kind: "Deployment", Namespace: "shop", Name: "web"}
	db   = outcome.Controller{Kind: "StatefulSet", Namespace: "shop", Name: "db"}
	bare = outcome.Controller{Kind: "Pod", Namespace: "shop", Name: "debug"}
	crd  = outcome.Controller{Kind: "StatefulSet.apps.kruise.io", Namespace: "shop", Name: "db"}
)

type change func(*corev1.Pod)

// podOf returns a ready Pod of a controller that was created a minute after the start of the drain.
func podOf(controller outcome.Controller, name string, changes ...change) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: controller.Namespace, Name: name, UID: types.UID(controller.String() + name), CreationTimestamp: metav1.NewTime(start.Add(time.Minute)),
	}}
	pod.Spec.NodeName = "other"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: controller.Kind, Name: controller.Name, Controller: ptr.To(true)}
	switch controller.Kind {
	case "Pod":
		pod.Name = controller.Name
		owner.Kind = ""
	case "Deployment":
		owner.Kind, owner.Name = "ReplicaSet", controller.Name+"-abc"
		pod.Labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "abc"}
	default:
		if kind, group, ok := strings.Cut(controller.Kind, "."); ok {
			owner.APIVersion, owner.Kind = group+"/v1", kind
		}
	}
	if owner.Kind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{owner}
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func isPending(pod *corev1.Pod) {
	pod.Spec.NodeName = ""
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are\navailable \x1b[31m",
	}}
}

func isNotReady(pod *corev1.Pod) {
	pod.Status.Conditions = nil
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"},
	}}}
}

func isOld(pod *corev1.Pod)          { pod.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour)) }
func isFinished(pod *corev1.Pod)     { pod.Status.Phase = corev1.PodSucceeded }
func terminates(pod *corev1.Pod)     { pod.DeletionTimestamp = ptr.To(metav1.NewTime(end)) }
func wants(n int32) map[string]int32 { return map[string]int32{"web": n} }

func begun(evicted int32, controllers ...outcome.Controller) *v1alpha1.DrainOutcome {
	var all []outcome.Evicted
	for _, controller := range controllers {
		all = append(all, outcome.Evicted{Controller: controller, Pods: evicted, Since: start})
	}
	return ptr.To(outcome.Begin(all, 0, 0, end))
}

func TestRead(t *testing.T) {
	for name, tc := range map[string]struct {
		controller outcome.Controller
		evicted    int32
		pods       []*corev1.Pod
		wanted     map[string]int32 // by name; a controller that is missing is not understood
		unread     error
		want       v1alpha1.EvictedPods
		why        string
		complete   bool
	}{
		"M150: Pods that are replaced by ready ones": {
			web, 2, []*corev1.Pod{podOf(web, "a"), podOf(web, "b")}, wants(2), nil, v1alpha1.EvictedPods{Ready: 2}, "", true,
		},
		"M150: a Pod that is replaced by one that is not ready": {
			web, 2, []*corev1.Pod{podOf(web, "a"), podOf(web, "b", isNotReady)}, wants(2), nil,
			v1alpha1.EvictedPods{Ready: 1, NotReady: 1}, "Pod b: container app waits: ImagePullBackOff", false,
		},
		"M150: a Pod whose replacement is Pending, with the text of the scheduler in one line": {
			web, 2, []*corev1.Pod{podOf(web, "a", isNotReady), podOf(web, "b", isPending)}, wants(2), nil,
			v1alpha1.EvictedPods{NotReady: 1, Pending: 1}, "Pod b: 0/3 nodes are available [31m", false,
		},
		"M150: a controller that cannot create a Pod, for example because of a quota": {
			web, 2, []*corev1.Pod{podOf(web, "a"), podOf(web, "old", isOld)}, wants(3), nil,
			v1alpha1.EvictedPods{Ready: 1, NotReplaced: 1}, "The controller has 2 of 3 Pods", false,
		},
		"M150: Pods that existed before are no replacements": {
			db, 1, []*corev1.Pod{podOf(db, "old", isOld)}, map[string]int32{"db": 2}, nil,
			v1alpha1.EvictedPods{NotReplaced: 1}, "The controller has 1 of 2 Pods", false,
		},
		"M150: Pods that terminate or have finished are no replacements": {
			web, 1, []*corev1.Pod{podOf(web, "a", terminates), podOf(web, "b", isFinished)}, wants(1), nil,
			v1alpha1.EvictedPods{NotReplaced: 1}, "The controller has 0 of 1 Pod", false,
		},
		"M150: a controller that was scaled down wants no replacement": {
			web, 2, []*corev1.Pod{podOf(web, "old", isOld)}, wants(1), nil, v1alpha1.EvictedPods{NotNeeded: 2}, "", true,
		},
		"M150: Pods that a rollout or autoscaler adds do not hide that Pods are missing": {
			web, 2, []*corev1.Pod{podOf(web, "a"), podOf(web, "b")}, wants(4), nil,
			v1alpha1.EvictedPods{NotReplaced: 2}, "The controller has 2 of 4 Pods", false,
		},
		"M150: a Pod without a controller is not replaced, and no drain waits for that": {
			bare, 1, []*corev1.Pod{podOf(web, "a")}, nil, nil, v1alpha1.EvictedPods{NotReplaced: 1}, "The Pod has no controller that recreates it", true,
		},
		"M150: a Pod without a controller that was created again with its name": {
			bare, 1, []*corev1.Pod{podOf(bare, "")}, nil, nil, v1alpha1.EvictedPods{Ready: 1}, "", true,
		},
		"M150: a controller of a custom resource has created no Pod": {
			crd, 2, []*corev1.Pod{podOf(crd, "a"), podOf(db, "b")}, nil, nil,
			v1alpha1.EvictedPods{Ready: 1, NotReplaced: 1}, "The controller has not created as many Pods as were evicted", false,
		},
		"M150: what cannot be read is unknown, and not replaced by no Pod": {
			web, 2, nil, wants(2), errors.New("connection refused"), v1alpha1.EvictedPods{Unknown: 2}, "Cannot be read: connection refused", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, got, world := NewWithT(t), begun(tc.evicted, tc.controller), outcome.World{Pods: tc.pods, Wanted: map[outcome.Controller]int32{}}
			if wanted, known := tc.wanted[tc.controller.Name]; known {
				world.Wanted[tc.controller] = wanted
			}
			if tc.unread != nil {
				world.Unread = map[outcome.Controller]error{{Namespace: tc.controller.Namespace}: tc.unread}
			}
			g.Expect(outcome.IsComplete(got)).To(BeFalse(), "not read yet")
			outcome.Read(world, end, got)
			tc.want.Evicted = tc.evicted
			g.Expect(got.Pods).To(Equal(tc.want))
			g.Expect(outcome.IsComplete(got)).To(Equal(tc.complete))
			if tc.why == "" {
				g.Expect(got.Applications).To(BeEmpty(), "it is not read again")
				return
			}
			g.Expect(got.Applications).To(HaveLen(1))
			g.Expect(got.Applications[0].Pods).To(Equal(tc.want))
			g.Expect(got.Applications[0].Why).To(Equal(tc.why))
		})
	}
}

func TestReadOfSeveralDrains(t *testing.T) {
	t.Run("M150: one Pod does not replace those of two drains", func(t *testing.T) {
		g, first, second := NewWithT(t), begun(1, web), begun(1, web)
		second.EndTime = metav1.NewTime(end.Add(time.Second))
		world := outcome.World{Pods: []*corev1.Pod{podOf(web, "a")}, Wanted: map[outcome.Controller]int32{web: 2}}
		outcome.Read(world, end.Add(time.Minute), first, second)
		g.Expect(first.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Ready: 1}))
		g.Expect(second.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1}))

		outcome.Read(world, end.Add(3*time.Minute), first, second) // the first one is not read again
		g.Expect(second.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1}), "the Pod does not count for the second drain now")
	})
	t.Run("M150: the same holds for a controller that does not say how many Pods it wants", func(t *testing.T) {
		g, first, second := NewWithT(t), begun(1, crd), begun(1, crd)
		second.EndTime = metav1.NewTime(end.Add(time.Second))
		world := outcome.World{Pods: []*corev1.Pod{podOf(crd, "a")}}
		for range 2 {
			outcome.Read(world, end.Add(time.Minute), first, second)
			g.Expect(first.Pods.Ready + second.Pods.Ready).To(Equal(int32(1)))
			g.Expect(first.Pods.NotReplaced + second.Pods.NotReplaced).To(Equal(int32(1)))
		}
		world.Pods = append(world.Pods, podOf(crd, "b"))
		outcome.Read(world, end.Add(3*time.Minute), first, second)
		g.Expect(outcome.IsComplete(first) && outcome.IsComplete(second)).To(BeTrue())
		g.Expect(first.Applications).To(BeEmpty())
	})
	t.Run("M150: a replacement that the next drain evicts is missing once", func(t *testing.T) {
		g, first, second := NewWithT(t), begun(1, web), begun(1, web)
		second.EndTime = metav1.NewTime(end.Add(time.Second))
		world := outcome.World{Pods: []*corev1.Pod{podOf(web, "a", isPending)}, Wanted: map[outcome.Controller]int32{web: 1}}
		outcome.Read(world, end.Add(4*time.Minute), first, second)
		g.Expect(outcome.WithoutPlace(first, end.Add(4*time.Minute)) + outcome.WithoutPlace(second, end.Add(4*time.Minute))).To(Equal(int32(1)))
	})
}

func TestStart(t *testing.T) {
	before, after := metav1.NewTime(end.Add(time.Minute)), metav1.NewTime(end.Add(-time.Minute))
	drained := &v1alpha1.DrainOutcome{EndTime: metav1.NewTime(end)}
	for name, test := range map[string]struct {
		outcome *v1alpha1.DrainOutcome
		deleted *metav1.Time
		want    time.Time
	}{
		"no Machine is deleted":                            {drained, nil, start},
		"the Node was not drained before the deletion":     {nil, &before, start},
		"the drain in place had ended before the deletion": {drained, &before, before.Time},
		"the drain of the deletion has ended":              {drained, &after, start},
		"the drain ends in the second of the deletion":     {drained, &drained.EndTime, start},
	} {
		t.Run("M168: "+name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{}
			NewWithT(t).Expect(outcome.Start(m, test.deleted)).To(BeNil())
			m.Status.Outcome = test.outcome
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
			NewWithT(t).Expect(outcome.Start(m, test.deleted)).To(HaveValue(Equal(test.want)))
		})
	}
}

func TestBegin(t *testing.T) {
	t.Run("M151: what an earlier manager has evicted is unknown for good", func(t *testing.T) {
		g, got := NewWithT(t), outcome.Begin([]outcome.Evicted{{Controller: web, Pods: 1, Since: start}}, 0, 3, end)
		g.Expect(got.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 4, Unknown: 4}))
		outcome.Read(outcome.World{Pods: []*corev1.Pod{podOf(web, "a")}, Wanted: map[outcome.Controller]int32{web: 1}}, end, &got)
		g.Expect(got.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 4, Ready: 1, Unknown: 3}))
		g.Expect(got.Message).To(ContainSubstring("The manager was restarted after 3 Pods"))
		g.Expect(outcome.IsComplete(&got)).To(BeFalse())
	})
	t.Run("M151: Pods of more controllers than the list can have are unknown", func(t *testing.T) {
		g := NewWithT(t)
		var evicted []outcome.Evicted
		for i := range outcome.MaxApplications + 2 {
			evicted = append(evicted, outcome.Evicted{Controller: outcome.Controller{Kind: "Job", Namespace: "shop", Name: fmt.Sprint(i)}, Pods: 1, Since: start})
		}
		got := outcome.Begin(evicted, 0, 0, end)
		g.Expect(got.Applications).To(HaveLen(outcome.MaxApplications))
		outcome.Read(outcome.World{Wanted: map[outcome.Controller]int32{evicted[0].Controller: 0}}, end, &got)
		g.Expect(got.Pods).To(Equal(v1alpha1.EvictedPods{
			Evicted: outcome.MaxApplications + 2, NotNeeded: 1, NotReplaced: outcome.MaxApplications - 1, Unknown: 2,
		}))
		g.Expect(got.Message).NotTo(BeEmpty())
	})
	t.Run("M151: a drain that has evicted no Pod is complete once it is read", func(t *testing.T) {
		got := outcome.Begin(nil, 0, 0, end)
		outcome.Read(outcome.World{}, end, &got)
		NewWithT(t).Expect(outcome.IsComplete(&got)).To(BeTrue())
	})
}

func TestController(t *testing.T) {
	t.Run("M150: names of owner references, which are not validated, keep their places in the text", func(t *testing.T) {
		g, pod := NewWithT(t), podOf(db, "a")
		pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "Deployment kube-system/x\n", strings.Repeat("y", 1000)
		controller := outcome.ControllerOf(pod)
		g.Expect(len(controller.String())).To(BeNumerically("<=", 640))
		got := outcome.Begin([]outcome.Evicted{{Controller: controller, Pods: 1, Since: start}}, 0, 0, end)
		g.Expect(outcome.Controllers(&got)).To(ConsistOf(controller))
	})
	t.Run("M150: a ReplicaSet without a Deployment, and kinds of other groups, are different controllers", func(t *testing.T) {
		g, pod := NewWithT(t), podOf(web, "a")
		g.Expect(outcome.ControllerOf(pod)).To(Equal(web))
		pod.Labels = nil
		g.Expect(outcome.ControllerOf(pod)).To(Equal(outcome.Controller{Kind: "ReplicaSet", Namespace: "shop", Name: "web-abc"}))
		g.Expect(outcome.ControllerOf(podOf(crd, "a"))).To(Equal(crd))
	})
}

func TestWanted(t *testing.T) {
	done := []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	for name, tc := range map[string]struct {
		controller outcome.Object
		want       int32
	}{
		"M150: the default of a Deployment":  {&appsv1.Deployment{}, 1},
		"M150: the replicas of a Deployment": {&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}}, 3},
		"M150: a controller that is deleted wants none": {&appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)},
		}, 0},
		"M150: a Job with two of three completions left": {&batchv1.Job{
			Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](5), Completions: ptr.To[int32](3)}, Status: batchv1.JobStatus{Succeeded: 1},
		}, 2},
		"M150: a complete Job wants none":  {&batchv1.Job{Spec: batchv1.JobSpec{Completions: ptr.To[int32](3)}, Status: batchv1.JobStatus{Conditions: done}}, 0},
		"M150: a suspended Job wants none": {&batchv1.Job{Spec: batchv1.JobSpec{Suspend: ptr.To(true), Completions: ptr.To[int32](3)}}, 0},
		"M150: a Job without completions wants none after the first success": {&batchv1.Job{
			Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](5)}, Status: batchv1.JobStatus{Succeeded: 1},
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, known := outcome.Wanted(tc.controller)
			NewWithT(t).Expect([]any{got, known}).To(Equal([]any{tc.want, true}))
		})
	}
}

func TestSchedule(t *testing.T) {
	read := func(o *v1alpha1.DrainOutcome, after time.Duration, pods ...*corev1.Pod) {
		outcome.Read(outcome.World{Pods: pods, Wanted: map[outcome.Controller]int32{web: 1}}, end.Add(after), o)
	}
	times := func(o *v1alpha1.DrainOutcome, pods ...*corev1.Pod) (minutes []int) {
		for now := end; !now.IsZero(); now = outcome.Next(o, now) {
			if outcome.Due(o, now) {
				minutes = append(minutes, int(now.Sub(end).Minutes()))
				read(o, now.Sub(end), pods...)
			}
		}
		return minutes
	}
	t.Run("M151: is read at the end of the drain, and 1, 3 and 10 minutes later", func(t *testing.T) {
		NewWithT(t).Expect(times(begun(1, web), podOf(web, "a"))).To(Equal([]int{0, 1, 3, 10}))
	})
	t.Run("M151: is read for an hour while a Pod has no place", func(t *testing.T) {
		NewWithT(t).Expect(times(begun(1, web), podOf(web, "a", isPending))).To(Equal([]int{0, 1, 3, 10, 20, 30, 40, 50, 60}))
	})
	t.Run("M151: is read once after a restart that lasted for several readings", func(t *testing.T) {
		g, o := NewWithT(t), begun(1, web)
		read(o, 0, podOf(web, "a", isPending))
		g.Expect(outcome.Due(o, end.Add(30*time.Second))).To(BeFalse())
		g.Expect(outcome.Due(o, end.Add(12*time.Minute))).To(BeTrue())
		read(o, 12*time.Minute, podOf(web, "a", isPending))
		g.Expect(outcome.Due(o, end.Add(12*time.Minute))).To(BeFalse())
		g.Expect(outcome.Next(o, end.Add(12*time.Minute))).To(Equal(end.Add(20 * time.Minute)))
	})
	t.Run("M153: a Pod counts as without a place after three minutes, until nothing is read any more", func(t *testing.T) {
		g, o := NewWithT(t), begun(1, web)
		read(o, time.Minute, podOf(web, "a", isPending))
		g.Expect(outcome.WithoutPlace(o, end.Add(time.Minute))).To(BeZero())
		read(o, 3*time.Minute, podOf(web, "a", isPending))
		g.Expect(outcome.WithoutPlace(o, end.Add(3*time.Minute))).To(Equal(int32(1)))
		g.Expect(outcome.WithoutPlace(o, end.Add(70*time.Minute))).To(BeZero())
	})
}
