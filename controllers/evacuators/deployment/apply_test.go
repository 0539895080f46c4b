package deployment

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/assignment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestRefusedReport(t *testing.T) {
	for name, tc := range map[string]struct {
		refused  []string
		writes   bool
		complete bool
	}{
		"E92: writes when the reports are stored":                              {nil, true, true},
		"E92: reports on the other Pods and writes if the first is refused":    {[]string{"a"}, true, false},
		"E92: writes although the report is refused on a Pod of a later round": {[]string{"later"}, true, false},
		"E92: does not write if only that on a Pod of a later round is stored": {[]string{"a", "b"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewWithT(t), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
			var evacuations []client.Object
			decision, assignments := surge.Decision{Recorded: []types.UID{"a", "b"}}, map[types.UID]assignment.Assignment{}
			for _, pod := range []types.UID{"a", "b", "later"} {
				e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(pod)}}
				evacuations, assignments[pod] = append(evacuations, e), assignment.Assignment{Evacuation: e, Pod: &corev1.Pod{}}
				decision.Reports = append(decision.Reports, surge.Report{Pod: pod, Surged: surge.EventSurged, Message: "scaled"})
			}
			watched := fakes.Builder(evacuations...).WithStatusSubresource(evacuations...).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, of string, e client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
					if slices.Contains(tc.refused, e.GetName()) {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "evacuations"}, e.GetName(), nil)
					}
					return c.SubResource(of).Patch(ctx, e, p, options...)
				},
			}).Build()
			for _, e := range evacuations {
				g.Expect(watched.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			}
			s := &scope{
				key: client.ObjectKeyFromObject(d), live: fake.NewClientBuilder().WithObjects(d).Build(), assignments: assignments,
				observed: surge.Observation{Deployment: d, Now: now}, finder: assignment.Finder{Watched: watched, Now: now},
				findAgain: (&present{WithWatch: watched}).finder,
			}
			g.Expect(s.live.Get(t.Context(), s.key, d)).To(Succeed())
			decision.Deployment = d.DeepCopy()
			decision.Deployment.Spec.Replicas = ptr.To[int32](2)
			complete, err := (&Reconciler{Clusters: &workload.Clusters{}, Clock: clock.RealClock{}}).apply(t.Context(), s, decision)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(complete).To(Equal(tc.complete))
			g.Expect(s.live.Get(t.Context(), s.key, d)).To(Succeed())
			g.Expect(d.Spec.Replicas != nil).To(Equal(tc.writes))
			for _, e := range evacuations {
				stored, isRefused := &v1alpha1.Evacuation{}, slices.Contains(tc.refused, e.GetName())
				g.Expect(watched.Get(t.Context(), client.ObjectKeyFromObject(e), stored)).To(Succeed())
				g.Expect(surge.SurgedIn(stored)).To(Equal(map[bool]string{false: surge.EventSurged}[isRefused]))
			}
		})
	}
}

// present is what a finder finds.
type present struct {
	client.WithWatch
	pods       workload.Observation
	pod        *corev1.Pod
	evacuation *v1alpha1.Evacuation
	suspended  suspension
	paused     error
	now        time.Time
}

func (p *present) finder() (assignment.Finder, error) {
	return assignment.Finder{
		Watched: p, Observation: p.pods, Class: v1alpha1.EvacuatorClassDeployment, Suspension: &p.suspended, Now: p.now,
	}, p.paused
}

func TestOutdatedDecision(t *testing.T) {
	paused := errors.New("paused")
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("n")},
	}
	scale := func(d *surge.Decision) { d.Deployment.Spec.Replicas = ptr.To[int32](1) }
	mark := func(d *surge.Decision) { d.Deployment, d.Mark = nil, []surge.PodRef{{Name: "web-abc-1", UID: "pod"}} }
	unmark := func(d *surge.Decision) { d.Deployment, d.Unmark = nil, []surge.PodRef{{Name: "web-abc-1", UID: "pod"}} }
	raise := func(d *surge.Decision) { d.Deployment, d.Autoscaler = nil, &autoscalingv2.HorizontalPodAutoscaler{} }
	report := func(d *surge.Decision) { d.Deployment = nil }
	restore := func(d *surge.Decision) { scale(d); d.Recorded = []types.UID{"pod"} }
	begin := func(d *surge.Decision) { restore(d); d.Serves = []surge.Leaving{{PodRef: surge.PodRef{UID: "pod"}}} }
	refuse := func(d *surge.Decision) {
		scale(d)
		d.Reports[0] = surge.Report{Refusal: surge.Edited, Message: "edited"}
	}
	refuseAll := func(d *surge.Decision) {
		refuse(d)
		d.Reports = append(d.Reports, surge.Report{Pod: "other", Refusal: surge.Edited, Message: "edited"})
	}
	nothing, resume := func(*present) {}, func(p *present) { p.suspended = false }
	suspend, pause := func(p *present) { p.suspended = true }, func(p *present) { p.paused = paused }
	cancel := func(p *present) { _ = p.Delete(context.Background(), m.DeepCopy()) }
	withdraw := func(p *present) {
		_ = p.Patch(context.Background(), p.evacuation.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	}
	evict, forget := func(p *present) { p.pod.DeletionTimestamp = new(metav1.Now()) }, func(p *present) { p.pods = nil }
	expire := func(p *present) { p.now = p.now.Add(time.Hour) }
	lose := func(p *present) { // as if the API server had refused the report
		e := &v1alpha1.Evacuation{}
		_ = p.Get(context.Background(), client.ObjectKeyFromObject(p.evacuation), e)
		e.Status, p.suspended = p.evacuation.Status, true
		_ = p.Status().Update(context.Background(), e)
	}
	later := func(p *present) {
		p.evacuation.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: "later.example.com", Priority: 1}}
	}
	for name, tc := range map[string]struct {
		decide           func(*surge.Decision)
		before, during   func(*present)
		writes, complete bool
		marked           bool
	}{
		"M16: a Deployment is scaled":                                            {scale, nothing, nothing, true, true, false},
		"M16: a Deployment is not scaled after a Machine was paused":             {scale, nothing, suspend, false, false, false},
		"M16: a Deployment is not scaled after the Cluster was paused":           {scale, nothing, pause, false, false, false},
		"M16: an autoscaler is not changed after a Machine was paused":           {raise, nothing, suspend, false, false, false},
		"M16: a Pod is not marked after a Machine was paused":                    {mark, nothing, suspend, false, false, false},
		"M16: a Pod is not unmarked after a Machine was paused":                  {unmark, nothing, suspend, false, false, true},
		"M16: a decision that writes nothing else is complete after a pause":     {report, nothing, suspend, false, true, false},
		"M160: a Deployment is scaled although the drain of a Pod is suspended":  {scale, suspend, nothing, true, true, false},
		"M160: a Deployment is scaled although such a drain continues":           {scale, suspend, resume, true, true, false},
		"E77: a Deployment is not scaled after the drain of a Pod was cancelled": {scale, nothing, cancel, false, false, false},
		"E77: a Deployment is not scaled while its Pods are not observed":        {scale, nothing, forget, false, false, false},
		"E25: a Deployment is not scaled after a Pod has terminated":             {scale, nothing, evict, false, false, false},
		"E25: a Deployment is not scaled after a progress deadline":              {scale, nothing, expire, false, false, false},
		"E87: a Deployment is not scaled when a later evacuator is next":         {scale, later, expire, false, false, false},
		"E97: a lost surge is scaled back although the drain was cancelled":      {restore, nothing, withdraw, true, true, false},
		"E97: a lost surge is not scaled back after a Machine was paused":        {restore, nothing, suspend, false, false, false},
		"E77: a Deployment is not scaled up after the drain was cancelled":       {begin, nothing, withdraw, false, false, false},
		"E25: a Deployment is scaled although a refused Pod is evicted":          {refuse, nothing, evict, true, true, false},
		"E25: a Deployment is scaled although a refused Pod is then paused":      {refuseAll, nothing, suspend, true, true, false},
		"M160: a surge does not end in a pause if the report is not stored":      {refuseAll, nothing, lose, false, false, false},
	} {
		t.Run(name+", while reports are stored", func(t *testing.T) {
			g, found := NewWithT(t), &present{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
			found.pod = &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "web-abc-1", UID: "pod", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "abc"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", Controller: ptr.To(true)}},
				},
				Spec: corev1.PodSpec{NodeName: "n"},
			}
			live, other := found.pod.DeepCopy(), found.pod.DeepCopy()
			if tc.marked {
				surge.Mark(live)
			}
			other.Name, other.UID = "web-abc-2", "other"
			found.pods = cached{pods: map[types.UID]*corev1.Pod{"pod": found.pod, "other": other}}
			e, later := evacuation.New(found.pod, nil, 1800), evacuation.New(other, nil, 1800)
			e.CreationTimestamp, later.CreationTimestamp = metav1.NewTime(found.now), metav1.NewTime(found.now.Add(time.Hour))
			e.Status.ActiveEvacuatorClass = ptr.To(v1alpha1.EvacuatorClassDeployment)
			later.Status, found.evacuation = e.Status, e
			tc.before(found)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			found.WithWatch = fakes.Builder(e, later, m.DeepCopy(), node).WithStatusSubresource(e).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, of string, e client.Object, p client.Patch, o ...client.SubResourcePatchOption) error {
					defer tc.during(found)
					return c.SubResource(of).Patch(ctx, e, p, o...)
				},
			}).Build()
			s := &scope{
				key: client.ObjectKeyFromObject(d), live: fake.NewClientBuilder().WithObjects(d, live).Build(), findAgain: found.finder,
				assignments: map[types.UID]assignment.Assignment{}, observed: surge.Observation{Now: found.now},
			}
			s.finder, _ = s.findAgain()
			g.Expect(s.findPodsToReplace(t.Context())).To(BeTrue())
			g.Expect(s.observed.Leaving).To(HaveLen(2))
			g.Expect(s.live.Get(t.Context(), s.key, d)).To(Succeed())
			g.Expect(s.live.Get(t.Context(), client.ObjectKeyFromObject(live), live)).To(Succeed())
			found.pod.ResourceVersion, s.observed.Deployment = live.ResourceVersion, d
			decision := surge.Decision{Deployment: d.DeepCopy(), Reports: []surge.Report{{Surged: surge.EventCompleted, Message: "completed"}}}
			tc.decide(&decision)
			decision.Reports[0].Pod = "pod"
			complete, err := (&Reconciler{Clusters: &workload.Clusters{}, Clock: clock.RealClock{}}).apply(t.Context(), s, decision)
			g.Expect(errors.Is(err, found.paused)).To(BeTrue())
			g.Expect(complete).To(Equal(tc.complete))
			after, afterPod := &appsv1.Deployment{}, &corev1.Pod{}
			g.Expect(s.live.Get(t.Context(), s.key, after)).To(Succeed())
			g.Expect(s.live.Get(t.Context(), client.ObjectKeyFromObject(live), afterPod)).To(Succeed())
			g.Expect(after.ResourceVersion != d.ResourceVersion || afterPod.ResourceVersion != live.ResourceVersion).To(Equal(tc.writes))
		})
	}
}

// suspension suspends all NodeMaintenances or none.
type suspension bool

func (s *suspension) Of(*v1alpha1.NodeMaintenance) bool { return bool(*s) }
func (*suspension) Err() error                          { return nil }
