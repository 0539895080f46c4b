package statefulset

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/assignment"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestRead(t *testing.T) {
	t.Run("E37: reads the Pods that the selector of a StatefulSet selects in pages, and keeps its own", func(t *testing.T) {
		g := NewWithT(t)
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "db", UID: "db"}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"any": "pod"}}
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}
		lists := 0
		live := interceptor.NewClient(fakes.Client(set), interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				lists++
				applied := client.ListOptions{}
				applied.ApplyOptions(options)
				g.Expect(applied.Limit).To(BeNumerically("==", podsPage))
				g.Expect(applied.Continue).To(Equal([]string{"", "more"}[lists-1]))
				page := list.(*corev1.PodList)
				page.Continue = []string{"more", ""}[lists-1]
				page.Items = []corev1.Pod{{}, {ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("db-%d", lists), OwnerReferences: []metav1.OwnerReference{owner}}}}
				return nil
			},
		})
		_, pods, err := read(t.Context(), live, client.ObjectKeyFromObject(set))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveExactElements(HaveField("Name", "db-1"), HaveField("Name", "db-2")))
	})
	t.Run("E25, E28: that a proxy answers 404 does not mean that the StatefulSet does not exist, so that its Pods need no order", func(t *testing.T) {
		proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", appsv1.Resource("statefulsets"), "db", "404 page not found", 0, true)
		live := interceptor.NewClient(fakes.Client(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return proxy
			},
		})
		_, _, err := read(t.Context(), live, client.ObjectKey{Namespace: "tenant", Name: "db"})
		NewWithT(t).Expect(err).To(MatchError(proxy))
	})
}

func TestObserve(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		assigned          assignment.Assignment
		waiting, evicting int
	}{
		"E28: a Pod for which the evacuator is active waits":                {assignment.Assignment{}, 1, 0},
		"E28: a Pod for which the evacuator has completed is being evicted": {assignment.Assignment{Expired: true}, 0, 1},
		"E87: a Pod for which a later evacuator is active is being evicted": {assignment.Assignment{Passed: true}, 0, 1},
		"M16: a suspended Pod neither waits nor is being evicted":           {assignment.Assignment{Suspended: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tc.assigned.Pod, tc.assigned.Evacuation = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-1", UID: "db-1"}}, &v1alpha1.Evacuation{}
			observed, _ := observe(now, []assignment.Assignment{tc.assigned})
			g.Expect(observed.Waiting).To(HaveLen(tc.waiting))
			g.Expect(observed.Evicting).To(HaveLen(tc.evicting))
		})
	}
}

func TestStore(t *testing.T) {
	evacuations := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "evacuations"}
	refusal, conflict := apierrors.NewForbidden(evacuations, "db-0", errors.New("denied by a webhook")), apierrors.NewConflict(evacuations, "db-0", nil)
	for name, tc := range map[string]struct {
		failure           error
		takes             time.Duration
		refused, released bool
	}{
		"E30: releases a Pod also if the API server refuses to report that another one waits for it": {refusal, 0, true, true},
		"E30: releases a Pod also if the API server takes long to refuse that":                       {refusal, time.Minute, true, true},
		"E30, E64: releases a Pod also if a webhook refuses that report with the code of a conflict": {fakes.DeniedWithConflict(), 0, true, true},
		"E28: releases no Pod before others wait for it: an Evacuation that has changed":             {conflict, 0, false, false},
		"E28: releases no Pod before others wait for it: a request without an answer":                {context.DeadlineExceeded, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, byPod, objects := NewWithT(t), map[types.UID]assignment.Assignment{}, []client.Object{}
			clock := clocktesting.NewFakeClock(time.Now())
			for _, pod := range []string{"db-0", "db-1"} {
				e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: pod}}
				objects = append(objects, e)
				byPod[types.UID(pod)] = assignment.Assignment{Evacuation: e}
			}
			watched := fakes.Builder(objects...).WithStatusSubresource(objects...).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, of string, e client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
					if e.GetName() == "db-0" {
						clock.Step(tc.takes)
						return tc.failure
					}
					return c.SubResource(of).Patch(ctx, e, p, options...)
				},
			}).Build()
			for _, each := range byPod {
				g.Expect(watched.Get(t.Context(), client.ObjectKeyFromObject(each.Evacuation), each.Evacuation)).To(Succeed())
			}
			r := &Reconciler{Clock: clock}
			refused, err := r.store(t.Context(), &assignment.Finder{Watched: watched, Now: time.Now()}, byPod, []statefulset.Report{
				{Pod: "db-0", Reason: v1alpha1.ReasonWaitingForHigherOrdinals, Message: "Waiting"}, {Pod: "db-1", Message: "The next one"},
			})
			g.Expect(refused).To(Equal(tc.refused))
			if !refused {
				g.Expect(err).To(MatchError(tc.failure))
			}
			stored := &v1alpha1.Evacuation{}
			g.Expect(watched.Get(t.Context(), client.ObjectKey{Namespace: "tenant", Name: "db-1"}, stored)).To(Succeed())
			g.Expect(stored.Status.ActiveEvacuatorCompleted).To(Equal(tc.released))
		})
	}
}

func TestRequeueAt(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	held, soon, late := now.Add(assignment.HeldInterval), now.Add(time.Second), now.Add(time.Hour)
	for name, tc := range map[string]struct {
		decided   time.Time
		suspended bool
		want      time.Time
	}{
		"M16: a StatefulSet with a suspended Pod is reconciled again without an event":             {time.Time{}, true, held},
		"M16: also if another of its Pods waits for a longer time":                                 {late, true, held},
		"E28: a StatefulSet is reconciled again as decided, if that is earlier":                    {soon, true, soon},
		"E28: a StatefulSet without a suspended Pod is reconciled again as decided":                {late, false, late},
		"E28: a StatefulSet for which nothing is decided is not reconciled again without an event": {time.Time{}, false, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(requeueAt(tc.decided, []assignment.Assignment{{}, {Suspended: tc.suspended}}, now)).To(Equal(tc.want))
		})
	}
}
