package workloadcluster

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestReportMissing(t *testing.T) {
	t.Run("R9: records an event on the Cluster about admission policies that the workload cluster does not support", func(t *testing.T) {
		g, recorder := NewWithT(t), record.NewFakeRecorder(1)
		r := &Reconciler{recorder: recorder}
		r.reportMissing(t.Context(), &clusterv1.Cluster{}, nil)
		g.Expect(recorder.Events).To(BeEmpty())
		r.reportMissing(t.Context(), &clusterv1.Cluster{}, []string{"ValidatingAdmissionPolicy one", "ValidatingAdmissionPolicyBinding one"})
		g.Expect(recorder.Events).To(Receive(Equal("Warning AdmissionPoliciesMissing The workload cluster does not support ValidatingAdmissionPolicy one, " +
			"ValidatingAdmissionPolicyBinding one. Every user who may write NodeMaintenances or Evacuations there can drain its Nodes: restrict who may write them")))
	})
}

// over returns the Reconciler of a Cluster whose workload cluster has this client.
func over(remote client.Client) (r *Reconciler, cluster types.NamespacedName) {
	scheme := fakes.Scheme()
	cluster = types.NamespacedName{Namespace: "fleet", Name: "c"}
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "all"}}
	management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}, policy, policyCRD())
	clusters := workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, cluster), scheme, workload.Limits{}, clock.RealClock{})
	return &Reconciler{Client: management, APIReader: management, Clock: clock.RealClock{}, Clusters: clusters, recorder: record.NewFakeRecorder(10)}, cluster
}

func policyCRD() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: "machinedrainpolicies." + v1alpha1.GroupVersion.Group, Finalizers: []string{"f"},
	}}
}

func clusterOf(key types.NamespacedName) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

func TestForgets(t *testing.T) {
	t.Run("deletes all state about a Cluster that no longer exists", func(t *testing.T) {
		g := NewWithT(t)
		r, key := over(fake.NewClientBuilder().Build())
		var changes []workload.Change
		r.Clusters.Subscribe(func(change workload.Change) { changes = append(changes, change) })
		g.Expect(r.Client.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})).To(Succeed())
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(changes).To(ContainElement(workload.Change{Cluster: key, Type: workload.ClusterDeleted}))
	})
}

func TestDisconnectsUnmanaged(t *testing.T) {
	for name, tc := range map[string]struct{ isConnected, isManaged, disconnected bool }{
		"a Cluster that no policy selects any more when its connection is lost": {disconnected: true},
		"a Cluster that a policy selects when its connection is lost":           {isManaged: true, disconnected: true},
		"no Cluster that is connected":                                          {isConnected: true},
	} {
		t.Run("disconnects "+name, func(t *testing.T) {
			g := NewWithT(t)
			r, key := over(fake.NewClientBuilder().Build())
			if !tc.isConnected {
				r.Clusters = workload.NewClusters(r.Client, clustercache.NewFakeEmptyClusterCache(), r.Client.Scheme(), workload.Limits{}, clock.RealClock{})
			}
			if !tc.isManaged {
				g.Expect(r.Client.Delete(t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "all"}})).To(Succeed())
			}
			r.checks.Store(key, check{at: time.Now()})
			r.Clusters.SetUnserved(key, "not served")
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			g.Expect(err).NotTo(HaveOccurred())
			isDisconnected := r.Clusters.Unserved(key) == ""
			g.Expect(isDisconnected).To(Equal(tc.disconnected))
			g.Expect(r.lastCheck(key).at.IsZero()).To(Equal(tc.disconnected))
		})
	}
}

func TestManagedWithoutPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		reason      string
		managed     bool
	}{
		"a Machine whose update in place was allowed": {reason: v1alpha1.ReasonMachineDrained, managed: true},
		"a Machine whose maintenance completes":       {reason: v1alpha1.ReasonMachineCompleting, managed: true},
		"a Machine whose drain in place no policy requires now": {
			reason: v1alpha1.ReasonNotManaged, annotations: map[string]string{v1alpha1.DrainRequestedAnnotation: "2026-01-01T00:00:00Z/m"}, managed: true,
		},
		"a Machine whose cordon no policy requires now": {
			reason: v1alpha1.ReasonNotManaged, annotations: map[string]string{clusterv1.MachineSkipRemediationAnnotation: v1alpha1.HookOwner}, managed: true,
		},
		"no Machine that a policy has selected":                   {reason: v1alpha1.ReasonNotManaged},
		"only a Machine whose stage annotation is invalid":        {reason: v1alpha1.ReasonInvalidStage},
		"only Machines whose maintenance is over, or never began": {},
	} {
		t.Run("R63: manages a Cluster that no policy selects while it has a maintenance to end: it has "+name, func(t *testing.T) {
			g := NewWithT(t)
			remote := fakes.Client()
			r, key := over(remote)
			g.Expect(r.Client.Delete(t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "all"}})).To(Succeed())
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: key.Namespace, Name: "m", UID: "m", Labels: map[string]string{clusterv1.ClusterNameLabel: key.Name}, Annotations: tc.annotations,
			}}
			if tc.reason != "" {
				m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: tc.reason}}
			}
			g.Expect(r.Client.Create(t.Context(), m)).To(Succeed())
			g.Expect(r.isManaged(t.Context(), remote, clusterOf(key))).To(Equal(tc.managed))
		})
	}
}

func TestManagesMaintenances(t *testing.T) {
	present := func(annotations map[string]string, finalizers ...string) []client.Object {
		return []client.Object{&v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Finalizers: finalizers, Annotations: annotations}}}
	}
	const finalizer = v1alpha1.MaintenanceCompletionFinalizer
	other := map[string]string{v1alpha1.OwnerManagementClusterAnnotation: "there"}
	for name, tc := range map[string]struct {
		objects []client.Object
		answer  error
		managed bool
		fails   bool
	}{
		"M129: a Cluster that no policy selects any more is managed while a NodeMaintenance is in progress there": {present(nil, finalizer), nil, true, false},
		"M129: not for one that has changed no Node":                                                              {present(nil), nil, false, false},
		"M90: not for one of another management cluster":                                                          {present(other, finalizer), nil, false, false},
		"M129: not without the CRD":                                                                               {nil, &meta.NoKindMatchError{}, false, false},
		"M129: it is not known to be idle if NodeMaintenances cannot be listed": {
			nil, errors.New("the API server is overloaded"), false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			remote := fake.NewClientBuilder().WithScheme(fakes.Scheme()).WithObjects(tc.objects...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if tc.answer != nil {
						return tc.answer
					}
					return c.List(ctx, list, options...)
				},
			}).Build()
			r, key := over(remote)
			r.ManagementCluster = "here"
			g.Expect(r.Client.Delete(t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "all"}})).To(Succeed())
			managed, err := r.isManaged(t.Context(), remote, clusterOf(key))
			g.Expect(err != nil).To(Equal(tc.fails))
			g.Expect(managed).To(Equal(tc.managed))
		})
	}
}

func TestRestoredBeforeFailure(t *testing.T) {
	t.Run("M51: reports what was restored before another object was refused", func(t *testing.T) {
		g := NewWithT(t)
		refused := ""
		remote := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				if object.GetName() == refused {
					return apierrors.NewConflict(schema.GroupResource{Resource: "any"}, refused, errors.New("its status was written"))
				}
				return c.Create(ctx, object, options...)
			},
		}).Build()
		r, key := over(remote)
		_, err := ApplyBundle(t.Context(), remote)
		g.Expect(err).NotTo(HaveOccurred())
		objects, err := bundle.Bundle()
		g.Expect(err).NotTo(HaveOccurred())
		first, last := objects[0], objects[len(objects)-1]
		g.Expect(remote.Delete(t.Context(), first.DeepCopy())).To(Succeed())
		g.Expect(remote.Delete(t.Context(), last.DeepCopy())).To(Succeed())
		refused = last.GetName()
		_, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(apierrors.IsConflict(errors.Cause(err))).To(BeTrue(), "%v", err)
		g.Expect(r.recorder.(*record.FakeRecorder).Events).To(Receive(ContainSubstring("Restored " + first.GetKind() + " " + first.GetName())))
	})
}

func TestReplacedObject(t *testing.T) {
	g, remote := NewWithT(t), fake.NewClientBuilder().Build()
	objects, err := bundle.Bundle()
	g.Expect(err).NotTo(HaveOccurred())
	manifest := objects[0] // without the version of a bundle
	t.Run("M51: does not report an object that existed before the bundle was installed", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(remote.Create(t.Context(), manifest.DeepCopy())).To(Succeed())
		applied, err := ApplyBundle(t.Context(), remote)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(applied.Restored).To(BeEmpty())
	})
	t.Run("M51: reports an object that another actor has replaced, as kubectl replace does", func(t *testing.T) {
		g, present := NewWithT(t), manifest.DeepCopy()
		g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(present), present)).To(Succeed())
		replacement := manifest.DeepCopy()
		replacement.SetResourceVersion(present.GetResourceVersion())
		g.Expect(remote.Update(t.Context(), replacement)).To(Succeed())
		applied, err := ApplyBundle(t.Context(), remote)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(applied.Restored).To(ConsistOf(Restored{Kind: manifest.GetKind(), Name: manifest.GetName(), Change: changeChanged}))
	})
}

func TestUnservedAfter(t *testing.T) {
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "any", errors.New("no role permits it"))
	for _, test := range []struct {
		name    string
		applied Applied
		failure error
		first   bool
		message string
		changed bool
	}{
		{name: "a success", changed: true},
		{name: "a CRD that is not served yet", applied: Applied{Unserved: "wait"}, message: "wait", changed: true},
		{
			name: "M52: the missing CRD, rather than the refusal of its creation", applied: Applied{Unserved: "missing"}, failure: refusal, first: true,
			message: "missing", changed: true,
		},
		{
			name: "M57: a refusal in the first check", failure: refusal, first: true,
			message: "The bundle cannot be installed in the workload cluster: " + progress.Describe(refusal), changed: true,
		},
		{
			name: "M57, E64: a webhook that refuses it with the code of a conflict", failure: fakes.DeniedWithConflict(), first: true,
			message: "The bundle cannot be installed in the workload cluster: " + progress.Describe(fakes.DeniedWithConflict()), changed: true,
		},
		{name: "a refusal in a later check", failure: refusal},
		{
			name: "M57: a request without an answer", failure: context.DeadlineExceeded, first: true,
			message: "The bundle cannot be installed in the workload cluster: " + progress.Describe(context.DeadlineExceeded), changed: true,
		},
		{name: "a conflict", failure: apierrors.NewConflict(schema.GroupResource{Resource: "any"}, "any", nil), first: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			message, changed := test.applied.unservedAfter(test.failure, test.first)
			g.Expect(message).To(Equal(test.message))
			g.Expect(changed).To(Equal(test.changed))
		})
	}
}

func TestRefusedBundle(t *testing.T) {
	t.Run("M57: reports that the API server refuses the bundle until it is installed", func(t *testing.T) {
		g := NewWithT(t)
		refuses := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, "any", errors.New("no role permits it"))
			},
		}).Build()
		r, key := over(refuses)
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).To(HaveOccurred())
		g.Expect(r.Clusters.Unserved(key)).To(And(HavePrefix("The bundle cannot be installed in the workload cluster: "), ContainSubstring("no role permits it")))
		r.Clusters.SetUnserved(key, "")
		r.checks.Store(key, check{at: r.Clock.Now().Add(-time.Hour)})
		_, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).To(HaveOccurred())
		g.Expect(r.Clusters.Unserved(key)).To(BeEmpty(), "drains continue while a later check fails")
	})
}

func TestCRDThatIsNeverServed(t *testing.T) {
	t.Run("M52: the API server is asked less and less often whether it serves a CRD, also if its names conflict with those of another one", func(t *testing.T) {
		g, now := NewWithT(t), clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		r, key := over(fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				object.SetCreationTimestamp(metav1.NewTime(now.Now()))
				return c.Create(ctx, object, options...)
			},
		}).Build())
		r.Clock = now
		checks, end := 0, now.Now().Add(time.Hour)
		for ; now.Now().Before(end); checks++ {
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
			if checks == 0 {
				g.Expect(result.RequeueAfter).To(Equal(100 * time.Millisecond))
			}
			g.Expect(checks).To(BeNumerically("<", 1000), "each check reads the whole bundle")
			now.SetTime(now.Now().Add(result.RequeueAfter))
		}
		g.Expect(r.Clusters.Unserved(key)).To(HavePrefix("Waiting for the API server to serve CustomResourceDefinition "))
	})
}

func TestRefusedRole(t *testing.T) {
	t.Run("M50: a role that an admission webhook refuses keeps no drain from beginning after a start of the manager, and is installed later", func(t *testing.T) {
		g, refuses := NewWithT(t), true
		remote := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				if refuses && object.GetObjectKind().GroupVersionKind().Kind == "ClusterRole" {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "clusterroles"}, object.GetName(), errors.New("denied by a webhook"))
				}
				return c.Create(ctx, object, options...)
			},
		}).Build()
		applied, err := ApplyBundle(t.Context(), remote)
		g.Expect(err).NotTo(HaveOccurred(), "the Machines of the Cluster are released undrained when their drain timeouts have passed")
		g.Expect(applied.IsUnchanged(t.Context(), remote)).To(BeFalse(), "the next check tries again")
		refuses = false
		applied, err = ApplyBundle(t.Context(), remote)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(applied.IsUnchanged(t.Context(), remote)).To(BeTrue())
	})
}

// TestBundleOfTwoManagers: another manager, of a second management cluster for example, creates an object between the read and the write.
func TestBundleOfTwoManagers(t *testing.T) {
	for _, kind := range []string{"ClusterRole", crdKind} {
		t.Run("M144: an object that another manager has created a moment ago is not refused, and the next check follows at once: "+kind, func(t *testing.T) {
			g := NewWithT(t)
			remote := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if object.GetObjectKind().GroupVersionKind().Kind == kind {
						return apierrors.NewAlreadyExists(schema.GroupResource{Resource: kind}, object.GetName())
					}
					return c.Create(ctx, object, options...)
				},
			}).Build()
			applied, err := ApplyBundle(t.Context(), remote)
			g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
			g.Expect(applied.Refused).To(BeEmpty())
			unserved, _ := applied.unservedAfter(err, true)
			g.Expect(unserved).NotTo(ContainSubstring("cannot be"), "the conditions of deleted Machines say it")
		})
	}
}

func TestRefusedPolicy(t *testing.T) {
	isPolicy := func(object client.Object) bool {
		return object.GetObjectKind().GroupVersionKind().Kind == "ValidatingAdmissionPolicy"
	}
	for name, tc := range map[string]struct {
		present   func(*unstructured.Unstructured) bool // in the workload cluster
		continues bool
		denied    bool // a webhook refuses with the code of an invalid object
	}{
		"M144: an admission policy that the workload cluster refuses to update keeps no drain from beginning after an upgrade, and is updated later": {
			present: func(*unstructured.Unstructured) bool { return true }, continues: true,
		},
		"M144: one that it refuses to create does not either, where the CRDs exist": {
			present: func(object *unstructured.Unstructured) bool { return object.GetKind() == crdKind }, continues: true,
		},
		"M144: the CRDs are not created before the policies that protect their objects": {
			present: func(*unstructured.Unstructured) bool { return false },
		},
		"M144, E64: the CRDs are not created before policies that a webhook refuses with the code of an invalid object": {
			present: func(*unstructured.Unstructured) bool { return false }, denied: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, refuses := NewWithT(t), false
			refusal, says := error(apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "any", errors.New("no role permits it"))), "no role permits it"
			if tc.denied {
				refusal, says = fakes.DeniedWith(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), "denied the request: no"
			}
			remote := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if refuses && isPolicy(object) {
						return refusal
					}
					return c.Create(ctx, object, options...)
				},
				Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
					if refuses && isPolicy(object) {
						return refusal
					}
					return c.Update(ctx, object, options...)
				},
			}).Build()
			objects, err := bundle.Bundle()
			g.Expect(err).NotTo(HaveOccurred())
			policies := 0
			for _, object := range objects {
				if isPolicy(object) {
					policies++
				}
				if !tc.present(object) {
					continue
				}
				object.SetAnnotations(labels.Merge(object.GetAnnotations(), labels.Set{v1alpha1.BundleVersionAnnotation: "1"}))
				if object.GetKind() == crdKind {
					served := []any{map[string]any{"type": "Established", "status": "True"}}
					g.Expect(unstructured.SetNestedSlice(object.Object, served, "status", "conditions")).To(Succeed())
					setBundleVersion(object) // the fake client does not keep a status
				}
				g.Expect(remote.Create(t.Context(), object)).To(Succeed())
			}
			refuses = true
			r, key := over(remote)
			r.recorder = record.NewFakeRecorder(100)
			after, _, err := r.checkBundle(t.Context(), clusterOf(key), remote)
			if !tc.continues {
				g.Expect(err).To(MatchError(ContainSubstring(says)))
				g.Expect(r.Clusters.Unserved(key)).To(ContainSubstring(says), "the condition of a deleted Machine names it")
				return
			}
			g.Expect(err).NotTo(HaveOccurred(), "the Machines of the Cluster are released undrained when their drain timeouts have passed")
			refused := 0
			for events := r.recorder.(*record.FakeRecorder).Events; len(events) > 0; {
				if event := <-events; strings.HasPrefix(event, "Warning BundleRefused ") && strings.Contains(event, says) {
					refused++
				}
			}
			g.Expect(refused).To(Equal(1), "the %d refusals of each check would use up the events of the Cluster", policies)
			refuses = false
			r.Clock = clocktesting.NewFakePassiveClock(r.Clock.Now().Add(after))
			_, _, err = r.checkBundle(t.Context(), clusterOf(key), remote)
			g.Expect(err).NotTo(HaveOccurred())
			applied := r.lastCheck(key).applied
			g.Expect(applied.Refused).To(BeEmpty())
			g.Expect(applied.IsUnchanged(t.Context(), remote)).To(BeTrue())
			for _, object := range objects { // another actor deletes all of them
				g.Expect(remote.Delete(t.Context(), object)).To(Succeed())
			}
			refuses = true
			r.Clock = clocktesting.NewFakePassiveClock(r.Clock.Now().Add(after))
			_, _, err = r.checkBundle(t.Context(), clusterOf(key), remote)
			g.Expect(err).To(MatchError(ContainSubstring(says)))
			g.Expect(r.Clusters.Unserved(key)).To(ContainSubstring(says), "the condition of a deleted Machine names it")
		})
	}
}

func TestWithdrawalFromADeletedCRD(t *testing.T) {
	for name, refusal := range map[string]error{
		"M52: an Evacuation that cannot be changed does not keep the finalizers of others, and is named": apierrors.NewForbidden(
			schema.GroupResource{Resource: "evacuations"}, "a", errors.New("no role permits it")),
		"M52, E64: an Evacuation whose change a webhook refuses with the code of a missing object is named as well": fakes.DeniedWith(
			http.StatusNotFound, metav1.StatusReasonNotFound),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := func(name string) *v1alpha1.Evacuation {
				return &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: name, DeletionTimestamp: new(metav1.Now()), Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer, "other"},
				}}
			}
			remote := fakes.Builder(e("a"), e("b")).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if object.GetName() == "a" {
						return refusal
					}
					return c.Patch(ctx, object, patch, options...)
				},
			}).Build()
			crd := &unstructured.Unstructured{}
			crd.SetName("evacuations.maintenance.cluster.x-k8s.io")
			crd.SetDeletionTimestamp(new(metav1.Now()))
			g.Expect(unstructured.SetNestedField(crd.Object, "Evacuation", "spec", "names", "kind")).To(Succeed())
			message, err := whyUnserved(t.Context(), remote, crd)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(message).To(ContainSubstring("the finalizers of Evacuation ns/a: " + v1alpha1.NodeMaintenanceInstigatorFinalizer + ", other"))
			other := e("b")
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(other), other)).To(Succeed())
			g.Expect(other.Finalizers).To(ConsistOf("other"))
		})
	}
}
