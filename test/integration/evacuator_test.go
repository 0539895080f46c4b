package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// migratorClass is the class of test/evacuator, and the name of its user.
const migratorClass = "migrator.example.com"

// evacuatorActs are the scenes of TestEvictions with an evacuator of a third party: test/evacuator, a separate process of an ordinary user,
// which uses only the annotation on Pods and the status of Evacuations.
var evacuatorActs = []act{
	{"E17: lets an evacuator delete a Pod without an eviction", migratorMigrates},
	{"E17: waits for an evacuator that crashes and continues", migratorCrashes},
	{"E9, E17: does not cancel an Evacuation whose evacuator forbids cancellation until its Pod is deleted", migratorForbids},
	{"E31: continues evacuators, progress deadlines and eviction with Forbid after the maintenance withdraws", forbidWithdrawn},
	{"E12, E17: activates the next evacuator when one declines", migratorDeclines},
	{"E14, E17: evicts the Pod of an unresponsive evacuator before a drain timeout that is set during the drain", migratorHangs},
	{"E4, E17: does not activate evacuators of third parties with evacuators BuiltIn", migratorNotAllowed},
	{"E39: does not activate the hundred evacuators of a tenant's earlier Evacuation with evacuators BuiltIn", hundredEvacuators},
	{"E17: the commands of the guide for authors of evacuators work", followAuthorsGuide},
}

func migratorMigrates(s *scene) {
	s.migrator("--parts=3")
	s.withNodes("e17")
	pod, plain := bare("e17", "e17", migrated), bare("e17-plain", "e17")
	s.run(pod, plain)
	s.maintain(nm("e17", draining, ofNodes("e17")))
	s.Eventually(func() string { return s.drained("e17") }, eventually, pace).Should(HavePrefix("True"))
	s.Expect(s.evictions().Names()).To(ConsistOf("e17-plain"))
	theirs := s.audited().By(migratorClass).Succeeded()
	s.Expect(theirs.Resource("evacuations", "status").Where(contains("parts.")).Len()).To(Equal(3))
	s.Expect(theirs.Verb("delete").Resource("pods").Names()).To(ConsistOf("e17"))
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(pod) }, soon, pace).Should(BeNil())
	s.deleteMaintenances("e17")
}

func migratorCrashes(s *scene) {
	process := s.migrator("--parts=10")
	s.withNodes("e17-crash")
	pod := bare("e17-crash", "e17-crash", migrated)
	s.run(pod)
	s.maintain(nm("e17-crash", draining, ofNodes("e17-crash")))
	s.expectSays(pod, "Copied ")
	process.Kill()
	s.Consistently(func(g Gomega) {
		g.Expect(s.activeClass(pod)).To(Equal(migratorClass))
		g.Expect(s.evictions()).To(BeEmpty())
	}, aMoment, pace).Should(Succeed())
	s.migrator("--parts=10")
	s.expectDeleted(pod)
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.audited().By(migratorClass).Succeeded().Resource("evacuations", "status").Where(contains("Copied 1 of 10 ")).Len()).To(BeNumerically("<=", 1))
	s.deleteMaintenances("e17-crash")
}

func migratorForbids(s *scene) {
	s.migrator("--parts=10000", "--behavior=forbid")
	s.withNodes("e9")
	pod := bare("e9", "e9", migrated)
	s.run(pod)
	s.maintain(nm("e9", draining, ofNodes("e9")))
	s.expectSays(pod, "Copied ")
	s.Expect(s.existing(pod).Status.EvacuationCancellationPolicy).To(Equal(v1alpha1.CancellationForbid))
	s.deleteMaintenances("e9") // the maintenance does not wait for the Evacuation
	s.Eventually(func() []string { return s.targets(pod) }, soon, pace).Should(BeEmpty())
	s.expectReleased("e9")
	s.Consistently(func() any { return s.existing(pod).DeletionTimestamp }, aMoment, pace).Should(BeNil())
	s.deletePods("e9")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(pod) }, soon, pace).Should(BeNil())
	s.Expect(s.evictions()).To(BeEmpty())
}

// forbidWithdrawn tests two evacuators that forbid cancellation: one completes, the other one crashes.
func forbidWithdrawn(s *scene) {
	process := s.migrator("--parts=10000", "--behavior=forbid")
	s.withNodes("e31")
	completes, dies := bare("e31-completes", "e31", withEvacuator), bare("e31-dies", "e31", migrated)
	completes.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+"next.test"] = "100"
	s.run(completes, dies)
	s.maintain(nm("e31", draining, ofNodes("e31")))
	s.expectSays(dies, "Copied ")
	s.Eventually(func() string { return s.activeClass(completes) }, soon, pace).Should(Equal(evacuatorClass))
	s.patchStatus(completes, `{"evacuationCancellationPolicy":"Forbid"}`)
	s.deleteMaintenances("e31")
	s.Eventually(func() []string { return s.targets(completes, dies) }, soon, pace).Should(BeEmpty())

	s.completeEvacuator(completes)
	s.Eventually(func() string { return s.activeClass(completes) }, soon, pace).Should(Equal("next.test"))
	s.Expect(s.evictions()).To(BeEmpty())
	s.completeEvacuator(completes)
	s.expectDeleted(completes)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("e31-completes"))

	process.Kill()
	s.patchStatus(dies, fmt.Sprintf(`{"evacuationProgressTimestamp":%q}`, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)))
	s.expectDeleted(dies)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("e31-completes", "e31-dies"))
	s.Eventually(func() []*v1alpha1.Evacuation {
		return []*v1alpha1.Evacuation{s.evacuation(completes), s.evacuation(dies)}
	}, soon, pace).Should(HaveEach(BeNil()))
}

// patchStatus changes the status of a Pod's Evacuation.
func (s *scene) patchStatus(pod *corev1.Pod, status string) {
	s.Helper()
	s.Expect(s.workload.Client.Status().Patch(s.Context(), s.existing(pod), client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`)))).To(Succeed())
}

func migratorDeclines(s *scene) {
	s.migrator("--behavior=decline")
	s.withNodes("e12")
	pod, handed := bare("e12", "e12", migrated), bare("e12-next", "e12", migrated, withEvacuator)
	handed.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+migratorClass] = "6000"
	s.run(pod, handed)
	s.maintain(nm("e12", draining, ofNodes("e12")))
	s.expectDeleted(pod) // there is no next evacuator: the Pod is evicted
	s.Eventually(func() string { return s.activeClass(handed) }, soon, pace).Should(Equal(evacuatorClass))
	s.Expect(s.existing(handed).Status.Message).To(Equal("Evacuator migrator.example.com has completed, but the Pod still exists. " +
		"Evacuator evacuator.test is active."))
	s.Expect(s.evictions().Names()).To(ConsistOf("e12"))
	s.completeEvacuator(handed)
	s.expectDeleted(handed)
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	s.deleteMaintenances("e12")
}

func migratorHangs(s *scene) {
	s.migrator("--behavior=hang")
	s.withNodes("e14")
	pod := bare("e14", "e14", migrated, stopsQuickly)
	s.run(pod)
	s.maintain(nm("e14", draining, ofNodes("e14"), endsAfter(3600)))
	s.expectSays(pod, "Copied 1 of 3 parts.")
	s.Consistently(func() string { return s.activeClass(pod) }, aMoment, pace).Should(Equal(migratorClass))

	// The remaining time is little more than the eviction and the termination of the Pod need.
	elapsed := time.Since(s.drainStart("e14"))
	ends := s.drainStart("e14").Add(elapsed + evacuation.EvictionMargin + 5*time.Second).Truncate(time.Second)
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("e14"), drainTimeout(ends.Sub(s.drainStart("e14"))))).To(Succeed())
	s.expectDeleted(pod)
	evicted := s.evictions().Succeeded()
	s.Expect(evicted.Names()).To(ConsistOf("e14"))
	s.Expect(evicted[0].Answered).To(BeTemporally("<", ends), "evicted after the drain timeout")
	s.deleteMaintenances("e14")
}

func migratorNotAllowed(s *scene) {
	s.migrator()
	s.withNodes("e4-builtin")
	pod := bare("e4-builtin", "e4-builtin", migrated)
	s.run(pod)
	s.maintain(nm("e4-builtin", draining, ofNodes("e4-builtin"), func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.Evacuators = v1alpha1.EvacuatorsBuiltIn }))
	s.expectDeleted(pod)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("e4-builtin"))
	s.Expect(s.audited().By(migratorClass).Writes()).To(BeEmpty())
	s.deleteMaintenances("e4-builtin")
}

// hundredEvacuators creates Evacuations before the drain, as a tenant can: one with a hundred evacuators that are resolved from the Pod,
// one that lists an evacuator, and one whose annotation names another Node.
func hundredEvacuators(s *scene) {
	s.withNodes("e39", "e39-other")
	hundred, listed := bare("e39-hundred", "e39"), bare("e39-listed", "e39")
	elsewhere, other := bare("e39-elsewhere", "e39", withEvacuator), bare("e39-other", "e39-other", withEvacuator)
	for i := range 100 {
		hundred.Annotations[fmt.Sprintf("%ssilent-%d.test", v1alpha1.EvacuatorPriorityAnnotationPrefix, i)] = "5000"
	}
	s.run(hundred, listed, other, elsewhere)
	for _, each := range []struct {
		pod    *corev1.Pod
		active string
	}{{hundred, "silent-0.test"}, {listed, "listed.test"}, {other, evacuatorClass}, {elsewhere, evacuatorClass}} {
		e := requestFor(each.pod)
		e.Spec.ProgressDeadlineSeconds = 21600
		switch each.pod {
		case listed:
			e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: each.active, Priority: 100}}
		case elsewhere:
			e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "e39-other"}
		}
		s.create(s.workload.Client, e)
		s.Eventually(func() string { return s.activeClass(each.pod) }, soon, pace).Should(Equal(each.active))
	}
	s.Expect(s.existing(elsewhere).Annotations).To(HaveKeyWithValue(v1alpha1.EvacuationNodeAnnotation, "e39"))
	s.Expect(s.existing(hundred).Spec.Evacuators).To(HaveLen(100))

	s.maintain(nm("e39", draining, ofNodes("e39"), func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.Evacuators = v1alpha1.EvacuatorsBuiltIn }))
	s.expectDeleted(hundred, listed, elsewhere)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("e39-hundred", "e39-listed", "e39-elsewhere"))
	s.Expect(s.reportsOf(hundred)).NotTo(ContainElement(ContainSubstring("silent-1.test")), "the next evacuator was activated")
	s.setFinalizers(other)
	s.deleteMaintenances("e39")
}

// migrated adds the evacuator of test/evacuator to a Pod.
func migrated(pod *corev1.Pod) {
	pod.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+migratorClass] = "5000"
}

func stopsQuickly(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) }

// endsAfter sets the drain timeout in seconds.
func endsAfter(seconds int32) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.DrainTimeoutSeconds = &seconds }
}

// drainTimeout returns a patch that sets the drain timeout.
func drainTimeout(timeout time.Duration) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"evacuation":{"drainTimeoutSeconds":%d}}}`, int(timeout.Seconds())))
}

func (s *scene) drainStart(name string) time.Time {
	s.Helper()
	for _, stage := range s.stored(name).Status.StageStatuses {
		if stage.Name == draining {
			return stage.StartTimestamp.Time
		}
	}
	return time.Time{}
}

// expectSays waits until the message of a Pod's Evacuation begins with a text.
func (s *scene) expectSays(pod *corev1.Pod, message string) {
	s.Helper()
	s.Eventually(func() string {
		if e := s.evacuation(pod); e != nil {
			return e.Status.Message
		}
		return ""
	}, soon, pace).Should(HavePrefix(message))
}

// withMigrators grants the user of the evacuator the permissions that docs/guide/evacuators.md lists.
func (s *scene) withMigrators() {
	s.Helper()
	name := metav1.ObjectMeta{Name: migratorClass}
	s.create(s.workload.Client,
		&rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"evacuations"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"evacuations/status"}, Verbs: []string{"patch"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "patch", "delete"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: name, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: migratorClass}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: migratorClass}},
	)
}

// migrator runs the evacuator until the end of the test.
func (s *scene) migrator(args ...string) *controlplane.Process {
	s.Helper()
	program := filepath.Join(s.workload.Dir(), "evacuator")
	if _, err := os.Stat(program); err != nil {
		output, err := exec.CommandContext(s.Context(), "go", "build", "-o", program, "../evacuator").CombinedOutput()
		s.Expect(err).NotTo(HaveOccurred(), "%s", output)
	}
	kubeconfig, err := s.workload.KubeconfigFor(migratorClass)
	s.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(s.workload.Dir(), "evacuator.kubeconfig")
	s.Expect(os.WriteFile(file, kubeconfig, 0o600)).To(Succeed())
	process, err := s.workload.RunProcess(s.Context(), controlplane.ProcessSpec{
		Name: "evacuator", Path: program, Args: append([]string{"--kubeconfig=" + file}, args...),
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.Cleanup(process.Kill)
	return process
}

func podNotFound(s *scene) {
	missing := bare("e2-missing", "")
	missing.UID = "6a1f5c2e-9d0b-4c3a-8e7f-1b2c3d4e5f60"
	e := requestFor(missing)
	s.create(s.workload.Client, e)
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(missing) }, soon, pace).Should(BeNil())
	removed := func() controlplane.Events {
		return s.ours().Resource("evacuations").Named(namespace, e.Name).Verb("delete")
	}
	s.Eventually(removed, soon, pace).ShouldNot(BeEmpty(), "its effect can be observed before it is in the audit log")
	failed := s.ours().Resource("evacuations", "status").Named(namespace, e.Name).Where(contains(v1alpha1.ReasonPodNotFound))
	s.expectOrder(s.first(failed), removed()[0])
}

// podsOfAMoment creates Evacuations immediately after their Pods, on a Node whose Pods are watched.
func podsOfAMoment(s *scene) {
	s.withNodes("e2")
	watched := bare("e2", "e2", withEvacuator)
	s.run(watched)
	s.create(s.workload.Client, requestFor(watched))
	s.Eventually(func() string { return s.activeClass(watched) }, soon, pace).Should(Equal(evacuatorClass))
	var pods []*corev1.Pod
	for i := range 100 {
		pods = append(pods, bare(fmt.Sprintf("e2-%d", i), "e2"))
	}
	var creations errgroup.Group
	creations.SetLimit(10)
	for _, pod := range pods {
		creations.Go(func() error {
			if err := s.workload.Client.Create(s.Context(), pod); err != nil {
				return err
			}
			e := requestFor(pod)
			e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "e2"}
			return s.workload.Client.Create(s.Context(), e)
		})
	}
	s.Expect(creations.Wait()).To(Succeed())
	s.expectDeleted(pods...)
	s.completeEvacuator(watched)
	s.expectDeleted(watched)
}

// forgedNodes creates Evacuations whose annotations name Nodes that do not exist: some of Pods that do not exist, and one of a Pod that
// runs on another Node. Then it creates one of a Pod that no Node can run.
func forgedNodes(s *scene) {
	const keep = "example.com/keep"
	s.withNodes("e37")
	pod := bare("e37", "e37")
	s.run(pod)
	var forged []*corev1.Pod
	for i := range 20 {
		missing := bare(fmt.Sprintf("e37-missing-%d", i), "")
		missing.UID = types.UID(fmt.Sprintf("6a1f5c2e-9d0b-4c3a-8e7f-%012d", i))
		forged = append(forged, missing)
	}
	for _, each := range append(forged, pod) {
		e := requestFor(each)
		e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "ghost-" + each.Name}
		e.Finalizers = append(e.Finalizers, keep)
		s.create(s.workload.Client, e)
	}
	for _, each := range forged {
		s.Eventually(func() []string { return s.existing(each).Finalizers }, soon, pace).Should(Equal([]string{keep}), each.Name)
	}
	watches := func() controlplane.Events {
		return s.audited().WithUserAgent(fleet.ManagerAgent).Verb("watch").Resource("pods")
	}
	s.Expect(watches().Where(func(event controlplane.Event) bool { return strings.Contains(event.URI, "ghost-") })).To(BeEmpty())
	s.expectDeleted(pod)
	s.Eventually(func() []string { return s.existing(pod).Finalizers }, soon, pace).Should(Equal([]string{keep}))
	s.Expect(watches().Where(func(event controlplane.Event) bool { return strings.Contains(event.URI, "spec.nodeName%3De37&") })).To(HaveLen(1), "%s", watches())
	for _, each := range append(forged, pod) {
		s.setFinalizers(each)
	}

	pending := bare("e37-pending", "", func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"pool": "e37"} })
	s.create(s.workload.Client, pending)
	s.create(s.workload.Client, requestFor(pending))
	s.Eventually(func() map[string]string { return s.existing(pending).Annotations }, soon, pace).Should(HaveKeyWithValue(v1alpha1.EvacuationNodeAnnotation, ""))
	s.setFinalizers(pending) // it is cancelled
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(pending) }, soon, pace).Should(BeNil())
	s.Expect(watches().Where(func(event controlplane.Event) bool { return strings.Contains(event.URI, "spec.nodeName%3D&") })).
		To(BeEmpty(), "all Pods that are not scheduled")
	s.Expect(s.workload.Client.Delete(s.Context(), pending)).To(Succeed())
}

func invalidAnnotation(s *scene) {
	s.withNodes("e4")
	pod := bare("e4", "e4", withEvacuator)
	pod.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+"loud.example.com"] = "very high"
	s.run(pod)
	s.create(s.workload.Client, requestFor(pod))
	s.Eventually(func() string { return s.activeClass(pod) }, soon, pace).Should(Equal(evacuatorClass))
	s.expectEventOn("e4", "InvalidEvacuatorAnnotation", "very high")
	s.Expect(s.existing(pod).Labels).To(HaveKeyWithValue("app", "e4"), "E5")
	s.Expect(s.existing(pod).OwnerReferences).To(ContainElement(HaveField("UID", pod.UID)), "E5")
	s.deletePods("e4")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(pod) }, soon, pace).Should(BeNil(), "E8: instigators of other actors are removed, too")
}
