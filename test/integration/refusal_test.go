package integration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

var updateResponses = flag.Bool("update-responses", false, "whether to write the API server's responses to evictions to "+responsesFile)

// responsesFile has the API server's responses to evictions that it refuses, by what refuses them.
const responsesFile = "../../controllers/evictor/testdata/responses.json"

// gate is an admission webhook that denies evictions of some Pods.
type gate struct {
	mu      sync.Mutex
	answers map[string]*metav1.Status // by Pod; others are allowed
	denied  map[string]int            // numbers of requests that were denied
	asked   map[string]int            // numbers of requests
	hang    chan struct{}             // ends requests for the Pod hangsOn
}

const hangsOn = "e64-hangs"

// gateEvictions starts a gate, and waits until the API server calls it.
func (s *scene) gateEvictions(answers map[string]*metav1.Status) *gate {
	s.Helper()
	const probe = "gate-probe"
	answers[probe] = nil
	g := &gate{answers: answers, denied: map[string]int{}, asked: map[string]int{}, hang: make(chan struct{})}
	s.serveWebhook(s.workload.Client, "gate", g, ofEvictions)
	s.Eventually(func() error { return s.evictAs(s.workload.AdminConfig(), namespace, probe) }, soon, pace).
		Should(MatchError(ContainSubstring("denied the request")))
	return g
}

// open makes the gate allow the eviction of a Pod, and returns how many requests it has denied.
func (g *gate) open(pod string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.answers, pod)
	return g.denied[pod]
}

// notes returns a function that returns how many eviction requests for a Pod the gate has received.
func (g *gate) notes(pod string) func() int {
	return func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.asked[pod]
	}
}

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	review := reviewOf(response, request)
	if review == nil {
		return
	}
	if review.Request.Name == hangsOn {
		<-g.hang
	}
	g.mu.Lock()
	g.asked[review.Request.Name]++
	answer, denies := g.answers[review.Request.Name]
	if denies {
		g.denied[review.Request.Name]++
	}
	g.mu.Unlock()
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !denies, Result: answer}
	review.Request = nil
	_ = json.NewEncoder(response).Encode(review)
}

// evictAs requests a dry run of an eviction, in the way in which the manager requests evictions. Admission does not require that the Pod
// exists.
func (s *scene) evictAs(config *rest.Config, namespace, pod string) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}
	return clients.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, clientgoscheme.ParameterCodec).
		Body(eviction).MaxRetries(0).Do(s.Context()).Error()
}

// webhookSaysLater denies evictions by a webhook for a while.
func webhookSaysLater(s *scene) {
	s.mayBeRefused("an admission webhook denies evictions for a while")
	s.withNodes("e65")
	later, moved := bare("e65-later", "e65"), bare("e65-moved", "e65")
	s.run(later, moved)
	says := func(message string, seconds int32) *metav1.Status {
		return &metav1.Status{Code: http.StatusTooManyRequests, Message: message, Details: &metav1.StatusDetails{RetryAfterSeconds: seconds}}
	}
	gate := s.gateEvictions(map[string]*metav1.Status{later.Name: says("later", 0), moved.Name: says("its operator moves it", 60)})
	s.maintain(nm("e65", draining, ofNodes("e65")))
	s.expectRefused(moved, v1alpha1.ReasonWebhookRefused,
		`An admission webhook refused the eviction: admission webhook "gate.example.com" denied the request: its operator moves it`)

	requests := s.evictions().Named(namespace, moved.Name)
	s.Expect(requests).To(HaveLen(1), "the webhook has asked to wait for a minute")
	s.Expect(gate.open(moved.Name)).To(Equal(1))
	s.annotate(s.pod(moved.Name), "example.com/moved", "true")
	s.expectDeleted(moved)
	s.Expect(s.evictions().Named(namespace, moved.Name)).To(HaveLen(2))
	s.Expect(s.first(s.evictions().Named(namespace, moved.Name).Succeeded()).Requested).
		To(BeTemporally("<", requests[0].Requested.Add(time.Minute)), "the Pod has changed")

	s.expectRefused(later, v1alpha1.ReasonWebhookRefused, "denied the request: later")
	s.Eventually(func() int { return s.evictions().Named(namespace, later.Name).Len() }, soon, pace).Should(BeNumerically(">=", 3))
	denied := gate.open(later.Name)
	s.expectDeleted(later)
	s.Expect(s.evictions().Named(namespace, later.Name)).To(HaveLen(denied+1), "the first request after the webhook has opened succeeds")
	s.deleteMaintenances("e65")
}

// evictionIsTheSignal drains Pods whose budget never allows a disruption. An operator moves them when its webhook has received the eviction
// request.
func evictionIsTheSignal(s *scene) {
	s.mayBeRefused("eviction requests serve as signals")
	s.withNodes("e74")
	allowed, denied := bare("e74-allowed", "e74", withApp("e74")), bare("e74-denied", "e74", withApp("e74"))
	kept, another := bare("e74-kept", "e74", withApp("e74")), bare("e74-another", "e74", withApp("e74-another"))
	s.run(allowed, denied, kept, another)
	s.create(s.workload.Client, budgetRequiring("e74", 3), budgetRequiring("e74-another", 1))
	s.expectHealthy("e74", 3)
	s.expectHealthy("e74-another", 1)
	before := s.metrics()
	since := func(result string) float64 {
		return s.metrics().Sum("capnm_evictions_total", pairs([]string{"result", result})) - before.Sum("capnm_evictions_total", pairs([]string{"result", result}))
	}
	later := &metav1.Status{Code: http.StatusTooManyRequests, Message: "its operator moves it", Details: &metav1.StatusDetails{RetryAfterSeconds: 600}}
	gate := s.gateEvictions(map[string]*metav1.Status{denied.Name: later})
	s.maintain(nm("e74", draining, ofNodes("e74")))
	for _, pod := range []*corev1.Pod{allowed, denied, kept, another} {
		s.Eventually(gate.notes(pod.Name), soon, pace).Should(BeNumerically(">=", 1), "Pod %s", pod.Name)
		s.expectWaits(pod, string(budgets.BudgetExhausted), "; webhook gate.example.com receives the eviction requests of this Pod; its owner may move the Pod")
		s.Expect(s.existing(pod).Status.FailedEvictionCounter).To(BeZero(), "a signal is no refusal")
	}
	s.deletePods(allowed.Name, denied.Name) // the operator has moved them
	s.expectDeleted(allowed, denied)

	s.Eventually(gate.notes(kept.Name), eventually, pace).Should(BeNumerically(">=", 2))
	var requests controlplane.Events
	s.Eventually(func() int {
		requests = s.evictions().Named(namespace, kept.Name)
		return len(requests)
	}, soon, pace).Should(BeNumerically(">=", 2), "the webhook receives a request before it is in the audit log")
	s.Expect(requests[1].Requested).To(BeTemporally(">=", requests[0].Requested.Add(signals.Interval-time.Second)))
	s.Expect(requests[0].UIDPrecondition()).To(Equal(kept.UID))
	s.Eventually(func() float64 { return since("signal") }, soon, pace).Should(BeNumerically(">=", 5))
	s.Expect(since("refused") + since("error")).To(BeZero())

	s.editBudget("e74", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MinAvailable = ptr.To(intstr.FromInt(0)) })
	s.expectDeleted(kept)
	requests = s.evictions().Named(namespace, kept.Name)
	granted, signal := requests[len(requests)-1], requests[len(requests)-2]
	s.Expect(granted.Code).To(BeEquivalentTo(http.StatusCreated))
	s.Expect(granted.Requested).To(BeTemporally("<", signal.Requested.Add(signals.Interval)), "the signal has delayed no eviction")

	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "gate"}}
	s.Expect(s.workload.Client.Delete(s.Context(), configuration)).To(Succeed())
	signaled := s.evictions().Named(namespace, another.Name).Len()
	s.Eventually(func(g Gomega) {
		evicting := meta.FindStatusCondition(s.existing(another).Status.Conditions, v1alpha1.EvacuationEvicting)
		g.Expect(evicting.Message).NotTo(ContainSubstring("gate.example.com"))
	}, eventually, pace).Should(Succeed())
	s.Expect(s.evictions().Named(namespace, another.Name)).To(HaveLen(signaled), "the webhook no longer exists")
	s.editBudget("e74-another", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MinAvailable = ptr.To(intstr.FromInt(0)) })
	s.expectDeleted(another)
	s.deleteMaintenances("e74")
}

// responses collects the API server's responses to evictions that different parts of it refuse.
type responses struct {
	*scene
	of map[string]metav1.Status
}

// add waits until an eviction is refused with a text in the response.
func (r *responses) add(what string, config *rest.Config, namespace, pod, text string) {
	r.Helper()
	r.Eventually(func(g Gomega) {
		err := r.evictAs(config, namespace, pod)
		var response apierrors.APIStatus
		g.Expect(errors.As(err, &response)).To(BeTrue(), "%v", err)
		encoded, err := json.Marshal(response.Status())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(encoded)).To(ContainSubstring(text))
		r.of[what] = response.Status()
	}, soon, pace).Should(Succeed(), what)
}

// refusingResponses compares the API server's responses to those for which the evictor is tested.
func refusingResponses(s *scene) {
	s.withNodes("e64")
	r := &responses{scene: s, of: map[string]metav1.Status{}}
	defer r.update() // also if one of them was not as expected
	r.addWebhooks()
	r.addPolicies()
	r.addBudgets()
	r.addAuthorization()
	r.expectNoQuota()
	r.update()

	encoded, err := os.ReadFile(responsesFile)
	s.Expect(err).NotTo(HaveOccurred())
	known := map[string]metav1.Status{}
	s.Expect(json.Unmarshal(encoded, &known)).To(Succeed())
	for what, response := range r.of {
		s.Expect(known).To(HaveKeyWithValue(what, response))
	}
	s.Expect(known).To(HaveLen(len(r.of)))
}

// update writes the responses, if a flag says so.
func (r *responses) update() {
	r.Helper()
	if !*updateResponses {
		return
	}
	encoded, err := json.MarshalIndent(r.of, "", "  ")
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(os.WriteFile(responsesFile, append(encoded, '\n'), 0o600)).To(Succeed())
}

func (r *responses) addWebhooks() {
	r.Helper()
	pods := &metav1.StatusDetails{Kind: "pods", Name: "e64"}
	imitation := []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget e64 needs 1 healthy pods and has 1 currently"}}
	answers := map[string]*metav1.Status{
		"a webhook that says later":           {Code: http.StatusTooManyRequests, Message: "later", Details: &metav1.StatusDetails{RetryAfterSeconds: 45}},
		"a webhook that forbids the eviction": {Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "not today"},
		"a webhook that says nothing":         nil,
		"a webhook that says not found":       {Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "no such volume", Details: pods},
		"a webhook that says conflict":        {Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "in use", Details: pods},
		"a webhook that says unauthorized":    {Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Message: "who are you"},
		"a webhook that says timeout":         {Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "too slow"},
		"a webhook that imitates a budget":    {Code: http.StatusTooManyRequests, Message: "a budget", Details: &metav1.StatusDetails{Causes: imitation}},
		"a webhook that says namespace deleted": {
			Code: http.StatusForbidden, Message: "gone", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
		},
	}
	byPod, podOf := map[string]*metav1.Status{}, map[string]string{}
	for what, answer := range answers {
		podOf[what] = fmt.Sprintf("e64-webhook-%d", len(podOf))
		byPod[podOf[what]] = answer
	}
	g := r.gateEvictions(byPod)
	r.Cleanup(func() { close(g.hang) })
	for what, pod := range podOf {
		r.add(what, r.workload.AdminConfig(), namespace, pod, "denied the request")
	}

	down := validatingWebhook("down", admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1")}, ofEvictions)
	down.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "e64", Expression: `request.name == "e64-down"`}}
	condition := validatingWebhook("condition", down.ClientConfig, ofEvictions)
	condition.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "e64", Expression: `request.name == "e64-condition" && object.missing.field == 1`}}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "e64"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{down, condition},
	}
	r.createFor(configuration)
	r.add("a webhook that does not run", r.workload.AdminConfig(), namespace, "e64-down", "failed calling webhook")
	r.add("a webhook whose match condition cannot be evaluated", r.workload.AdminConfig(), namespace, "e64-condition", "no such key")
	r.Expect(r.workload.Client.Delete(r.Context(), configuration)).To(Succeed())
}

// createFor creates objects for the scene.
func (r *responses) createFor(objects ...client.Object) {
	r.Helper()
	r.create(r.workload.Client, objects...)
	r.Cleanup(func() {
		for _, object := range objects {
			_ = r.workload.Client.Delete(context.WithoutCancel(r.Context()), object)
		}
	})
}

func (r *responses) addPolicies() {
	r.Helper()
	constraints := &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: ofEvictions}}}
	named := metav1.ObjectMeta{Name: "e64"}
	r.createFor(
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: named, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Fail), MatchConstraints: constraints,
			Validations: []admissionregistrationv1.Validation{
				{Expression: `request.name != "e64-policy"`, Message: "not today"},
				{Expression: `request.name != "e64-user"`, Message: "not you", Reason: ptr.To(metav1.StatusReasonForbidden)},
				{Expression: `request.name != "e64-error" || object.missing.field == 1`},
			},
		}},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "e64", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		}},
		&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: named, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Fail), MatchConstraints: constraints, ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "e64", Expression: `request.name == "e64-mutating"`}},
			Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{
				Expression: `[JSONPatch{op: "add", path: "/metadata/labels", value: object.missing.field}]`,
			}}},
		}},
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: named, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "e64"},
		},
	)
	admin := r.workload.AdminConfig()
	r.add("an admission policy", admin, namespace, "e64-policy", "denied request: not today")
	r.add("an admission policy with the reason Forbidden", admin, namespace, "e64-user", "denied request: not you")
	r.add("an admission policy that cannot be evaluated", admin, namespace, "e64-error", "no such key")
	r.add("a mutating admission policy that cannot be evaluated", admin, namespace, "e64-mutating", "no such key")
}

func (r *responses) addBudgets() {
	r.Helper()
	var pods []*corev1.Pod
	for _, name := range []string{"e64-exhausted", "e64-two", "e64-processed", "e64-full", "e64-quota"} {
		pods = append(pods, bare(name, "e64"))
	}
	r.run(pods...)
	second := budgetRequiring("e64-two", 0)
	second.Name = "e64-second"
	r.create(r.workload.Client, budgetRequiring("e64-exhausted", 1), budgetRequiring("e64-two", 0), second, budgetRequiring("e64-full", 0))
	r.expectHealthy("e64-exhausted", 1)
	r.expectHealthy("e64-full", 1)
	admin := r.workload.AdminConfig()
	r.add("a budget", admin, namespace, "e64-exhausted", "needs 1 healthy pods and has 1 currently")
	r.add("two budgets", admin, namespace, "e64-two", "more than one PodDisruptionBudget")

	r.Expect(r.workload.StopComponent(r.Context(), controlplane.ControllerManager)).To(Succeed())
	doomed := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e64"}}
	r.create(r.workload.Client, budgetRequiring("e64-processed", 0), doomed)
	r.Expect(r.workload.Client.Delete(r.Context(), doomed)).To(Succeed())
	full := &policyv1.PodDisruptionBudget{}
	r.Expect(r.workload.Client.Get(r.Context(), keyOf("e64-full"), full)).To(Succeed())
	full.Status.DisruptedPods = map[string]metav1.Time{}
	for i := range 2001 {
		full.Status.DisruptedPods[fmt.Sprintf("e64-%d", i)] = metav1.Now()
	}
	r.Expect(r.workload.Client.Status().Update(r.Context(), full)).To(Succeed())
	r.add("a budget that is being updated", admin, namespace, "e64-processed", "is still being processed by the server")
	r.add("a budget with many evictions", admin, namespace, "e64-full", "DisruptedPods map too big")
	r.add("a namespace that is being deleted", admin, doomed.Name, "e64", "it is being terminated")
	r.Expect(r.workload.StartComponent(r.Context(), controlplane.ControllerManager)).To(Succeed())
}

func (r *responses) addAuthorization() {
	r.Helper()
	stranger, err := r.workload.ConfigFor("e64-stranger")
	r.Expect(err).NotTo(HaveOccurred())
	r.add("authorization", stranger, namespace, "e64-forbidden", "cannot create resource")

	busy, err := r.workload.ConfigFor("e64-busy")
	r.Expect(err).NotTo(HaveOccurred())
	named, none := metav1.ObjectMeta{Name: "e64"}, ptr.To[int32](0)
	r.createFor(
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "e64-busy"}},
		},
		&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: named, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: none, LendablePercent: none, BorrowingLimitPercent: none,
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		}},
		&flowcontrolv1.FlowSchema{ObjectMeta: named, Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "e64"}, MatchingPrecedence: 100,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "e64-busy"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}}},
			}},
		}},
	)
	r.Eventually(func() error { // one request uses the seat of the priority level as soon as the API server knows it
		go func() { _ = r.evictAs(busy, namespace, hangsOn) }()
		return r.evictAs(busy, namespace, "e64-rejected")
	}, soon, 500*time.Millisecond).Should(Satisfy(apierrors.IsTooManyRequests))
	r.add("API Priority and Fairness", busy, namespace, "e64-rejected", "Too many requests, please try again later.")
	r.Expect(r.of["API Priority and Fairness"].Details.RetryAfterSeconds).To(BeNumerically(">=", 1))
	r.of["API Priority and Fairness"].Details.RetryAfterSeconds = 1 // it grows with the number of rejected requests
}

// expectNoQuota evicts a Pod although a quota is exceeded.
func (r *responses) expectNoQuota() {
	r.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metaNamed("e64", "e64"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("0"), "count/pods": resource.MustParse("0"), "count/evictions.policy": resource.MustParse("0"),
	}}}
	r.createFor(quota)
	more := func() error { return r.workload.Client.Create(r.Context(), bare("e64-more", "e64"), client.DryRunAll) }
	r.Eventually(more, soon, pace).
		Should(MatchError(ContainSubstring(" is forbidden: exceeded quota: e64, ")), "by these words, a surge recognizes a quota (E67)")
	r.Expect(r.evictAs(r.workload.AdminConfig(), namespace, "e64-quota")).To(Succeed())
	r.Expect(r.workload.Client.Delete(r.Context(), quota)).To(Succeed())
	r.Eventually(more, soon, pace).Should(Succeed(), "the API server remembers a deleted quota for half a minute")
}
