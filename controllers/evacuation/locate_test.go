package evacuation

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// serving is a ClusterCache with a connection to a server.
type serving struct {
	clustercache.ClusterCache
	config *rest.Config
}

func (s serving) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return s.config, nil
}

// servePods serves the lists of Pods of each Node. Its watches deliver nothing.
func servePods(t *testing.T, pods ...*corev1.Pod) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/pods" || r.URL.Query().Has("watch") {
			if r.URL.Query().Has("sendInitialEvents") {
				http.Error(w, "the client falls back to a list", http.StatusBadRequest)
				return
			}
			<-r.Context().Done()
			return
		}
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		for _, pod := range pods {
			if r.URL.Query().Get("fieldSelector") == "spec.nodeName="+pod.Spec.NodeName {
				list.Items = append(list.Items, *pod)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
}

func aPod(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}}
}

// locating returns a Reconciler for a workload cluster with the Nodes a and b, the Pods and an Evacuation.
func locating(t *testing.T, e *v1alpha1.Evacuation, pods ...*corev1.Pod) (*Reconciler, client.Client, workload.Request) {
	t.Helper()
	scheme, request := fakes.Scheme(), workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: client.ObjectKeyFromObject(e)}
	objects := []client.Object{e, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	remote := fakes.Builder(objects...).WithStatusSubresource(e).
		WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(client.Object) []string { return nil }).
		WithIndex(e, "node", func(e client.Object) []string { return []string{e.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]} }).Build()
	management := fakes.Builder().
		WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: request.Cluster.Namespace, Name: request.Cluster.Name}}).Build()
	cache := serving{clustercache.NewFakeClusterCache(remote, request.Cluster), servePods(t, pods...)}
	r := &Reconciler{
		Clusters:     workload.NewClusters(management, cache, scheme, workload.Limits{}, clock.RealClock{}),
		Maintenances: &machinemaintenance.Requester{Client: management},
		Written:      expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim), Clock: clock.RealClock{},
		goneSince: expiring.NewMap[types.UID, time.Time](t.Context()), nextRead: expiring.NewMap[types.UID, time.Time](t.Context()),
	}
	t.Cleanup(func() { r.Clusters.Disconnect(request.Cluster) })
	return r, remote, request
}

func TestRecordedNode(t *testing.T) {
	for name, tc := range map[string]struct{ recorded, now string }{
		"E39: corrects the annotation of an Evacuation that names another watched Node": {"b", "a"},
		"E39: keeps an annotation that names the Node of the Pod":                       {"a", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			g, pod := NewWithT(t), aPod("on-a", "a")
			e := evacuation.New(pod, nil, 0)
			e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: tc.recorded}
			r, remote, request := locating(t, e, pod, aPod("on-b", "b"))
			observation, err := r.Clusters.Observe(t.Context(), request.Cluster, "another", "a", "b")
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func() bool {
				_, a := observation.PodsOn("a")
				_, b := observation.PodsOn("b")
				return a && b
			}).WithTimeout(time.Minute).Should(BeTrue())
			_, err = r.Reconcile(t.Context(), request)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.Get(t.Context(), request.Object, e)).To(Succeed())
			g.Expect(e.Annotations).To(HaveKeyWithValue(v1alpha1.EvacuationNodeAnnotation, tc.now))
		})
	}
}

func TestEvacuationThatABackupRestores(t *testing.T) {
	t.Run("R73: a deleted Evacuation that the API server has again is reconciled after ten minutes at most", func(t *testing.T) {
		g, pod := NewWithT(t), aPod("on-a", "a")
		e := evacuation.New(pod, nil, 0)
		r, remote, request := locating(t, e, pod)
		g.Expect(remote.Get(t.Context(), request.Object, e)).To(Succeed())
		r.Written.RecordDeleted(request.Cluster, e)
		result, err := r.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(expectations.TTL))
	})
}

func TestPodsWithoutANode(t *testing.T) {
	for name, tc := range map[string]struct {
		pod       *corev1.Pod
		withdrawn bool
		age       time.Duration // of the Evacuation
		want      time.Duration // until the Pod is read again
	}{
		"E37: watches no Pods for one that is not scheduled, and reads it after a minute": {pod: aPod("pending", ""), want: time.Minute},
		"E37: and reads it every 15 minutes at most":                                      {pod: aPod("pending", ""), age: time.Hour, want: 15 * time.Minute},
		"E9: cancels the Evacuation of a Pod that is not scheduled":                       {pod: aPod("pending", ""), withdrawn: true},
		"E9: cancels the Evacuation of a Pod whose Node does not exist":                   {pod: aPod("lost", "deleted"), withdrawn: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := evacuation.New(tc.pod, nil, 0)
			e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: tc.pod.Spec.NodeName}
			e.CreationTimestamp = metav1.NewTime(time.Now().Add(-tc.age))
			if tc.withdrawn {
				e.Finalizers = nil
			}
			r, remote, request := locating(t, e, tc.pod)
			result, err := r.Reconcile(t.Context(), request)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Clusters.Observes(request.Cluster, tc.pod.Spec.NodeName)).To(BeFalse())
			if err := remote.Get(t.Context(), request.Object, e); tc.withdrawn {
				g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
			} else {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(result.RequeueAfter).To(Equal(tc.want))
			}
		})
	}
}

func TestReadsOfPodsWithoutANode(t *testing.T) {
	t.Run("E37: events that affect all Pods of the workload cluster cause no more reads of a Pod that is not scheduled", func(t *testing.T) {
		g, pod := NewWithT(t), aPod("pending", "")
		e := evacuation.New(pod, nil, 0)
		e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: ""}
		e.CreationTimestamp = metav1.Now()
		r, _, request := locating(t, e, pod)
		reads := 0
		remote := fakes.Builder(e, pod).WithStatusSubresource(e).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if _, is := object.(*corev1.Pod); is {
					reads++
				}
				return c.Get(ctx, key, object, options...)
			},
		}).WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(client.Object) []string { return nil }).Build()
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: request.Cluster.Namespace, Name: request.Cluster.Name}}
		management := fakes.Builder().WithObjects(cluster).Build()
		r.Clusters = workload.NewClusters(management, serving{clustercache.NewFakeClusterCache(remote, request.Cluster), servePods(t)},
			fakes.Scheme(), workload.Limits{}, clock.RealClock{})
		for range 10 { // a tenant creates a DaemonSet: workload.AllPodsAffected enqueues all Evacuations, every five seconds
			result, err := r.Reconcile(t.Context(), request)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
		}
		g.Expect(reads).To(Equal(1), "it is read after a minute, and then each time after the age of its Evacuation")
	})
}

// A user requests the evacuation of a Pod that has just started. The watch of the Pods of its Node does not have the Pod yet: an API server
// may serve its first list from a cache that lags, and the watch of a busy API server lags, too.
func TestPodThatTheWatchHasNotDelivered(t *testing.T) {
	for name, watched := range map[string]bool{
		"E2: the Evacuation of a Pod that exists stays, although the first list of its Node does not contain the Pod": false,
		"E2: the Evacuation of a Pod that exists stays, although the watch of its Node has not delivered the Pod":     true,
	} {
		t.Run(name, func(t *testing.T) {
			g, pod := NewWithT(t), aPod("new", "a")
			e := evacuation.New(pod, nil, 0)
			e.UID, e.OwnerReferences, e.Finalizers = "evacuation", nil, []string{v1alpha1.InstigatorFinalizerPrefix + "user.example.com"}
			e.CreationTimestamp = metav1.Now()
			r, remote, request := locating(t, e)
			g.Expect(remote.Create(t.Context(), pod)).To(Succeed())
			clock := clocktesting.NewFakeClock(time.Now())
			r.Clock = clock
			listed := func() bool {
				observation := r.Clusters.CurrentObservation(request.Cluster)
				if observation == nil {
					return false
				}
				_, known := observation.PodsOn("a")
				return known
			}
			if watched { // for another Evacuation
				_, err := r.Clusters.Observe(t.Context(), request.Cluster, "another", "a")
				g.Expect(err).NotTo(HaveOccurred())
				g.Eventually(listed).WithTimeout(time.Minute).Should(BeTrue())
			}
			for range 2 { // records the Node, and watches its Pods
				_, err := r.Reconcile(t.Context(), request)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if !watched {
				g.Eventually(listed).WithTimeout(time.Minute).Should(BeTrue())
			}
			for range 3 {
				_, err := r.Reconcile(t.Context(), request)
				g.Expect(err).NotTo(HaveOccurred())
				clock.Step(evacuation.AwaitCollectionFor)
			}
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(remote.Get(t.Context(), request.Object, e)).To(Succeed(), "its Pod exists")
			g.Expect(e.DeletionTimestamp).To(BeNil())
		})
	}
}
