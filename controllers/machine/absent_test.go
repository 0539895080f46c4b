package machine

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestNodeThatIsNotInTheCache(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
	outOfService := node.DeepCopy()
	outOfService.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	outOfService.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	for name, tc := range map[string]struct {
		cached, stored []client.Object
		want           action
	}{
		"M109: does not release the Machine of a Node that the watch has not delivered": {nil, []client.Object{node}, proceed},
		"M54: releases the Machine of a Node that does not exist":                       {nil, nil, release},
		"M109: does not release the Machine of a Node that was out of service":          {[]client.Object{outOfService}, []client.Object{node}, proceed},
		"M81: releases the Machine of a Node that is out of service":                    {[]client.Object{outOfService}, []client.Object{outOfService}, release},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cached := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.cached...).Build()
			stored := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.stored...).Build()
			r := readingThrough(clustercache.NewFakeClusterCache(stored, clusterKey))
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), client: cached}
			g.Expect(r.find(t.Context(), s)).To(Succeed())
			result, err := r.refuseFound(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(tc.want))
		})
	}
}

// TestNotFoundOfAProxy is about a 404 that is not the answer of an API server.
func TestNotFoundOfAProxy(t *testing.T) {
	remote := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).Build(), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, schema.GroupResource{}, key.Name, "default backend - 404", 0, true)
		},
	})
	t.Run("M109: says nothing about the Node of a Machine", func(t *testing.T) {
		r := readingThrough(clustercache.NewFakeClusterCache(remote, clusterKey))
		s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), client: remote}
		NewWithT(t).Expect(r.find(t.Context(), s)).NotTo(Succeed())
	})
	t.Run("M109: says nothing about the NodeMaintenance of a Machine whose drain was held by hooks", func(t *testing.T) {
		s := &scope{machine: deletedMachine(), cluster: provisionedCluster()}
		s.machine.Annotations[v1alpha1.DrainHeldAnnotation] = time.Now().Format(time.RFC3339)
		node := nodeOf(s.machine)
		node.Name = s.machine.Status.NodeRef.Name
		cached := workloadCluster().WithObjects(node).Build()
		s.client = cached
		r := readingThrough(clustercache.NewFakeClusterCache(interceptor.NewClient(cached, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if _, is := object.(*v1alpha1.NodeMaintenance); is {
					return remote.Get(ctx, key, object, options...)
				}
				return c.Get(ctx, key, object, options...)
			},
		}), clusterKey))
		NewWithT(t).Expect(r.find(t.Context(), s)).NotTo(Succeed(), "the drain counts as one that has not begun")
	})
	t.Run("M109: says nothing about its volumes", func(t *testing.T) {
		_, err := readOne(t.Context(), remote, types.NamespacedName{Namespace: "default", Name: "claim"}, &corev1.PersistentVolumeClaim{})
		NewWithT(t).Expect(err).To(HaveOccurred())
	})
}

func TestNodeWhoseProviderIDIsNotInTheCache(t *testing.T) {
	unidentified := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node := unidentified.DeepCopy()
	node.Spec.ProviderID = "cloud://m"
	for name, tc := range map[string]struct {
		cached, stored *corev1.Node
		want           string
	}{
		"M109: finds the Node whose provider ID the watch has not delivered": {unidentified, node, "node"},
		"M54: finds no Node if none has the provider ID":                     {unidentified, unidentified, ""},
		"M54: finds the Node that the watch has delivered":                   {node, unidentified, "node"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			of := func(node *corev1.Node) client.Client {
				return fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node.DeepCopy()).Build()
			}
			r := readingThrough(clustercache.NewFakeClusterCache(of(tc.stored), clusterKey))
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster()}
			s.machine.Status.NodeRef, s.machine.Spec.ProviderID = clusterv1.MachineNodeReference{}, "cloud://m"
			g.Expect(r.findNodeIn(t.Context(), s, of(tc.cached))).To(Succeed())
			g.Expect(s.machine.Status.NodeRef.Name).To(Equal(tc.want))
		})
	}
}

func TestNodeLookupWithoutAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error
		want   string // the reason of the condition, empty if the step fails
	}{
		"M54: waits for an API server that does not answer": {context.DeadlineExceeded, v1alpha1.ReasonWaitingForWorkloadCluster},
		"M39: fails if the API server refuses the list":     {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			remote := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).Build(), interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
					return tc.answer
				},
			})
			r := readingThrough(clustercache.NewFakeClusterCache(remote, clusterKey))
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), now: time.Now().Add(time.Hour)}
			s.machine.Status.NodeRef, s.machine.Spec.ProviderID = clusterv1.MachineNodeReference{}, "cloud://m"
			result, err := r.findNode(t.Context(), s)
			g.Expect(err == nil).To(Equal(tc.want != ""))
			g.Expect(result.reason).To(Equal(tc.want))
		})
	}
}

func TestPodThatIsNotInTheCache(t *testing.T) {
	on := func(node, name string) client.Object { // the label stands for spec.nodeName, because the fake client passes only metadata to the index
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"node": node}}}
	}
	pod, elsewhere := func(name string) client.Object { return on("node", name) }, on("two", "elsewhere")
	for name, tc := range map[string]struct {
		stored      []client.Object
		timedOut    func(s *scope, waitedFor string)
		schedulable bool
		want        action
	}{
		"M110: does not release a Machine whose Node has a Pod that the watch has not delivered": {[]client.Object{pod("skipped"), pod("web")}, nil, false, wait},
		"M110: releases it if all Pods of the Node were observed":                                {[]client.Object{pod("skipped"), elsewhere}, nil, false, proceed},
		"M110: releases it if the drain has timed out": {
			[]client.Object{pod("skipped"), pod("web")}, (*scope).drainTimedOut, false, proceed,
		},
		"M110: does not release it if only the wait for volumes has timed out": {[]client.Object{pod("skipped"), pod("web")}, (*scope).volumesTimedOut, false, wait},
		"M110: does not release it while its Node is schedulable":              {[]client.Object{pod("skipped")}, nil, true, wait},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: corev1.NodeSpec{Unschedulable: !tc.schedulable}}
			stored := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(append(tc.stored, node)...).
				WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.GetLabels()["node"]} }).Build()
			r := readingThrough(clustercache.NewFakeClusterCache(stored, clusterKey))
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), node: node, now: time.Now()}
			s.observe(&v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m", Generation: 1}})
			r.Clusters.ConfirmDrained(s.maintenanceRequest(), s.maintenance, "node", false, sets.New[types.UID]("skipped"))
			if tc.timedOut != nil {
				tc.timedOut(s, "a budget or volume")
			}
			result, err := r.confirmPods(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(tc.want))
			g.Expect(result.at.IsZero()).To(Equal(tc.want == proceed), "it is reconciled again")
		})
	}
}

// TestNodeThatIsReachableAgain: its Pod that terminates was overdue while the Node was unreachable, and counted as gone.
func TestNodeThatIsReachableAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		confirmed, cached, stored corev1.ConditionStatus
		want                      action
	}{
		"M110: holds a Machine whose Node is reachable again, until that is observed": {
			corev1.ConditionUnknown, corev1.ConditionUnknown, corev1.ConditionTrue, wait,
		},
		"M110: also until its NodeMaintenance is reconciled":       {corev1.ConditionUnknown, corev1.ConditionTrue, corev1.ConditionTrue, wait},
		"M110: releases it if the Node is unreachable":             {corev1.ConditionUnknown, corev1.ConditionUnknown, corev1.ConditionUnknown, proceed},
		"M110: releases it if the Node was reachable at that time": {corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionTrue, proceed},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: tc.stored}}
			cached := node.DeepCopy()
			cached.Status.Conditions[0].Status = tc.cached
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web", Labels: map[string]string{"node": "node"}}}
			stored := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, pod).
				WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.GetLabels()["node"]} }).Build()
			r := readingThrough(clustercache.NewFakeClusterCache(stored, clusterKey))
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), node: cached, now: time.Now()}
			s.machine.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation] = ""
			s.observe(&v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m", Generation: 1}})
			s.maintenance.Spec.DrainRules = rules.InEffect(&v1alpha1.NodeMaintenanceSpec{})
			r.Clusters.ConfirmDrained(s.maintenanceRequest(), s.maintenance, "node", tc.confirmed == corev1.ConditionUnknown, sets.New(pod.UID))
			result, err := r.awaitVolumesDetached(t.Context(), s) // it reads the Node first
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(proceed))
			result, err = r.confirmPods(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(tc.want))
			g.Expect(result.at.IsZero()).To(Equal(tc.want == proceed), "it is reconciled again")
		})
	}
}

// errConnectionRefused is the error of a request that no API server answers.
var errConnectionRefused error = &url.Error{Op: "Get", URL: "https://workload", Err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}

func TestMaintenanceThatCannotBeDecoded(t *testing.T) {
	g, now := NewWithT(t), time.Now()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	remote := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if _, is := object.(*v1alpha1.NodeMaintenance); is {
				return &setaside.Error{Kind: "NodeMaintenance", Object: key, Err: errors.New("a number is too large")}
			}
			return c.Get(ctx, key, object, options...)
		},
	})
	r := readingThrough(connectedTo(remote, now))
	s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), now: now}
	_, err := r.requestMaintenance(t.Context(), s)
	g.Expect(setaside.Is(err)).To(BeTrue(), "E53, M57: the condition names it, and not a connection that is lost: %v", err)
}

func TestConfirmationThatFails(t *testing.T) {
	now := time.Now()
	refused := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no rule allows it"))
	for name, tc := range map[string]struct {
		answer error
		reason string
	}{
		"a list of its Pods that gets no response": {errConnectionRefused, v1alpha1.ReasonWaitingForWorkloadCluster},
		"a list of its Pods that is refused":       {refused, v1alpha1.ReasonReconcileFailed},
		"a list of its Pods that is not readable":  {errors.New("unexpected end of JSON input"), v1alpha1.ReasonReconcileFailed},
	} {
		t.Run("M57, M110: "+name+" holds a drained Machine, also beyond the timeout of the wait for volumes that has ended", func(t *testing.T) {
			g := NewWithT(t)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: corev1.NodeSpec{Unschedulable: true}}
			remote := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node).Build(), interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
					return tc.answer
				},
			})
			r := readingThrough(connectedTo(remote, now))
			machine := deletedMachine()
			machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
			machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = new(int32(60))
			s := &scope{machine: machine, cluster: provisionedCluster(), node: node, now: now}
			s.observe(&v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m", Generation: 1}})
			s.IsDrained, s.VolumeWaitStart, s.volumesOver = true, new(now.Add(-50*time.Minute)), true // the volumes have detached
			r.blocked.Store(client.ObjectKeyFromObject(machine), block{since: now.Add(-10 * time.Minute)})

			result, err := r.confirmPods(t.Context(), s)
			if err != nil { // as in reportFailure
				result = outcome{action: wait, blind: true, reason: v1alpha1.ReasonReconcileFailed}
			}
			g.Expect(result.blind).To(BeTrue())
			result = r.limit(t.Context(), s, result)
			g.Expect(result.action).To(Equal(wait))
			g.Expect(result.reason).To(Equal(tc.reason))
			g.Expect(result.at).To(BeTemporally(">", now), "it is reconciled again")
			g.Expect(s.drainOver).To(BeFalse())
		})
	}
}

func TestClusterThatIsNotInTheCache(t *testing.T) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
	for name, tc := range map[string]struct {
		stored   []client.Object
		released bool
	}{
		"M109: does not release the Machine of a Cluster that the watch has not delivered": {[]client.Object{cluster}, false},
		"M54: releases the Machine of a Cluster that does not exist":                       {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			byName := func(object client.Object) []string { return []string{object.GetName()} }
			cached := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build()
			r := &Reconciler{
				Client: cached, Recorder: tracing.NewRecorder(t.Context(), nil), Clock: clock.RealClock{}, Maintenances: &machinemaintenance.Requester{},
				APIReader: fake.NewClientBuilder().WithScheme(newScheme()).WithIndex(cluster, "metadata.name", byName).WithObjects(tc.stored...).Build(),
				Clusters:  workload.NewClusters(cached, clustercache.NewFakeEmptyClusterCache(), newScheme(), workload.Limits{}, clock.RealClock{}),
			}
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.IsZero()).To(Equal(tc.released), "it is reconciled again")
			g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			_, hasHook := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
			g.Expect(hasHook).NotTo(Equal(tc.released))
		})
	}
}

// TestDeletionOfTheClusterThatWasUndone: the management cluster was restored from a backup of before the deletion of the Cluster. The watch
// of Machines has listed again, the watch of Clusters has not yet.
func TestDeletionOfTheClusterThatWasUndone(t *testing.T) {
	running := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
	deleting := running.DeepCopy()
	deleting.DeletionTimestamp, deleting.Finalizers = new(metav1.Now()), []string{clusterv1.ClusterFinalizer}
	for name, tc := range map[string]struct {
		stored          []client.Object
		answer          error
		fails, released bool
	}{
		"M109: does not release a Machine because of a deletion of its Cluster that the API server does not know": {stored: []client.Object{running}},
		"M109: does not release it if the API server does not answer": {
			stored: []client.Object{deleting}, answer: apierrors.NewServiceUnavailable("busy"), fails: true,
		},
		"M10: releases it if the API server has the deletion":     {stored: []client.Object{deleting}, released: true},
		"M10: releases it if the Cluster does not exist any more": {released: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			byName := func(object client.Object) []string { return []string{object.GetName()} }
			cached := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, deleting).WithStatusSubresource(machine).Build()
			r := newReconciler(t, cached, clustercache.NewFakeEmptyClusterCache(), clock.RealClock{})
			stored := fake.NewClientBuilder().WithScheme(newScheme()).WithIndex(running, "metadata.name", byName).WithObjects(tc.stored...).Build()
			r.APIReader = interceptor.NewClient(stored, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if tc.answer != nil {
						return tc.answer
					}
					return c.List(ctx, list, options...)
				},
			})
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err != nil).To(Equal(tc.fails), "%v", err)
			g.Expect(result.IsZero()).To(Equal(tc.released || tc.fails), "it is reconciled again")
			g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			for annotation, want := range map[string]bool{
				v1alpha1.PreDrainHookAnnotation: !tc.released, clusterv1.ExcludeNodeDrainingAnnotation: tc.released,
				clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: tc.released,
			} {
				_, has := machine.Annotations[annotation]
				g.Expect(has).To(Equal(want), annotation)
			}
		})
	}
}

func TestInfrastructureThatCannotBeRead(t *testing.T) {
	kind := schema.GroupResource{Group: "infrastructure.cluster.x-k8s.io", Resource: "dockermachines"}
	for name, tc := range map[string]struct {
		answer  error
		missing bool
	}{
		"M109: an infrastructure machine whose kind the API server does not serve is not missing": {
			apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, kind, "m", "404 page not found", 0, true), false,
		},
		"M10: one that does not exist is": {apierrors.NewNotFound(kind, "m"), true},
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme := NewWithT(t), newScheme()
			g.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
			crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
				Name: kind.String(), Labels: map[string]string{clusterv1.GroupVersion.Group + "/v1beta2": "v1beta2"},
			}}
			r := &Reconciler{references: expiring.NewMap[types.UID, referenced](t.Context())}
			r.APIReader = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).Build(), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if _, is := object.(*unstructured.Unstructured); is {
						return tc.answer
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			got, err := r.referenced(t.Context(), deletedMachine(), clusterv1.ContractVersionedObjectReference{APIGroup: kind.Group, Kind: "DockerMachine", Name: "m"})
			g.Expect(err != nil).NotTo(Equal(tc.missing), "%v", err)
			g.Expect(got.missing).To(Equal(tc.missing))
		})
	}
}

func TestReadsOfObjectsThatCannotBeRead(t *testing.T) {
	t.Run("M138: an infrastructure object that cannot be read is read once in five seconds, and its error is known meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, reads := NewWithT(t), 0
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := &Reconciler{references: expiring.NewMap[types.UID, referenced](ctx)}
			r.APIReader = interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).Build(), interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					reads++
					return errors.New("the conversion webhook of the infrastructure provider does not answer")
				},
			})
			ref := clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "DockerMachine", Name: "m"}
			for range 60 { // for a minute
				_, err := r.referenced(t.Context(), deletedMachine(), ref)
				g.Expect(err).To(MatchError(ContainSubstring("does not answer")))
				time.Sleep(time.Second)
			}
			g.Expect(reads).To(Equal(12))
		})
	})
}

func TestRequestWithoutAnAnswer(t *testing.T) {
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	probed := func(after time.Duration, failures int) clustercache.HealthCheckingState {
		return clustercache.HealthCheckingState{LastProbeTime: now.Add(9 * time.Second), LastProbeSuccessTime: now.Add(after), ConsecutiveFailures: failures}
	}
	for name, tc := range map[string]struct {
		state   clustercache.HealthCheckingState
		again   bool // the reconciliation before has failed
		lost    bool // the reconciliation five seconds before has written the condition that names a lost connection
		returns bool
	}{
		"M57: also if none succeeds during the next attempt":                                {state: probed(-time.Second, 0), again: true, returns: true},
		"M57: also if one has succeeded since the condition names a lost connection":        {state: probed(-time.Second, 0), lost: true, returns: true},
		"M15: waits for the connection if none has since then":                              {state: probed(-6*time.Second, 0), lost: true},
		"M15: waits for the connection if a health probe fails between two reconciliations": {state: probed(-time.Second, 1), again: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := readingThrough(disconnected{clustercache.NewFakeEmptyClusterCache(), tc.state})
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), now: now}
			takesTooLong := errors.Wrap(&url.Error{Op: "Patch", URL: "https://one", Err: context.DeadlineExceeded}, "updating NodeMaintenance m")
			if tc.again {
				r.memoryOf(s.machine).failure = workload.Failure{Since: now.Add(-10 * time.Second), Err: takesTooLong}
			}
			if tc.lost {
				conditions.Set(s.machine, metav1.Condition{
					Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForWorkloadCluster,
					LastTransitionTime: metav1.NewTime(now),
				})
				r.conditions.Record(client.ObjectKeyFromObject(s.machine), now.Add(-contactRetry))
			}
			waiting, err := r.unreachable(t.Context(), s, takesTooLong)
			if tc.returns {
				g.Expect(err).To(MatchError(takesTooLong))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(waiting.reason).To(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
			}
		})
	}
}
