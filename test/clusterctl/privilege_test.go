package clusterctl

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// permission is a verb on a resource that a role allows.
type permission struct{ group, resource, verb string }

// expectLeastPrivilege compares all requests of the installed manager to its management cluster with the permissions of its roles.
func (w *world) expectLeastPrivilege() {
	w.Helper()
	events, err := w.at.Audit().Since(controlplane.Mark{})
	w.Expect(err).NotTo(HaveOccurred())
	asked := events.By(fleet.InstallationUser)
	w.Expect(asked).NotTo(BeEmpty())
	w.Expect(asked.Failed(http.StatusForbidden)).To(BeEmpty())

	var unused []permission
	for _, allowed := range w.permissions() {
		used := slices.ContainsFunc(asked, func(event controlplane.Event) bool {
			resource := event.Resource
			if event.Subresource != "" {
				resource += "/" + event.Subresource
			}
			// A watch starts with a list, but API servers from 1.34 on send it in the watch.
			verbs := event.Verb == allowed.verb || event.Verb == "watch" && allowed.verb == "list"
			return event.Group == allowed.group && verbs && (resource == allowed.resource || allowed.resource == rbacv1.ResourceAll)
		})
		if !used {
			unused = append(unused, allowed)
		}
	}
	w.Expect(unused).To(BeEmpty(), "unused permissions of the role")
}

// permissions returns those of all roles that are bound to the manager's ServiceAccount.
func (w *world) permissions() []permission {
	w.Helper()
	var rules []rbacv1.PolicyRule
	clusterBindings, bindings := &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}
	w.Expect(w.at.client.List(w.Context(), clusterBindings)).To(Succeed())
	w.Expect(w.at.client.List(w.Context(), bindings)).To(Succeed())
	for i := range clusterBindings.Items {
		if isOurs(clusterBindings.Items[i].Subjects) {
			role := &rbacv1.ClusterRole{}
			w.Expect(w.at.client.Get(w.Context(), client.ObjectKey{Name: clusterBindings.Items[i].RoleRef.Name}, role)).To(Succeed())
			rules = append(rules, role.Rules...)
		}
	}
	for i := range bindings.Items {
		if isOurs(bindings.Items[i].Subjects) {
			role := &rbacv1.Role{}
			w.Expect(w.at.client.Get(w.Context(), client.ObjectKey{Namespace: bindings.Items[i].Namespace, Name: bindings.Items[i].RoleRef.Name}, role)).To(Succeed())
			rules = append(rules, role.Rules...)
		}
	}
	var all []permission
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, permission{group, resource, verb})
				}
			}
		}
	}
	w.Expect(all).NotTo(BeEmpty())
	return all
}

func isOurs(subjects []rbacv1.Subject) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == fleet.InstallationNamespace && s.Name == "capnm-manager"
	})
}

// probeProviderGroups deletes a Machine whose infrastructure and control plane have the API groups of most providers. The provider of
// these tests has others.
func (w *world) probeProviderGroups() {
	w.Helper()
	infrastructure := w.kind("infrastructure.cluster.x-k8s.io", "Probe")
	controlPlane := w.kind("controlplane.cluster.x-k8s.io", "Probe")
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"}}
	cluster.Spec.InfrastructureRef, cluster.Spec.ControlPlaneRef = infrastructure, controlPlane
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "probe", Labels: map[string]string{clusterv1.ClusterNameLabel: "probe"},
	}}
	machine.Spec = clusterv1.MachineSpec{
		ClusterName: "probe", InfrastructureRef: infrastructure, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("not-used")},
	}
	w.Expect(w.at.client.Create(w.Context(), cluster)).To(Succeed())
	w.Expect(w.at.client.Create(w.Context(), machine)).To(Succeed())
	w.Eventually(func(g Gomega) {
		created := w.machine(g, "probe")
		g.Expect(created.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		g.Expect(created.Finalizers).To(ContainElement(clusterv1.MachineFinalizer), "without it, the deletion does not wait for the hook")
	}, eventually, pace).Should(Succeed())
	w.Expect(w.at.client.Delete(w.Context(), machine)).To(Succeed())
	w.Eventually(func() error { return w.at.client.Get(w.Context(), keyOf("probe"), machine) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	w.Expect(w.at.client.Delete(w.Context(), cluster)).To(Succeed())
	w.Eventually(func() error { return w.at.client.Get(w.Context(), keyOf("probe"), cluster) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	w.Eventually(func(g Gomega) {
		events, err := w.at.Audit().Since(controlplane.Mark{})
		g.Expect(err).NotTo(HaveOccurred())
		asked := events.By(fleet.InstallationUser).Verb("get")
		g.Expect(asked.Resource("probes." + infrastructure.APIGroup)).NotTo(BeEmpty())
		g.Expect(asked.Resource("probes." + controlPlane.APIGroup)).NotTo(BeEmpty())
	}, eventually, pace).Should(Succeed())
}

// kind creates a kind that fulfills Cluster API's contract as far as our manager reads it, and one object of that kind.
func (w *world) kind(group, kind string) clusterv1.ContractVersionedObjectReference {
	w.Helper()
	plural := strings.ToLower(kind) + "s"
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, Labels: map[string]string{clusterv1.GroupVersion.String(): "v1"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: strings.ToLower(kind)},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
			}},
		},
	}
	w.Expect(w.at.client.Create(w.Context(), crd)).To(Succeed())
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(group + "/v1")
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName("probe")
	w.Eventually(func() error { return w.at.client.Create(w.Context(), object) }, eventually, pace).Should(Succeed())
	return clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: "probe"}
}

// scrape reads metrics and a profile at the diagnostics address of the installed manager. It checks that requests without a token, and
// with that of an unauthorized user, are rejected.
func (w *world) scrape() (metrics string) {
	w.Helper()
	scraper := w.scraper()
	for _, object := range scraper[:2] {
		w.Expect(w.at.client.Create(w.Context(), object)).To(Succeed())
	}
	var token string
	w.Eventually(func(g Gomega) {
		secret := &corev1.Secret{}
		g.Expect(w.at.client.Get(w.Context(), client.ObjectKeyFromObject(scraper[1]), secret)).To(Succeed())
		token = string(secret.Data[corev1.ServiceAccountTokenKey])
		g.Expect(token).NotTo(BeEmpty())
	}, eventually, pace).Should(Succeed())
	running, err := w.at.kubelet.Running()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(running).To(HaveLen(1))
	// The manager's certificate is self-signed.
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path, token string) (int, string) {
		request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "https://"+w.at.kubelet.Diagnostics(running[0])+path, nil)
		w.Expect(err).NotTo(HaveOccurred())
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := insecure.Do(request)
		w.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		content, err := io.ReadAll(response.Body)
		w.Expect(err).NotTo(HaveOccurred())
		return response.StatusCode, string(content)
	}
	status := func(path, token string) func() int {
		return func() int { code, _ := get(path, token); return code }
	}
	w.Expect(status("/metrics", "")()).To(Equal(http.StatusUnauthorized))
	w.Expect(status("/metrics", token)()).To(Equal(http.StatusForbidden))

	w.Expect(w.at.client.Create(w.Context(), scraper[2])).To(Succeed())
	w.Eventually(status("/metrics", token), eventually, pace).Should(Equal(http.StatusOK))
	_, metrics = get("/metrics", token)
	w.Expect(metrics).To(ContainSubstring(fmt.Sprintf("capnm_evictions_total{result=%q}", "evicted")))
	w.Expect(status("/debug/pprof/heap", token)()).To(Equal(http.StatusOK))
	return metrics
}

// scraper returns the ServiceAccount, its token and its ClusterRoleBinding with which Prometheus scrapes the manager.
func (w *world) scraper() []*unstructured.Unstructured {
	w.Helper()
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(w.at.repository.read(filepath.Join(w.at.repository.root, "config", "monitoring", "scraper.yaml")), "\n---\n") {
		object := &unstructured.Unstructured{}
		w.Expect(yaml.Unmarshal([]byte(document), object)).To(Succeed())
		if object.GetKind() != "ClusterRoleBinding" {
			object.SetNamespace("capnm-system") // as kustomize does
		}
		objects = append(objects, object)
	}
	w.Expect(objects).To(HaveLen(3))
	return objects
}
