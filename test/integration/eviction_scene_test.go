package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// The vocabulary of tests of evictions: PodDisruptionBudgets, Pods that are not ready, and admission that denies or hangs.

// withApp sets the label that PodDisruptionBudgets select.
func withApp(app string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels["app"] = app }
}

// onlyOn prevents replacements from being scheduled to other Nodes.
func onlyOn(node string) func(*corev1.PodTemplateSpec) {
	return func(template *corev1.PodTemplateSpec) {
		template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
}

// budgetRequiring returns a PodDisruptionBudget that requires n available Pods labelled app.
func budgetRequiring(app string, n int, changes ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	needed := intstr.FromInt(n)
	pdb := budget(app, 0)
	pdb.Spec.MaxUnavailable, pdb.Spec.MinAvailable = nil, &needed
	for _, change := range changes {
		change(pdb)
	}
	return pdb
}

// editBudget changes a PodDisruptionBudget.
func (s *scene) editBudget(name string, change func(*policyv1.PodDisruptionBudget)) {
	s.Helper()
	pdb := read(s, s.workload.Client, keyOf(name), &policyv1.PodDisruptionBudget{})
	s.patch(s.workload.Client, pdb, func() { change(pdb) })
}

// makeUnready makes running Pods not ready.
func (s *scene) makeUnready(names ...string) {
	s.Helper()
	for _, name := range names {
		pod := s.pod(name)
		before := pod.DeepCopy()
		for i := range pod.Status.Conditions {
			if kind := pod.Status.Conditions[i].Type; kind == corev1.PodReady || kind == corev1.ContainersReady {
				pod.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		s.Expect(s.workload.Client.Status().Patch(s.Context(), pod, client.MergeFrom(before))).To(Succeed())
	}
}

// expectHealthy waits until the disruption controller has counted this number of healthy Pods.
func (s *scene) expectHealthy(name string, healthy int32) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		pdb := read(g, s.workload.Client, keyOf(name), &policyv1.PodDisruptionBudget{})
		g.Expect(pdb.Status.ObservedGeneration).To(Equal(pdb.Generation))
		g.Expect(pdb.Status.CurrentHealthy).To(Equal(healthy))
	}, soon, pace).Should(Succeed())
}

// expectWaits waits until the Evacuation of a Pod reports what the eviction waits for.
func (s *scene) expectWaits(pod *corev1.Pod, reason, message string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		e := read(g, s.workload.Client, evacuationKey(pod), &v1alpha1.Evacuation{})
		evicting := ptr.Deref(meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting), metav1.Condition{})
		g.Expect(evicting.Reason).To(Equal(reason), evicting.Message)
		g.Expect(evicting.Message).To(ContainSubstring(message))
		g.Expect(e.Status.Message).To(Equal(evicting.Message))
	}, soon, pace).Should(Succeed(), "Pod %s", pod.Name)
}

// expectRefused waits until the Evacuation of a Pod reports and counts a refused eviction.
func (s *scene) expectRefused(pod *corev1.Pod, reason, message string) {
	s.Helper()
	s.expectWaits(pod, reason, message)
	s.Expect(s.existing(pod).Status.FailedEvictionCounter).To(BeNumerically(">=", 1))
}

// expectDeleted waits until Pods are deleted.
func (s *scene) expectDeleted(pods ...*corev1.Pod) {
	s.Helper()
	for _, pod := range pods {
		s.Eventually(func() bool {
			now := &corev1.Pod{}
			err := s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(pod), now)
			return apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID
		}, eventually, pace).Should(BeTrue(), "Pod %s", pod.Name)
	}
}

func evacuationKey(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: evacuation.Name(pod.UID, pod.Name)}
}

// requestFor returns an Evacuation of another instigator, which knows only the name and UID of the Pod.
func requestFor(pod *corev1.Pod) *v1alpha1.Evacuation {
	return &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: evacuation.Name(pod.UID, pod.Name),
			Finalizers: []string{v1alpha1.InstigatorFinalizerPrefix + "descheduler.example.com"},
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: pod.Name, UID: string(pod.UID)}},
	}
}

// completeEvacuator reports that the active evacuator of a Pod has completed.
func (s *scene) completeEvacuator(pod *corev1.Pod) {
	s.Helper()
	e := s.evacuation(pod)
	if e == nil {
		return
	}
	before := e.DeepCopy()
	e.Status.ActiveEvacuatorCompleted = true
	s.Expect(client.IgnoreNotFound(s.workload.Client.Status().Patch(s.Context(), e, client.MergeFrom(before)))).To(Succeed())
}

// expectEventOn waits for an event about an object.
func (s *scene) expectEventOn(name, reason, message string) {
	s.Helper()
	s.expectEventIn(s.workload.Client, name, reason, message)
}

// expectEventIn waits for an event in a cluster.
func (s *scene) expectEventIn(c client.Client, name, reason, message string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		events, said := &corev1.EventList{}, []string{}
		g.Expect(c.List(s.Context(), events)).To(Succeed())
		for _, event := range events.Items {
			if event.InvolvedObject.Name == name && event.Reason == reason {
				said = append(said, event.Message)
			}
		}
		g.Expect(said).To(ContainElement(ContainSubstring(message)))
	}, eventually, pace).Should(Succeed())
}

// hangingWebhook is an admission webhook that does not respond to requests for objects whose names begin with a prefix until it is
// released.
type hangingWebhook struct {
	prefix   string
	called   atomic.Bool // with any request
	asked    chan string
	released chan struct{}
}

// hangEvictions starts a webhook for all evictions, and waits until the API server calls it. The API server waits 30 s for a response. On a
// busy machine, the test may need longer: then the API server refuses the evictions, and the manager repeats them.
func (s *scene) hangEvictions(prefix string) *hangingWebhook {
	s.Helper()
	s.mayBeRefused("the API server waits 30 s for the webhook")
	webhook := s.hang(s.workload.Client, prefix, ofEvictions)
	s.Eventually(func() bool { // the API server observes a webhook after a moment
		dryRun := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		_ = s.workload.Client.SubResource("eviction").Create(s.Context(), bare("probe", ""), dryRun)
		return webhook.called.Load()
	}, soon, pace).Should(BeTrue())
	return webhook
}

// ofEvictions matches all evictions.
var ofEvictions = admissionregistrationv1.RuleWithOperations{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
}

// hang starts a webhook that the API server of a client calls for requests that match a rule.
func (s *scene) hang(c client.Client, prefix string, rule admissionregistrationv1.RuleWithOperations) *hangingWebhook {
	s.Helper()
	webhook := &hangingWebhook{prefix: prefix, asked: make(chan string, 1000), released: make(chan struct{})}
	s.serveWebhook(c, "hang", webhook, rule)
	return webhook
}

// serveWebhook starts a webhook that the API server of a client calls for requests that match a rule, until the end of the test.
func (s *scene) serveWebhook(c client.Client, name string, handler http.Handler, rule admissionregistrationv1.RuleWithOperations) {
	s.Helper()
	server := httptest.NewTLSServer(handler)
	s.Cleanup(func() {
		server.CloseClientConnections() // the API server may still wait for responses
		server.Close()
	})
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{validatingWebhook(name, admissionregistrationv1.WebhookClientConfig{
			URL: ptr.To(server.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		}, rule)},
	}
	s.create(c, configuration)
	s.Cleanup(func() { _ = c.Delete(context.WithoutCancel(s.Context()), configuration) })
}

func validatingWebhook(name string, config admissionregistrationv1.WebhookClientConfig,
	rule admissionregistrationv1.RuleWithOperations,
) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: name + ".example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30), ClientConfig: config,
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionregistrationv1.Fail),
		Rules: []admissionregistrationv1.RuleWithOperations{rule},
	}
}

// reviewOf reads the request to a webhook.
func reviewOf(response http.ResponseWriter, request *http.Request) *admissionv1.AdmissionReview {
	review := &admissionv1.AdmissionReview{}
	body, err := io.ReadAll(request.Body)
	if err != nil || json.Unmarshal(body, review) != nil || review.Request == nil {
		http.Error(response, "no review", http.StatusBadRequest)
		return nil
	}
	return review
}

// ServeHTTP implements http.Handler. It allows all requests, some of them after a delay.
func (w *hangingWebhook) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	review := reviewOf(response, request)
	if review == nil {
		return
	}
	w.called.Store(true)
	if strings.HasPrefix(review.Request.Name, w.prefix) {
		w.asked <- review.Request.Name
		select {
		case <-w.released:
		case <-request.Context().Done():
		}
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	_ = json.NewEncoder(response).Encode(review)
}

// refuseEvictions creates an admission policy that denies evictions of Pods whose names begin with a prefix, and returns its binding.
func (s *scene) refuseEvictions(prefix, why string) client.Object {
	s.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "keep"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: ofEvictions}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: `!request.name.startsWith("` + prefix + `")`, Message: why}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "keep"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "keep", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	s.create(s.workload.Client, policy, binding)
	probe := bare(prefix+"-probe", "nowhere")
	s.create(s.workload.Client, probe)
	s.Eventually(func() error { // the API server observes a policy after a moment
		return s.workload.Client.SubResource("eviction").Create(s.Context(), probe, &policyv1.Eviction{
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		})
	}, soon, pace).Should(MatchError(ContainSubstring(why)))
	s.Expect(s.workload.Client.Delete(s.Context(), probe, client.GracePeriodSeconds(0))).To(Succeed())
	return binding
}

// graceOf returns the grace period in an eviction, or -1.
func graceOf(eviction controlplane.Event) int64 {
	var body struct {
		DeleteOptions metav1.DeleteOptions `json:"deleteOptions"`
	}
	if json.Unmarshal(eviction.RequestObject, &body) != nil {
		return -1
	}
	return ptr.Deref(body.DeleteOptions.GracePeriodSeconds, -1)
}
