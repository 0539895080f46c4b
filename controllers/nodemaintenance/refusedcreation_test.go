package nodemaintenance

import (
	"context"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// TestUnansweredCreation: the admission webhook of a tenant hangs for longer than the timeout of the client.
func TestUnansweredCreation(t *testing.T) {
	t.Run("E81: a request for an Evacuation that gets no answer does not keep the drain from its next steps", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		unanswered, requests := &url.Error{Op: "Post", URL: "https://workload", Err: context.DeadlineExceeded}, atomic.Int32{}
		stored := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				if requests.Add(1); object.GetNamespace() == "hangs" {
					return unanswered
				}
				return c.Create(ctx, object, options...)
			},
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				requests.Add(1)
				return unanswered
			},
		}).Build()
		r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(stored, cluster), cluster), Clock: clock.RealClock{}}
		m, targets, pods := maintenanceOf("m", "one"), sets.New[types.UID](), []drainedPod{}
		for _, namespace := range []string{"hangs", "web"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: types.UID(namespace)}, Spec: corev1.PodSpec{NodeName: "one"}}
			pods = append(pods, drainedPod{Pod: planinput.Pod{Type: v1alpha1.PodTypeDefault}, object: pod})
			targets.Insert(pod.UID)
		}
		others := pods[0].object.DeepCopy()
		others.Name, others.UID = "others", "others"
		pods = append(pods, drainedPod{Pod: pods[0].Pod, object: others, evacuation: evacuation.New(others, nil, 0)})
		pods[2].evacuation.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "other"}
		targets.Insert(others.UID)
		s := &scope{
			request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: stored, maintenance: m, before: m.DeepCopy(), now: time.Now(),
			nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}}, cordonErrors: map[string]error{},
			drain: &drainState{pods: map[string][]drainedPod{"one": pods}, budgets: func() *budgets.Index { return budgets.NewIndex(nil, nil) }},
		}
		g.Expect(r.applyTargets(t.Context(), s, targets, nil)).To(Succeed())
		result, err := r.result(s, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(minRefusedRetry))
		failure := r.Clusters.Failures.Record(s.request, errors.New("again"), s.now.Add(time.Second))
		g.Expect(failure.Since).To(BeTemporally("==", s.now), "M57: if the error lasts, the condition of the Machine names it")
		created := &v1alpha1.EvacuationList{}
		g.Expect(stored.List(t.Context(), created)).To(Succeed())
		g.Expect(created.Items).To(ConsistOf(HaveField("Namespace", "web")))
		g.Expect(r.created.unobserved(s.request, "one")).To(HaveLen(2), "E57: each Evacuation may exist")
		g.Expect(s.drain.createErrors).To(And(HaveLen(2), HaveKey(types.UID("hangs")), HaveKey(types.UID("others"))), "the status names the Pods")
		g.Expect(r.applyTargets(t.Context(), s, targets, nil)).To(Succeed())
		g.Expect(requests.Load()).To(BeEquivalentTo(3), "a reconciliation before the next attempt requests nothing")
	})
}

func TestEvacuationThatAWebhookDeniesAsExisting(t *testing.T) {
	t.Run("E64: an Evacuation does not count as created because a webhook says that it exists", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		remote := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				return fakes.DeniedWith(http.StatusConflict, metav1.StatusReasonAlreadyExists)
			},
		}).Build()
		r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(remote, cluster), cluster), Clock: clock.RealClock{}}
		s := &scope{
			request: workload.Request{Cluster: cluster}, client: remote, maintenance: &v1alpha1.NodeMaintenance{}, now: time.Now(),
			drain: &drainState{budgets: func() *budgets.Index { return nil }},
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}, Spec: corev1.PodSpec{NodeName: "node"}}
		g.Expect(r.create(t.Context(), s, drainedPod{object: pod}, time.Time{})).To(Succeed())
		refused, _ := r.created.refusals(s.request, map[types.UID]bool{"web": true})
		g.Expect(refused).To(HaveKey(pod.UID), "the status names the Pod")
	})
}

// TestPodInATerminatingNamespace: its Namespace terminates for long, because an admission webhook refuses the deletion of its Pods.
func TestPodInATerminatingNamespace(t *testing.T) {
	t.Run("M27: a Pod whose Evacuation cannot be created, because its Namespace terminates, is named", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		refusal := apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("evacuations").GroupResource(), "e", errors.New("its namespace is being terminated"))
		refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
		remote := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refusal },
		}).Build()
		r := &Reconciler{
			Clusters: clustersWith(clustercache.NewFakeClusterCache(remote, cluster), cluster),
			Clock:    clock.RealClock{},
		}
		s := &scope{
			request: workload.Request{Cluster: cluster}, client: remote, maintenance: &v1alpha1.NodeMaintenance{}, now: time.Now(),
			drain: &drainState{budgets: func() *budgets.Index { return nil }},
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}, Spec: corev1.PodSpec{NodeName: "node"}}
		g.Expect(r.create(t.Context(), s, drainedPod{object: pod}, time.Time{})).To(Succeed())
		refused, retryAt := r.created.refusals(s.request, map[types.UID]bool{"web": true})
		g.Expect(refused).To(HaveKey(pod.UID), "the status and the condition of the Machine would say only that one Pod is pending")
		g.Expect(retryAt.IsZero()).To(BeFalse(), "it is tried again")
	})
}
