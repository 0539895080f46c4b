package apiserver_test

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
)

var scheme = func() *runtime.Scheme {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(all); err != nil {
			panic(err)
		}
	}
	return all
}()

// world is a server with a client over HTTP and a direct one.
type world struct {
	*WithT
	*apiserver.Server
	ctx          context.Context //nolint:containedctx // of the test, for all its requests
	http, direct client.WithWatch
}

func (w *world) config() *rest.Config {
	return &rest.Config{Host: "http://workload", Transport: w.Transport(), UserAgent: "test"}
}

// run runs a test in virtual time.
func run(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		server := apiserver.New(apiserver.Options{Name: "workload", Scheme: scheme, Random: rand.New(rand.NewPCG(1, 2))})
		ctx, cancel := context.WithCancel(t.Context())
		w := &world{WithT: g, Server: server, ctx: ctx, direct: server.Client("model")}
		var err error
		w.http, err = client.NewWithWatch(w.config(), client.Options{Scheme: scheme})
		g.Expect(err).NotTo(HaveOccurred())
		defer synctest.Wait()
		defer cancel()
		test(w)
	})
}

func both(t *testing.T, test func(w *world, c client.WithWatch)) {
	t.Helper()
	t.Run("over HTTP", func(t *testing.T) { run(t, func(w *world) { test(w, w.http) }) })
	t.Run("directly", func(t *testing.T) { run(t, func(w *world) { test(w, w.direct) }) })
}

func newPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	for _, each := range change {
		each(pod)
	}
	return pod
}

// add creates a Pod that runs.
func (w *world) add(pod *corev1.Pod) *corev1.Pod {
	status := pod.Status
	w.Expect(w.direct.Create(w.ctx, pod)).To(Succeed())
	if pod.Status = status; status.Phase == "" {
		pod.Status.Phase = corev1.PodRunning
	}
	w.Expect(w.direct.Status().Update(w.ctx, pod)).To(Succeed())
	return pod
}

func TestWrites(t *testing.T) {
	both(t, func(w *world, c client.WithWatch) {
		pod := newPod("", func(p *corev1.Pod) { p.GenerateName, p.Status.Phase = "a-", corev1.PodRunning })
		w.Expect(c.Create(w.ctx, pod)).To(Succeed())
		w.Expect(pod.Name).To(HaveLen(7))
		w.Expect(pod.UID).NotTo(BeEmpty())
		w.Expect(pod.Generation).To(BeEquivalentTo(1))
		w.Expect(pod.CreationTimestamp.Time).To(BeTemporally("==", time.Now().Truncate(time.Second)))
		w.Expect(pod.Status.Phase).To(Equal(corev1.PodPending), "a status is not created")
		again := newPod(pod.Name)
		w.Expect(apierrors.IsAlreadyExists(c.Create(w.ctx, again))).To(BeTrue())

		stale := pod.DeepCopy()
		pod.Labels["x"], pod.Status.Phase = "y", corev1.PodRunning
		w.Expect(c.Update(w.ctx, pod)).To(Succeed())
		w.Expect(pod.Status.Phase).To(Equal(corev1.PodPending))
		w.Expect(pod.Generation).To(BeEquivalentTo(1))
		err := c.Update(w.ctx, stale)
		w.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
		w.Expect(err).To(MatchError(ContainSubstring("the object has been modified")))

		pod.Spec.Containers[0].Image, pod.Status.Phase = "j", corev1.PodRunning
		w.Expect(c.Status().Update(w.ctx, pod)).To(Succeed())
		w.Expect(pod.Spec.Containers[0].Image).To(Equal("i"))
		w.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		before := pod.ResourceVersion
		w.Expect(c.Update(w.ctx, pod)).To(Succeed())
		w.Expect(pod.ResourceVersion).To(Equal(before), "an update without a change is not written")
		pod.Spec.Containers[0].Image = "j"
		w.Expect(c.Update(w.ctx, pod)).To(Succeed())
		w.Expect(pod.Generation).To(BeEquivalentTo(2))

		w.Expect(apierrors.IsNotFound(c.Get(w.ctx, types.NamespacedName{Namespace: "web", Name: "none"}, pod))).To(BeTrue())
		wrong := client.Preconditions{UID: ptr.To(types.UID("other"))}
		w.Expect(apierrors.IsConflict(c.Delete(w.ctx, pod, wrong))).To(BeTrue())
	})
}

func TestPatches(t *testing.T) {
	for name, each := range map[string]struct {
		patchType types.PatchType
		patch     string
		expected  func(*WithT, *corev1.Pod, error)
	}{
		"merge": {types.MergePatchType, `{"metadata":{"labels":{"app":null,"a":"b"}}}`, func(g *WithT, pod *corev1.Pod, err error) {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pod.Labels).To(Equal(map[string]string{"a": "b"}))
		}},
		"strategic": {
			types.StrategicMergePatchType, `{"spec":{"containers":[{"name":"d","image":"j"}]}}`,
			func(g *WithT, pod *corev1.Pod, err error) {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(pod.Spec.Containers).To(HaveLen(2))
				g.Expect(pod.Generation).To(BeEquivalentTo(2))
			},
		},
		"JSON": {types.JSONPatchType, `[{"op":"add","path":"/metadata/labels/a","value":"b"}]`, func(g *WithT, pod *corev1.Pod, err error) {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pod.Labels).To(HaveKeyWithValue("a", "b"))
		}},
		"failed test": {types.JSONPatchType, `[{"op":"test","path":"/metadata/labels/app","value":"b"}]`, func(g *WithT, _ *corev1.Pod, err error) {
			g.Expect(err).To(HaveOccurred())
		}},
		"old resourceVersion": {types.MergePatchType, `{"metadata":{"resourceVersion":"1000"}}`, func(g *WithT, _ *corev1.Pod, err error) {
			g.Expect(apierrors.IsConflict(err)).To(BeTrue())
		}},
		"other UID": {types.MergePatchType, `{"metadata":{"uid":"other"}}`, func(g *WithT, _ *corev1.Pod, err error) {
			g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, c client.WithWatch) {
				pod := w.add(newPod("a"))
				err := c.Patch(w.ctx, pod, client.RawPatch(each.patchType, []byte(each.patch)))
				each.expected(w.WithT, pod, err)
			})
		})
	}
}

func TestDeletion(t *testing.T) {
	both(t, func(w *world, c client.WithWatch) {
		exists := func(object client.Object) bool {
			err := c.Get(w.ctx, client.ObjectKeyFromObject(object), object)
			w.Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
			return err == nil
		}
		pod := w.add(newPod("graceful"))
		w.Expect(c.Delete(w.ctx, pod)).To(Succeed())
		w.Expect(exists(pod)).To(BeTrue())
		w.Expect(pod.DeletionTimestamp.Time).To(BeTemporally("==", time.Now().Add(30*time.Second)))
		w.Expect(*pod.DeletionGracePeriodSeconds).To(BeEquivalentTo(30))
		time.Sleep(2 * time.Second)
		w.Expect(c.Delete(w.ctx, pod, client.GracePeriodSeconds(60))).To(Succeed())
		w.Expect(exists(pod)).To(BeTrue())
		w.Expect(*pod.DeletionGracePeriodSeconds).To(BeEquivalentTo(30))
		w.Expect(c.Delete(w.ctx, pod, client.GracePeriodSeconds(10))).To(Succeed())
		w.Expect(exists(pod)).To(BeTrue())
		w.Expect(pod.DeletionTimestamp.Time).To(BeTemporally("==", time.Now().Add(8*time.Second)))
		w.Expect(c.Delete(w.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		w.Expect(exists(pod)).To(BeFalse())

		unbound := newPod("unbound", func(p *corev1.Pod) { p.Spec.NodeName = "" })
		w.Expect(c.Create(w.ctx, unbound)).To(Succeed())
		w.Expect(c.Delete(w.ctx, unbound)).To(Succeed())
		w.Expect(exists(unbound)).To(BeFalse())

		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{"a/b"}}}
		w.Expect(c.Create(w.ctx, node)).To(Succeed())
		w.Expect(c.Delete(w.ctx, node)).To(Succeed())
		w.Expect(exists(node)).To(BeTrue())
		w.Expect(node.DeletionTimestamp).NotTo(BeNil())
		node.Finalizers = append(node.Finalizers, "c/d")
		w.Expect(apierrors.IsInvalid(c.Update(w.ctx, node))).To(BeTrue())
		node.Finalizers = nil
		w.Expect(c.Update(w.ctx, node)).To(Succeed())
		w.Expect(exists(node)).To(BeFalse())
	})
}

func TestEviction(t *testing.T) {
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	budget := func(allowed, healthy, desired int32, change ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "b"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromInt32(desired)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			},
			Status: policyv1.PodDisruptionBudgetStatus{
				ObservedGeneration: 1, DisruptionsAllowed: allowed, CurrentHealthy: healthy, DesiredHealthy: desired,
			},
		}
		for _, each := range change {
			each(b)
		}
		return b
	}
	for name, each := range map[string]struct {
		pod     *corev1.Pod
		uid     types.UID // of the request, instead of that of the Pod
		budgets []*policyv1.PodDisruptionBudget
		code    int
		cause   string
		allowed int32
	}{
		"no budget": {pod: newPod("a", ready)},
		"allowed":   {pod: newPod("a", ready), budgets: []*policyv1.PodDisruptionBudget{budget(2, 3, 1)}, allowed: 1},
		"not allowed": {
			pod: newPod("a", ready), budgets: []*policyv1.PodDisruptionBudget{budget(0, 1, 1)}, code: 429,
			cause: "The disruption budget b needs 1 healthy pods and has 1 currently",
		},
		"not observed": {
			pod:     newPod("a", ready),
			budgets: []*policyv1.PodDisruptionBudget{budget(1, 1, 0, func(b *policyv1.PodDisruptionBudget) { b.Status.ObservedGeneration = 0 })},
			code:    429, cause: "The disruption budget b is still being processed by the server.", allowed: 1,
		},
		"two budgets": {
			pod: newPod("a", ready),
			budgets: []*policyv1.PodDisruptionBudget{
				budget(1, 2, 1), budget(1, 2, 1, func(b *policyv1.PodDisruptionBudget) { b.Name = "c" }),
			}, code: 500, allowed: 1,
		},
		"pending": {
			pod: newPod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), budgets: []*policyv1.PodDisruptionBudget{budget(0, 1, 1)},
		},
		"pending, and another Pod is to be evicted": {
			pod: newPod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), uid: "another", code: 409,
		},
		"not ready, healthy budget":   {pod: newPod("a"), budgets: []*policyv1.PodDisruptionBudget{budget(0, 1, 1)}},
		"not ready, unhealthy budget": {pod: newPod("a"), budgets: []*policyv1.PodDisruptionBudget{budget(0, 0, 1)}, code: 429},
		"not ready, always allowed": {pod: newPod("a"), budgets: []*policyv1.PodDisruptionBudget{
			budget(0, 0, 1, func(b *policyv1.PodDisruptionBudget) {
				b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
			}),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, c client.WithWatch) {
				pod := w.add(each.pod.DeepCopy())
				for _, b := range each.budgets {
					status := b.Status
					b = b.DeepCopy()
					w.Expect(w.direct.Create(w.ctx, b)).To(Succeed())
					b.Status = status
					w.Expect(w.direct.Status().Update(w.ctx, b)).To(Succeed())
				}
				err := c.SubResource("eviction").Create(w.ctx, pod, &policyv1.Eviction{
					ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
					DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(cmp.Or(each.uid, pod.UID))}},
				})
				w.Expect(w.direct.Get(w.ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
				if each.code == 0 {
					w.Expect(err).NotTo(HaveOccurred())
					w.Expect(pod.DeletionTimestamp).NotTo(BeNil())
					w.Expect(pod.Status.Conditions).To(ContainElement(HaveField("Type", corev1.DisruptionTarget)))
				} else {
					var status apierrors.APIStatus
					w.Expect(errors.As(err, &status)).To(BeTrue(), "%v", err)
					w.Expect(status.Status().Code).To(BeEquivalentTo(each.code))
					w.Expect(pod.DeletionTimestamp).To(BeNil())
				}
				if each.cause != "" {
					cause, found := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
					w.Expect(found).To(BeTrue())
					w.Expect(cause.Message).To(Equal(each.cause))
				}
				if len(each.budgets) > 0 {
					b := each.budgets[0].DeepCopy()
					w.Expect(w.direct.Get(w.ctx, client.ObjectKeyFromObject(b), b)).To(Succeed())
					w.Expect(b.Status.DisruptionsAllowed).To(Equal(each.allowed))
				}
			})
		})
	}
}

func TestScaleBindingAndGarbage(t *testing.T) {
	both(t, func(w *world, c client.WithWatch) {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "rs"}, Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
		w.Expect(c.Create(w.ctx, set)).To(Succeed())
		w.Expect(c.SubResource("scale").Patch(w.ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`)))).To(Succeed())
		w.Expect(c.Get(w.ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
		w.Expect(*set.Spec.Replicas).To(BeEquivalentTo(3))

		pod := newPod("owned", func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: set.UID}}
		})
		w.Expect(c.Create(w.ctx, pod)).To(Succeed())
		w.Expect(c.SubResource("binding").Create(w.ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Name: "n2"}})).To(Succeed())
		w.Expect(c.Delete(w.ctx, set)).To(Succeed())
		w.Expect(c.Get(w.ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		w.Expect(pod.Spec.NodeName).To(Equal("n2"))
		w.Expect(pod.DeletionTimestamp).To(BeNil())
		time.Sleep(2 * time.Second)
		w.Expect(c.Get(w.ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		w.Expect(pod.DeletionTimestamp).NotTo(BeNil())
	})
}

func widgets(version string) *apiextensionsv1.CustomResourceDefinition {
	object := func(properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
	}
	condition := object(map[string]apiextensionsv1.JSONSchemaProps{"type": {Type: "string"}, "status": {Type: "string"}})
	all := object(map[string]apiextensionsv1.JSONSchemaProps{
		"spec": object(map[string]apiextensionsv1.JSONSchemaProps{
			"size": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("3")}}, "color": {Type: "string"},
		}),
		"status": object(map[string]apiextensionsv1.JSONSchemaProps{"conditions": {
			Type: "array", XListType: ptr.To("map"), XListMapKeys: []string{"type"}, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &condition},
		}}),
	})
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &all},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

func TestCustomResources(t *testing.T) {
	both(t, func(w *world, c client.WithWatch) {
		definition := widgets("v1")
		w.Expect(c.Create(w.ctx, definition)).To(Succeed())
		w.Expect(definition.Status.Conditions).To(HaveLen(2))
		widget := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "web", "name": "a"},
			"spec": map[string]any{}, "status": map[string]any{"x": "y"},
		}}
		w.Expect(c.Create(w.ctx, widget)).To(Succeed())
		w.Expect(widget.Object["spec"]).To(Equal(map[string]any{"size": int64(3)}))
		w.Expect(widget.Object).NotTo(HaveKey("status"))

		apply := func(manager string, conditions ...any) {
			w.Expect(c.Status().Apply(w.ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "web", "name": "a"},
				"status": map[string]any{"conditions": append([]any{}, conditions...)},
			}}), client.FieldOwner(manager), client.ForceOwnership)).To(Succeed())
			w.Expect(c.Get(w.ctx, client.ObjectKeyFromObject(widget), widget)).To(Succeed())
		}
		condition := func(name, status string) any { return map[string]any{"type": name, "status": status} }
		conditions := func() []any {
			found, _, _ := unstructured.NestedSlice(widget.Object, "status", "conditions")
			return found
		}
		apply("one", condition("A", "True"))
		apply("two", condition("B", "True"))
		apply("one", condition("A", "False"))
		w.Expect(conditions()).To(Equal([]any{condition("A", "False"), condition("B", "True")}))
		apply("one")
		w.Expect(conditions()).To(Equal([]any{condition("B", "True")}), "a manager removes only what it has applied")

		w.Expect(unstructured.SetNestedField(widget.Object, "red", "spec", "color")).To(Succeed())
		w.Expect(c.Update(w.ctx, widget)).To(Succeed())
		w.Expect(widget.GetGeneration()).To(BeEquivalentTo(2))
		w.Expect(c.Delete(w.ctx, definition)).To(Succeed())
		w.Expect(c.Get(w.ctx, client.ObjectKeyFromObject(widget), widget)).NotTo(Succeed())
	})
}

func TestRefusalAndAudit(t *testing.T) {
	run(t, func(w *world) {
		var changes []string
		w.OnChange(func(c apiserver.Change) { changes = append(changes, c.Key) })
		w.Expect(w.http.Create(w.ctx, newPod("created"))).To(Succeed())
		w.SetRefusal(func(r apiserver.Request) error {
			if r.Verb == "create" && r.Resource == "pods" {
				return apierrors.NewServiceUnavailable("overloaded")
			}
			return nil
		})
		w.Expect(apierrors.IsServiceUnavailable(w.http.Create(w.ctx, newPod("refused")))).To(BeTrue())
		w.Expect(changes).To(Equal([]string{"/registry/pods/web/created"}))
		writes := w.Audit().Writes().Resource("pods")
		w.Expect(writes.Succeeded().Names()).To(Equal([]string{"created"}))
		w.Expect(writes.Failed(503).Len()).To(Equal(1))
		w.Expect(string(writes[0].RequestObject)).To(ContainSubstring(`"name":"created"`))
		w.Expect(writes[0].UserAgent).To(Equal("test"))

		for path, expected := range map[string]string{"/": "paths", "/readyz": "ok", "/version": "gitVersion", "/nope": "404 page not found"} {
			request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, "http://workload"+path, nil)
			w.Expect(err).NotTo(HaveOccurred())
			response, err := w.Transport().RoundTrip(request)
			w.Expect(err).NotTo(HaveOccurred())
			var body strings.Builder
			_, err = io.Copy(&body, response.Body)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(response.Body.Close()).To(Succeed())
			w.Expect(body.String()).To(ContainSubstring(expected))
		}
	})
}
