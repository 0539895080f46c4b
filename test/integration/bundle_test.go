package integration

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workloadcluster"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// roundTripper is a function that sends requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (send roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	return send(request)
}

func testBundleVersions(t *testing.T, all *admission) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "evacuations." + v1alpha1.GroupVersion.Group}}
	versioned := func(a *admission, version int, failure admissionregistrationv1.FailurePolicyType) {
		a.Expect(changed(a, a.admin, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
			p.Annotations[v1alpha1.BundleVersionAnnotation] = fmt.Sprint(version)
			p.Spec.FailurePolicy = &failure
		})).To(Succeed())
		a.applyBundle()
		a.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(policy), policy)).To(Succeed())
	}
	t.Run("M31: keeps a policy of a newer bundle and replaces one of an older bundle", func(t *testing.T) {
		a := all.sub(t)
		versioned(a, workload.BundleVersion+1, admissionregistrationv1.Ignore)
		a.Expect(policy.Spec.FailurePolicy).To(HaveValue(Equal(admissionregistrationv1.Ignore)))
		versioned(a, workload.BundleVersion-1, admissionregistrationv1.Ignore)
		a.Expect(policy.Spec.FailurePolicy).To(HaveValue(Equal(admissionregistrationv1.Fail)))
		a.Expect(policy.Annotations).To(HaveKeyWithValue(v1alpha1.BundleVersionAnnotation, fmt.Sprint(workload.BundleVersion)))
	})
	t.Run("M67: the check of an unchanged bundle reads only metadata from the watch cache, and finds each change", func(t *testing.T) {
		a := all.sub(t)
		var applied workloadcluster.Applied
		var accepted sync.Map // the Accept headers of the checks
		config := rest.CopyConfig(a.cp.AdminConfig())
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				if request.URL.Query().Has("resourceVersion") {
					accepted.Store(request.Header.Get("Accept"), true)
				}
				return next.RoundTrip(request)
			})
		})
		checker := a.clientFor(config)
		a.Expect(applied.IsUnchanged(a.Context(), checker)).To(BeFalse(), "nothing is known before the first check")
		var reads controlplane.Events
		a.Eventually(func(g Gomega) { // the watch cache lags behind, and the control plane writes the status of CRDs and policies that have changed
			var err error
			applied, err = workloadcluster.ApplyBundle(a.Context(), a.admin)
			g.Expect(err).NotTo(HaveOccurred())
			begin, err := a.cp.Audit().Mark()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(applied.IsUnchanged(a.Context(), checker)).To(BeTrue())
			reads, err = a.cp.Audit().Since(begin)
			g.Expect(err).NotTo(HaveOccurred())
		}, soon, pace).Should(Succeed())
		reads = reads.WithUserAgent("integration.test").Verb("get", "list")
		a.Expect(reads).To(HaveLen(16))
		a.Expect(reads).To(HaveEach(HaveField("URI", HaveSuffix("?resourceVersion=0"))))
		accepted.Range(func(header, _ any) bool {
			a.Expect(header).To(ContainSubstring("as=PartialObjectMetadata"))
			return true
		})

		a.Expect(changed(a, a.admin, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
			p.Spec.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		})).To(Succeed())
		a.Eventually(func() bool { return applied.IsUnchanged(a.Context(), checker) }, soon, pace).Should(BeFalse())
		a.applyBundle()
	})
	t.Run("M31: applies policies and bindings before CRDs", func(t *testing.T) {
		a := all.sub(t)
		bundle, err := workload.Bundle()
		a.Expect(err).NotTo(HaveOccurred())
		var kinds []string
		for _, object := range bundle {
			kinds = append(kinds, object.GetKind())
		}
		const policy, binding, crd, role = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CustomResourceDefinition", "ClusterRole"
		a.Expect(kinds).To(Equal([]string{
			policy, binding, policy, binding, policy, binding, policy, binding, policy, binding, policy, binding, crd, crd, role, role,
		}))
	})
	t.Run("R7: has expressions that fit the types of the CRDs", func(t *testing.T) {
		a := all.sub(t)
		policies := &admissionregistrationv1.ValidatingAdmissionPolicyList{}
		a.Expect(a.admin.List(a.Context(), policies)).To(Succeed())
		a.Expect(policies.Items).To(HaveLen(6))
		for i := range policies.Items {
			// The policies were checked before the CRDs existed. A copy is checked again.
			again := &admissionregistrationv1.ValidatingAdmissionPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "again." + policies.Items[i].Name}, Spec: policies.Items[i].Spec,
			}
			a.Expect(a.admin.Create(a.Context(), again)).To(Succeed())
			a.Eventually(func(g Gomega) {
				g.Expect(a.admin.Get(a.Context(), client.ObjectKeyFromObject(again), again)).To(Succeed())
				g.Expect(again.Status.TypeChecking).NotTo(BeNil())
			}, soon, pace).Should(Succeed())
			a.Expect(again.Status.TypeChecking.ExpressionWarnings).To(BeEmpty())
			a.Expect(a.admin.Delete(a.Context(), again)).To(Succeed())
		}
	})
}

// TestOldestVersion runs the tests that apply to workload clusters of every version on the oldest tested API server.
func TestOldestVersion(t *testing.T) {
	parallel(t, 40*time.Second)
	version, built, err := controlplane.OldestVersion()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case built:
	case os.Getenv("CAPNM_TEST_OLDEST") != "":
		t.Fatalf("kube-apiserver %s isn't built", version)
	default:
		t.Skipf("kube-apiserver %s isn't built: `make test-oldest` does", version)
	}
	all := newAdmission(t, controlplane.Options{Name: "oldest", OldestAPIServer: true})
	t.Run("R9: validates and admits in a workload cluster of the oldest version", func(t *testing.T) {
		served, err := discovery.NewDiscoveryClientForConfigOrDie(all.cp.AdminConfig()).ServerVersion()
		if err != nil || served.GitVersion != version {
			t.Fatalf("the API server is of version %v, not %s (%v)", served, version, err)
		}
		for range *repeat {
			testAdmission(t, all.sub(t))
			testNodeMaintenanceValidation(t, all.validation(t))
			removeAll(t, NewWithT(t), all.admin)
		}
	})
}

func TestBundleWithoutAdmissionPolicies(t *testing.T) {
	parallel(t, 10*time.Second)
	t.Run("R9: installs the CRDs in a workload cluster that does not serve admission policies", func(t *testing.T) {
		g := NewWithT(t)
		cp := controlplane.ForTest(t, controlplane.Options{Name: "no-policies", ExtraArgs: map[controlplane.Component][]string{
			controlplane.APIServer: {
				"--runtime-config=admissionregistration.k8s.io/v1=false",
				"--disable-admission-plugins=ValidatingAdmissionPolicy,ValidatingAdmissionWebhook,MutatingAdmissionPolicy,MutatingAdmissionWebhook",
			},
		}})
		c, err := client.New(cp.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
		g.Expect(err).NotTo(HaveOccurred())
		policy := &unstructured.Unstructured{}
		policy.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"))
		_, err = c.RESTMapper().RESTMapping(policy.GroupVersionKind().GroupKind(), policy.GroupVersionKind().Version)
		g.Expect(err).To(HaveOccurred(), "it is served")
		(&admission{T: t, WithT: g, admin: c}).applyBundle(
			"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
			"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
			"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
		// Discovery returns a kind a moment after its CRD is established.
		g.Eventually(func() error { return c.Create(t.Context(), maintenance("one")) }, soon, pace).Should(Succeed())
	})
}
