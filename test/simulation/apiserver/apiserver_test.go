package apiserver_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
)

var scheme = fakes.Scheme()

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
	condition.Required = []string{"type"}
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
		}}
		w.Expect(c.Create(w.ctx, widget)).To(Succeed())
		w.Expect(c.Status().Apply(w.ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "web", "name": "a"},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "A"}}},
		}}), client.FieldOwner("one"), client.ForceOwnership)).To(Succeed())
		w.Expect(c.Get(w.ctx, client.ObjectKeyFromObject(widget), widget)).To(Succeed())
		w.Expect(widget.Object["status"]).To(Equal(map[string]any{"conditions": []any{map[string]any{"type": "A"}}}))
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
