package deployment

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/assignment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestUnscheduled(t *testing.T) {
	const hash = appsv1.DefaultDeploymentUniqueLabelKey
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	unscheduled := func(name, set string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, Labels: map[string]string{"app": "web", hash: "abc"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: types.UID(set), Controller: ptr.To(true)}},
			},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available.",
				LastTransitionTime: metav1.NewTime(begin),
			}}},
		}
	}
	lists, fails := 0, false
	live := fake.NewClientBuilder().WithObjects(unscheduled("another", "another-abc"), unscheduled("web-1", "web-abc")).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string { return []string{pod.(*corev1.Pod).Spec.NodeName} }).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			lists++
			if (&client.ListOptions{}).ApplyOptions(options).Limit > 10 {
				return errors.New("it reads too many Pods")
			}
			if fails {
				return errors.New("the server is currently unable to handle the request")
			}
			return c.List(ctx, list, options...)
		}}).Build()
	readings := expiring.NewMap[types.UID, reading](t.Context())
	after := func(since time.Duration) surge.Unscheduled {
		s := &scope{key: client.ObjectKeyFromObject(d), live: live, readings: readings, observed: surge.Observation{Deployment: d, Now: begin.Add(since)}}
		return s.unscheduled(t.Context())
	}

	t.Run("E68: lists the Pods of a Deployment once in 30 s, whatever the number of events", func(t *testing.T) {
		g := NewWithT(t)
		for i := range 10 {
			got := after(time.Duration(i) * 100 * time.Millisecond)
			g.Expect(got.Since).To(BeTemporally("==", begin))
			got.Since = begin
			g.Expect(got).To(Equal(surge.Unscheduled{Pod: "web-1", Message: "0/2 nodes are available", Since: begin, ReadAt: begin}))
		}
		after(30*time.Second - 1)
		g.Expect(lists).To(Equal(1))
		g.Expect(after(30 * time.Second).ReadAt).To(Equal(begin.Add(30 * time.Second)))
		g.Expect(lists).To(Equal(2))
	})
	t.Run("E68: keeps the last reading while reading fails, and tries once in 30 s", func(t *testing.T) {
		g := NewWithT(t)
		fails = true
		for i := range 10 {
			g.Expect(after(time.Minute + time.Duration(i)*time.Second)).To(And(HaveField("Pod", "web-1"), HaveField("ReadAt", begin.Add(30*time.Second))))
		}
		g.Expect(lists).To(Equal(3))
		fails = false
		g.Expect(after(90 * time.Second).ReadAt).To(Equal(begin.Add(90 * time.Second)))
	})
}

func TestObserveSurge(t *testing.T) {
	t.Run("E77: finds a marked Pod whose drain was cancelled before the watch has delivered the mark", func(t *testing.T) {
		g := NewWithT(t)
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
		b := &surge.Baseline{Deployment: d.UID, Replicas: 1, Surged: 3, Pods: []surge.PodRef{{Name: "stays", UID: "stays"}, {Name: "moves", UID: "moves"}}}
		surge.SetBaseline(d, b)
		pod := func(name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
		}
		stays, moves := pod("stays"), pod("moves")
		watched := cached{pods: map[types.UID]*corev1.Pod{stays.UID: stays.DeepCopy(), moves.UID: moves.DeepCopy()}}
		surge.Mark(stays)
		s := &scope{
			key: client.ObjectKeyFromObject(d), live: fake.NewClientBuilder().WithObjects(stays, moves).Build(), finder: assignment.Finder{Observation: watched},
			assignments: map[types.UID]assignment.Assignment{moves.UID: {Pod: watched.pods[moves.UID]}}, observed: surge.Observation{Deployment: d},
		}
		g.Expect(s.observeSurge(t.Context(), b)).To(Succeed())
		g.Expect(s.observed.Marked).To(Equal([]surge.PodRef{{Name: "stays", UID: "stays"}}))
	})
}

func TestAnswerOfProxy(t *testing.T) {
	proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", appsv1.Resource("deployments"), "web", "404 page not found", 0, true)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
	live := interceptor.NewClient(fake.NewClientBuilder().WithObjects(d).Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return proxy
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return proxy
		},
	})
	t.Run("E25: that a proxy answers 404 does not mean that the Deployment does not exist", func(t *testing.T) {
		s := &scope{key: client.ObjectKeyFromObject(d), live: live}
		NewWithT(t).Expect(s.observe(t.Context())).To(MatchError(proxy))
	})
	t.Run("E25: a write that a proxy answers with 404 fails, so that it is repeated", func(t *testing.T) {
		g, changed, s := NewWithT(t), d.DeepCopy(), &scope{
			key: client.ObjectKeyFromObject(d), live: live, findAgain: (&present{WithWatch: fakes.Client()}).finder, observed: surge.Observation{Deployment: d},
		}
		changed.Spec.Replicas = ptr.To[int32](1)
		_, err := (&Reconciler{}).apply(t.Context(), s, surge.Decision{Deployment: changed})
		g.Expect(err).To(MatchError(proxy))
		g.Expect(s.changePod(t.Context(), &corev1.Pod{}, surge.Mark)).To(MatchError(proxy))
	})
}

func TestRefusedWrite(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	refuses := apierrors.NewForbidden(appsv1.Resource("deployments"), "web", errors.New("not by hand"))
	conflict := apierrors.NewConflict(appsv1.Resource("deployments"), "web", errors.New("modified"))
	fails := apierrors.NewInternalError(errors.New("failed calling webhook"))
	webhook := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: code, Reason: reason, Message: `admission webhook "w" denied the request: no`,
			Details: &metav1.StatusDetails{Kind: "deployments", Name: "web"},
		}}
	}
	type answer struct {
		after time.Duration
		error
	}
	const ended = string(surge.WriteRefused)
	for name, tc := range map[string]struct {
		answers []answer
		reason  string
	}{
		"E92: reports that admission refuses a write of a surge": {[]answer{{0, refuses}, {30 * time.Second, refuses}}, ended},
		"E92: reports the refusals of a webhook with any code": {
			[]answer{{0, webhook(409, "Conflict")}, {30 * time.Second, webhook(429, "")}}, ended,
		},
		"E92: also if it says that nothing exists": {
			[]answer{{0, webhook(404, "NotFound")}, {30 * time.Second, webhook(404, "NotFound")}}, ended,
		},
		"E92: does not report a conflict":                                      {[]answer{{0, conflict}, {30 * time.Second, conflict}}, ""},
		"E92: does not report an internal error":                               {[]answer{{0, fails}, {30 * time.Second, fails}}, ""},
		"E96: does not report the first refusal, long after the last report":   {[]answer{{0, refuses}, {29 * time.Second, refuses}}, ""},
		"E96: counts again after a write that was accepted":                    {[]answer{{0, refuses}, {time.Second, nil}, {31 * time.Second, refuses}}, ""},
		"E96: reports a refusal that lasts, whatever fails between":            {[]answer{{0, refuses}, {time.Second, conflict}, {31 * time.Second, refuses}}, ended},
		"E96: a conflict after the refusals does not say that the surge ended": {[]answer{{0, refuses}, {31 * time.Second, conflict}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, d := NewWithT(t), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
			e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-web"}}
			watched := fakes.Builder(e).WithStatusSubresource(e).Build()
			g.Expect(watched.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			s := &scope{
				key: client.ObjectKeyFromObject(d), observed: surge.Observation{Deployment: d, Now: now}, finder: assignment.Finder{Watched: watched, Now: now},
				assignments: map[types.UID]assignment.Assignment{"pod": {Evacuation: e, Pod: &corev1.Pod{}}}, findAgain: (&present{WithWatch: watched}).finder,
			}
			r := &Reconciler{Clusters: &workload.Clusters{}, Clock: clock.RealClock{}, refused: expiring.NewMap[types.UID, time.Time](t.Context())}
			for _, each := range tc.answers {
				s.observed.Now = now.Add(each.after)
				s.live = interceptor.NewClient(fakes.Client(), interceptor.Funcs{
					Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
						return each.error
					},
				})
				_, err := r.apply(t.Context(), s, surge.Decision{
					Deployment: d, Serves: []surge.Leaving{{PodRef: surge.PodRef{UID: "pod"}, Progress: now.Add(-time.Hour)}},
				})
				g.Expect(errors.Is(err, each.error)).To(BeTrue())
			}
			g.Expect(watched.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			refused, _ := surge.RefusedIn(e)
			g.Expect(string(refused.Refusal)).To(Equal(tc.reason))
			g.Expect(e.Status.ActiveEvacuatorCompleted).To(Equal(tc.reason != ""))
		})
	}
}

func TestObserveUnready(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		status corev1.ConditionStatus
		since  time.Duration
		want   bool
	}{
		"E24: a Pod is unready if the API server says so":                           {corev1.ConditionFalse, 30 * time.Second, true},
		"E24: a Pod is not unready if it was ready a moment ago":                    {corev1.ConditionFalse, 29 * time.Second, false},
		"E24: a Pod is not unready if the watch has not delivered that it is ready": {corev1.ConditionTrue, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, d := NewWithT(t), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
			ref := surge.PodRef{Name: "old", UID: "old"}
			b := &surge.Baseline{Deployment: d.UID, Replicas: 1, Surged: 2, Pods: []surge.PodRef{ref}}
			surge.SetBaseline(d, b)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old", UID: "old"}}
			live := pod.DeepCopy()
			live.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: tc.status, LastTransitionTime: metav1.NewTime(now.Add(-tc.since))}}
			s := &scope{
				key: client.ObjectKeyFromObject(d), live: fake.NewClientBuilder().WithObjects(live).Build(),
				assignments: map[types.UID]assignment.Assignment{pod.UID: {Pod: pod}},
				observed:    surge.Observation{Deployment: d, Leaving: []surge.Leaving{{PodRef: ref, Progress: now, Deadline: now.Add(time.Hour)}}, Now: now},
			}
			g.Expect(s.observeSurge(t.Context(), b)).To(Succeed())
			g.Expect(s.observed.Leaving[0].Unready).To(Equal(tc.want))
		})
	}
}

// cached contains the Pods that the watch has delivered.
type cached struct {
	workload.Observation
	pods map[types.UID]*corev1.Pod
}

func (c cached) PodByUID(uid types.UID) (*corev1.Pod, bool) {
	pod, found := c.pods[uid]
	return pod, found
}

func (cached) DaemonSetExists(string, string, types.UID) (exists, known bool) { return false, true }
func (cached) NamespaceLabels(string) (map[string]string, bool)               { return nil, true }

func TestMarkedPods(t *testing.T) {
	for name, tc := range map[string]struct {
		completed, later  bool
		abandoned, passed int
	}{
		"E24: the evacuator is active":                           {},
		"E77: the Pod is to be evicted":                          {completed: true, abandoned: 1},
		"E77, E87: a later evacuator is to remove the Pod":       {completed: true, later: true, passed: 1},
		"E24: a later evacuator is not tried while it is active": {later: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewWithT(t), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "web-abc-1", UID: "pod", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "abc"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", Controller: ptr.To(true)}},
				},
				Spec: corev1.PodSpec{NodeName: "n"},
			}
			surge.Mark(pod)
			e := evacuation.New(pod, nil, 1800)
			e.CreationTimestamp, e.Status.ActiveEvacuatorClass = metav1.NewTime(now), ptr.To(v1alpha1.EvacuatorClassDeployment)
			e.Status.ActiveEvacuatorCompleted = tc.completed
			if tc.later {
				e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: "later.example.com", Priority: 1}}
			}
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("n")},
			}
			found := &present{
				WithWatch: fakes.Client(e, m, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}), pods: cached{pods: map[types.UID]*corev1.Pod{"pod": pod}}, now: now,
			}
			s := &scope{key: types.NamespacedName{Namespace: "shop", Name: "web"}, assignments: map[types.UID]assignment.Assignment{}}
			s.finder, _ = found.finder()
			g.Expect(s.findPodsToReplace(t.Context())).To(BeTrue())
			g.Expect(s.observed.Abandoned).To(HaveLen(tc.abandoned))
			g.Expect(s.observed.Passed).To(HaveLen(tc.passed))
			g.Expect(s.observed.Leaving).To(HaveLen(1 - tc.abandoned - tc.passed))
		})
	}
}
