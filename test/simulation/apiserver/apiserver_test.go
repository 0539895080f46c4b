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

// fixture is a server with a client over HTTP and a direct one.
type fixture struct {
	*WithT
	*apiserver.Server
	ctx          context.Context //nolint:containedctx // of the test, for all its requests
	http, direct client.WithWatch
}

func (f *fixture) config() *rest.Config {
	return &rest.Config{Host: "http://workload", Transport: f.Transport(), UserAgent: "test"}
}

// run runs a test in virtual time.
func run(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		server := apiserver.New(apiserver.Options{Name: "workload", Scheme: scheme, Random: rand.New(rand.NewPCG(1, 2))})
		ctx, cancel := context.WithCancel(t.Context())
		f := &fixture{WithT: g, Server: server, ctx: ctx, direct: server.Client("model")}
		var err error
		f.http, err = client.NewWithWatch(f.config(), client.Options{Scheme: scheme})
		g.Expect(err).NotTo(HaveOccurred())
		defer synctest.Wait()
		defer cancel()
		test(f)
	})
}

func both(t *testing.T, test func(f *fixture, c client.WithWatch)) {
	t.Helper()
	t.Run("over HTTP", func(t *testing.T) { run(t, func(f *fixture) { test(f, f.http) }) })
	t.Run("directly", func(t *testing.T) { run(t, func(f *fixture) { test(f, f.direct) }) })
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
func (f *fixture) add(pod *corev1.Pod) *corev1.Pod {
	status := pod.Status
	f.Expect(f.direct.Create(f.ctx, pod)).To(Succeed())
	if pod.Status = status; status.Phase == "" {
		pod.Status.Phase = corev1.PodRunning
	}
	f.Expect(f.direct.Status().Update(f.ctx, pod)).To(Succeed())
	return pod
}

func TestWrites(t *testing.T) {
	both(t, func(f *fixture, c client.WithWatch) {
		pod := newPod("", func(p *corev1.Pod) { p.GenerateName, p.Status.Phase = "a-", corev1.PodRunning })
		f.Expect(c.Create(f.ctx, pod)).To(Succeed())
		f.Expect(pod.Name).To(HaveLen(7))
		f.Expect(pod.UID).NotTo(BeEmpty())
		f.Expect(pod.Generation).To(BeEquivalentTo(1))
		f.Expect(pod.CreationTimestamp.Time).To(BeTemporally("==", time.Now().Truncate(time.Second)))
		f.Expect(pod.Status.Phase).To(Equal(corev1.PodPending), "a status is not created")
		again := newPod(pod.Name)
		f.Expect(apierrors.IsAlreadyExists(c.Create(f.ctx, again))).To(BeTrue())

		stale := pod.DeepCopy()
		pod.Labels["x"], pod.Status.Phase = "y", corev1.PodRunning
		f.Expect(c.Update(f.ctx, pod)).To(Succeed())
		f.Expect(pod.Status.Phase).To(Equal(corev1.PodPending))
		f.Expect(pod.Generation).To(BeEquivalentTo(1))
		err := c.Update(f.ctx, stale)
		f.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
		f.Expect(err).To(MatchError(ContainSubstring("the object has been modified")))

		pod.Spec.Containers[0].Image, pod.Status.Phase = "j", corev1.PodRunning
		f.Expect(c.Status().Update(f.ctx, pod)).To(Succeed())
		f.Expect(pod.Spec.Containers[0].Image).To(Equal("i"))
		f.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		before := pod.ResourceVersion
		f.Expect(c.Update(f.ctx, pod)).To(Succeed())
		f.Expect(pod.ResourceVersion).To(Equal(before), "an update without a change is not written")
		pod.Spec.Containers[0].Image = "j"
		f.Expect(c.Update(f.ctx, pod)).To(Succeed())
		f.Expect(pod.Generation).To(BeEquivalentTo(2))

		f.Expect(apierrors.IsNotFound(c.Get(f.ctx, types.NamespacedName{Namespace: "web", Name: "none"}, pod))).To(BeTrue())
		wrong := client.Preconditions{UID: ptr.To(types.UID("other"))}
		f.Expect(apierrors.IsConflict(c.Delete(f.ctx, pod, wrong))).To(BeTrue())
	})
}

func TestDeletion(t *testing.T) {
	both(t, func(f *fixture, c client.WithWatch) {
		exists := func(object client.Object) bool {
			err := c.Get(f.ctx, client.ObjectKeyFromObject(object), object)
			f.Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
			return err == nil
		}
		pod := f.add(newPod("graceful"))
		f.Expect(c.Delete(f.ctx, pod)).To(Succeed())
		f.Expect(exists(pod)).To(BeTrue())
		f.Expect(pod.DeletionTimestamp.Time).To(BeTemporally("==", time.Now().Add(30*time.Second)))
		f.Expect(*pod.DeletionGracePeriodSeconds).To(BeEquivalentTo(30))
		time.Sleep(2 * time.Second)
		f.Expect(c.Delete(f.ctx, pod, client.GracePeriodSeconds(60))).To(Succeed())
		f.Expect(exists(pod)).To(BeTrue())
		f.Expect(*pod.DeletionGracePeriodSeconds).To(BeEquivalentTo(30))
		f.Expect(c.Delete(f.ctx, pod, client.GracePeriodSeconds(10))).To(Succeed())
		f.Expect(exists(pod)).To(BeTrue())
		f.Expect(pod.DeletionTimestamp.Time).To(BeTemporally("==", time.Now().Add(8*time.Second)))
		f.Expect(c.Delete(f.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		f.Expect(exists(pod)).To(BeFalse())

		unbound := newPod("unbound", func(p *corev1.Pod) { p.Spec.NodeName = "" })
		f.Expect(c.Create(f.ctx, unbound)).To(Succeed())
		f.Expect(c.Delete(f.ctx, unbound)).To(Succeed())
		f.Expect(exists(unbound)).To(BeFalse())

		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{"a/b"}}}
		f.Expect(c.Create(f.ctx, node)).To(Succeed())
		f.Expect(c.Delete(f.ctx, node)).To(Succeed())
		f.Expect(exists(node)).To(BeTrue())
		f.Expect(node.DeletionTimestamp).NotTo(BeNil())
		node.Finalizers = append(node.Finalizers, "c/d")
		f.Expect(apierrors.IsInvalid(c.Update(f.ctx, node))).To(BeTrue())
		node.Finalizers = nil
		f.Expect(c.Update(f.ctx, node)).To(Succeed())
		f.Expect(exists(node)).To(BeFalse())
	})
}

func TestScaleBindingAndGarbage(t *testing.T) {
	both(t, func(f *fixture, c client.WithWatch) {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "rs"}, Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
		f.Expect(c.Create(f.ctx, set)).To(Succeed())
		f.Expect(c.SubResource("scale").Patch(f.ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`)))).To(Succeed())
		f.Expect(c.Get(f.ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
		f.Expect(*set.Spec.Replicas).To(BeEquivalentTo(3))

		pod := newPod("owned", func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: set.UID}}
		})
		f.Expect(c.Create(f.ctx, pod)).To(Succeed())
		f.Expect(c.SubResource("binding").Create(f.ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Name: "n2"}})).To(Succeed())
		f.Expect(c.Delete(f.ctx, set)).To(Succeed())
		f.Expect(c.Get(f.ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		f.Expect(pod.Spec.NodeName).To(Equal("n2"))
		f.Expect(pod.DeletionTimestamp).To(BeNil())
		time.Sleep(2 * time.Second)
		f.Expect(c.Get(f.ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		f.Expect(pod.DeletionTimestamp).NotTo(BeNil())
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
	both(t, func(f *fixture, c client.WithWatch) {
		definition := widgets("v1")
		f.Expect(c.Create(f.ctx, definition)).To(Succeed())
		f.Expect(definition.Status.Conditions).To(HaveLen(2))
		widget := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "web", "name": "a"},
		}}
		f.Expect(c.Create(f.ctx, widget)).To(Succeed())
		f.Expect(c.Status().Apply(f.ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "web", "name": "a"},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "A"}}},
		}}), client.FieldOwner("one"), client.ForceOwnership)).To(Succeed())
		f.Expect(c.Get(f.ctx, client.ObjectKeyFromObject(widget), widget)).To(Succeed())
		f.Expect(widget.Object["status"]).To(Equal(map[string]any{"conditions": []any{map[string]any{"type": "A"}}}))
		f.Expect(c.Delete(f.ctx, definition)).To(Succeed())
		f.Expect(c.Get(f.ctx, client.ObjectKeyFromObject(widget), widget)).NotTo(Succeed())
	})
}

func TestRefusalAndAudit(t *testing.T) {
	run(t, func(f *fixture) {
		var changes []string
		f.OnChange(func(c apiserver.Change) { changes = append(changes, c.Key) })
		f.Expect(f.http.Create(f.ctx, newPod("created"))).To(Succeed())
		f.SetRefusal(func(r apiserver.Request) error {
			if r.Verb == "create" && r.Resource == "pods" {
				return apierrors.NewServiceUnavailable("overloaded")
			}
			return nil
		})
		f.Expect(apierrors.IsServiceUnavailable(f.http.Create(f.ctx, newPod("refused")))).To(BeTrue())
		f.Expect(changes).To(Equal([]string{"/registry/pods/web/created"}))
		writes := f.Audit().Writes().Resource("pods")
		f.Expect(writes.Succeeded().Names()).To(Equal([]string{"created"}))
		f.Expect(writes.Failed(503).Len()).To(Equal(1))
		f.Expect(string(writes[0].RequestObject)).To(ContainSubstring(`"name":"created"`))
		f.Expect(writes[0].UserAgent).To(Equal("test"))

		for path, expected := range map[string]string{"/": "paths", "/readyz": "ok", "/version": "gitVersion", "/nope": "404 page not found"} {
			request, err := http.NewRequestWithContext(f.ctx, http.MethodGet, "http://workload"+path, nil)
			f.Expect(err).NotTo(HaveOccurred())
			response, err := f.Transport().RoundTrip(request)
			f.Expect(err).NotTo(HaveOccurred())
			var body strings.Builder
			_, err = io.Copy(&body, response.Body)
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(response.Body.Close()).To(Succeed())
			f.Expect(body.String()).To(ContainSubstring(expected))
		}
	})
}
