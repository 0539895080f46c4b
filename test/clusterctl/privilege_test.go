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
func (f *fixture) expectLeastPrivilege() {
	f.Helper()
	events, err := f.at.Audit().Since(controlplane.Mark{})
	f.Expect(err).NotTo(HaveOccurred())
	asked := events.By(fleet.InstallationUser)
	f.Expect(asked).NotTo(BeEmpty())
	f.Expect(asked.Failed(http.StatusForbidden)).To(BeEmpty())

	var unused []permission
	for _, allowed := range f.permissions() {
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
	f.Expect(unused).To(BeEmpty(), "unused permissions of the role")
}

// permissions returns those of all roles that are bound to the manager's ServiceAccount.
func (f *fixture) permissions() []permission {
	f.Helper()
	var rules []rbacv1.PolicyRule
	clusterBindings, bindings := &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}
	f.Expect(f.at.client.List(f.Context(), clusterBindings)).To(Succeed())
	f.Expect(f.at.client.List(f.Context(), bindings)).To(Succeed())
	for i := range clusterBindings.Items {
		if isOurs(clusterBindings.Items[i].Subjects) {
			role := &rbacv1.ClusterRole{}
			f.Expect(f.at.client.Get(f.Context(), client.ObjectKey{Name: clusterBindings.Items[i].RoleRef.Name}, role)).To(Succeed())
			rules = append(rules, role.Rules...)
		}
	}
	for i := range bindings.Items {
		if isOurs(bindings.Items[i].Subjects) {
			role := &rbacv1.Role{}
			f.Expect(f.at.client.Get(f.Context(), client.ObjectKey{Namespace: bindings.Items[i].Namespace, Name: bindings.Items[i].RoleRef.Name}, role)).To(Succeed())
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
	f.Expect(all).NotTo(BeEmpty())
	return all
}

func isOurs(subjects []rbacv1.Subject) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == fleet.InstallationNamespace && s.Name == "capnm-manager"
	})
}

// probeProviderGroups deletes a Machine whose infrastructure and control plane have the API groups of most providers. The provider of
// these tests has others.
func (f *fixture) probeProviderGroups() {
	f.Helper()
	infrastructure := f.kind("infrastructure.cluster.x-k8s.io", "Probe")
	controlPlane := f.kind("controlplane.cluster.x-k8s.io", "Probe")
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"}}
	cluster.Spec.InfrastructureRef, cluster.Spec.ControlPlaneRef = infrastructure, controlPlane
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "probe", Labels: map[string]string{clusterv1.ClusterNameLabel: "probe"},
	}}
	machine.Spec = clusterv1.MachineSpec{
		ClusterName: "probe", InfrastructureRef: infrastructure, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("not-used")},
	}
	f.Expect(f.at.client.Create(f.Context(), cluster)).To(Succeed())
	f.Expect(f.at.client.Create(f.Context(), machine)).To(Succeed())
	f.Eventually(func(g Gomega) {
		created := f.machine(g, "probe")
		g.Expect(created.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		g.Expect(created.Finalizers).To(ContainElement(clusterv1.MachineFinalizer), "without it, the deletion does not wait for the hook")
	}, eventually, pace).Should(Succeed())
	f.Expect(f.at.client.Delete(f.Context(), machine)).To(Succeed())
	f.Eventually(func() error { return f.at.client.Get(f.Context(), keyOf("probe"), machine) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	f.Expect(f.at.client.Delete(f.Context(), cluster)).To(Succeed())
	f.Eventually(func() error { return f.at.client.Get(f.Context(), keyOf("probe"), cluster) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	f.Eventually(func(g Gomega) {
		events, err := f.at.Audit().Since(controlplane.Mark{})
		g.Expect(err).NotTo(HaveOccurred())
		asked := events.By(fleet.InstallationUser).Verb("get")
		g.Expect(asked.Resource("probes." + infrastructure.APIGroup)).NotTo(BeEmpty())
		g.Expect(asked.Resource("probes." + controlPlane.APIGroup)).NotTo(BeEmpty())
	}, eventually, pace).Should(Succeed())
}

// kind creates a kind that fulfills Cluster API's contract as far as our manager reads it, and one object of that kind.
func (f *fixture) kind(group, kind string) clusterv1.ContractVersionedObjectReference {
	f.Helper()
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
	f.Expect(f.at.client.Create(f.Context(), crd)).To(Succeed())
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(group + "/v1")
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName("probe")
	f.Eventually(func() error { return f.at.client.Create(f.Context(), object) }, eventually, pace).Should(Succeed())
	return clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: "probe"}
}

// scrape reads metrics and a profile at the diagnostics address of the installed manager. It checks that requests without a token, and
// with that of an unauthorized user, are rejected.
func (f *fixture) scrape() (metrics string) {
	f.Helper()
	scraper := f.scraper()
	for _, object := range scraper[:2] {
		f.Expect(f.at.client.Create(f.Context(), object)).To(Succeed())
	}
	var token string
	f.Eventually(func(g Gomega) {
		secret := &corev1.Secret{}
		g.Expect(f.at.client.Get(f.Context(), client.ObjectKeyFromObject(scraper[1]), secret)).To(Succeed())
		token = string(secret.Data[corev1.ServiceAccountTokenKey])
		g.Expect(token).NotTo(BeEmpty())
	}, eventually, pace).Should(Succeed())
	running, err := f.at.kubelet.Running()
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(running).To(HaveLen(1))
	// The manager's certificate is self-signed.
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path, token string) (int, string) {
		request, err := http.NewRequestWithContext(f.Context(), http.MethodGet, "https://"+f.at.kubelet.Diagnostics(running[0])+path, nil)
		f.Expect(err).NotTo(HaveOccurred())
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := insecure.Do(request)
		f.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		content, err := io.ReadAll(response.Body)
		f.Expect(err).NotTo(HaveOccurred())
		return response.StatusCode, string(content)
	}
	status := func(path, token string) func() int {
		return func() int { code, _ := get(path, token); return code }
	}
	f.Expect(status("/metrics", "")()).To(Equal(http.StatusUnauthorized))
	f.Expect(status("/metrics", token)()).To(Equal(http.StatusForbidden))

	f.Expect(f.at.client.Create(f.Context(), scraper[2])).To(Succeed())
	f.Eventually(status("/metrics", token), eventually, pace).Should(Equal(http.StatusOK))
	_, metrics = get("/metrics", token)
	f.Expect(metrics).To(ContainSubstring(fmt.Sprintf("capnm_evictions_total{result=%q}", "evicted")))
	f.Expect(status("/debug/pprof/heap", token)()).To(Equal(http.StatusOK))
	return metrics
}

// scraper returns the ServiceAccount, its token and its ClusterRoleBinding with which Prometheus scrapes the manager.
func (f *fixture) scraper() []*unstructured.Unstructured {
	f.Helper()
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(f.at.repository.read(filepath.Join(f.at.repository.root, "config", "monitoring", "scraper.yaml")), "\n---\n") {
		object := &unstructured.Unstructured{}
		f.Expect(yaml.Unmarshal([]byte(document), object)).To(Succeed())
		if object.GetKind() != "ClusterRoleBinding" {
			object.SetNamespace("capnm-system") // as kustomize does
		}
		objects = append(objects, object)
	}
	f.Expect(objects).To(HaveLen(3))
	return objects
}
