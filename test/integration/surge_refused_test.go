package integration

import (
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// refusedSurge drains a Node with a Deployment whose further Pods an admission policy refuses.
func (s *scene) refusedSurge() {
	s.withNodes("refused-1 pool=refused")
	s.runSurging(deployment("refused", 1, inPool("refused")))
	pod := s.podsOf("refused")[0]
	s.withNodes("refused-2 pool=refused")
	blocking, probe := budget("refused", 0), bare("refused-probe", "refused-2")
	s.create(s.workload.Client, blocking)
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}
	ours := `has(object.metadata.labels) && object.metadata.labels[?"app"].orValue("").startsWith("refused")`
	permit := s.refuse("refused", ours, rule, func() error { return s.workload.Client.Create(s.Context(), probe, client.DryRunAll) })
	s.create(s.workload.Client, surging("refused", v1alpha1.SurgeIfSingleReplica, "refused-1"))

	const why = "frozen"
	s.expectEventOn("refused", surge.EventCanceled, why)
	s.expectEventOn(pod.Name, "NotSurged", why)
	s.expectScaledBack("refused", 1)
	s.expectReport(&pod, `"reason":"`+string(surge.ReplicaFailure)+`"`, why)
	writes := s.ours().Resource("deployments").Named(namespace, "refused")
	s.Expect(writes).To(HaveLen(3), "the baseline, the number of replicas, and the restoration of both: %s", writes)
	s.Expect(writes[2].Requested.Sub(writes[1].Requested)).To(BeNumerically("<", time.Minute), "a surge that waits for a quota ends after three minutes")
	s.Eventually(func(g Gomega) { // the budget blocks the eviction, and the reason is still reported
		blocked := s.stored("refused").Status.NodeStatuses[0].Blocked
		g.Expect(blocked).To(ConsistOf(HaveField("Why", And(HavePrefix("Waiting for PodDisruptionBudget "), ContainSubstring("No surge: "), ContainSubstring(why)))))
	}, soon, pace).Should(Succeed())
	permit()
	s.Expect(s.workload.Client.Delete(s.Context(), blocking)).To(Succeed())
	s.expectDrained("refused")
	s.deleteMaintenances("refused")
}

// quotaEndsSurge drains the Node of a Deployment with one replica, whose budget allows no disruption and whose quota allows no other Pod.
func (s *scene) quotaEndsSurge(machine string) {
	defer s.removeWorkloads()
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeIfSingleReplica })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeNever })
	s.runOn(machine, "web", 1, deployment("web", 1, requesting("1m")), budget("web", 0))
	s.limitPods("few", 1)
	pod, why := s.podsOf("web")[0], overQuota("few", 1)
	s.deleteMachine(machine)

	s.expectEventOn("web", surge.EventCanceled, why)
	s.expectEventOn(pod.Name, "NotSurged", why)
	s.expectScaledBack("web", 1)
	s.expectReport(&pod, `"reason":"`+string(surge.ReplicaFailure)+`"`, why)
	s.Expect(s.reportsOf(&pod)).NotTo(ContainElement(And(ContainSubstring("Adding replicas"), ContainSubstring(why))), "it waits for no other Pods")
	writes := s.ours().Resource("deployments").Named(namespace, "web")
	s.Expect(writes).To(HaveLen(3), "the baseline, the number of replicas, and the restoration of both: %s", writes)

	blocked := And(ContainSubstring("Waiting for PodDisruptionBudget default/web"), ContainSubstring(why))
	s.Eventually(func() string { return s.condition(machine).Message }, soon, pace).Should(And(blocked, ContainSubstring("No surge: ")))
	problem := ConsistOf(And(HaveField("Message", blocked), HaveField("Fix", HaveSuffix(" For the next drain, change the quota or the admission policy that "+
		"refuses the new Pod."))))
	s.Expect(s.why("pod", pod.Name, "-n", namespace).Problems).To(problem)
	predicted, code := s.predict("machine", machine)
	s.Expect(code).To(Equal(1))
	s.Expect(predicted.Blockers).To(problem)

	s.allowMore("few")
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.podsOf("web")).To(ConsistOf(HaveField("UID", pod.UID)))
	s.setBudget("web", 1)
	s.expectGone(machine)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf(pod.Name))
	s.Expect(s.ours().Resource("deployments").Named(namespace, "web")).To(HaveLen(3), "no other surge")
}

// beginUnschedulable drains the only Node that the Pods of a Deployment can run on.
func (s *scene) beginUnschedulable() {
	s.withNodes("full-1 pool=full")
	d := deployment("full-up", 1, inPool("full"))
	d.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
	s.runSurging(d)
	s.create(s.workload.Client, budget("full-up", 0), surging("full-up", v1alpha1.SurgeIfSingleReplica, "full-1"))
	s.expectReplicas("full-up", 2)
}

func (s *scene) endUnschedulable() {
	const why = "is unschedulable: 0/"
	s.expectScaledBack("full-up", 1)
	s.expectEventOn("full-up", surge.EventCanceled, why)
	s.Eventually(func() []corev1.Pod { return s.podsOf("full-up") }, soon, pace).Should(ConsistOf(HaveField("Spec.NodeName", "full-1")))
	pod := s.podsOf("full-up")[0]
	s.expectReport(&pod, "Adding replicas before Pods are removed", why) // after 30 s
	s.expectReport(&pod, `"reason":"`+string(surge.Unschedulable)+`"`, why)
	s.deleteMaintenances("full-up")
}

func (s *scene) whatCannotSurgeIsEvicted() {
	s.withNodes("plain-1 pool=plain")
	s.create(s.workload.Client,
		&corev1.PersistentVolume{
			ObjectMeta: metaNamed("exclusive", ""),
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
			},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metaNamed("exclusive", ""),
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "exclusive", StorageClassName: new(string),
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		})
	recreate, several, claims := deployment("recreate", 1, inPool("plain")), deployment("several", 2, inPool("plain")),
		deployment("claims", 1, inPool("plain"), func(template *corev1.PodTemplateSpec) {
			template.Spec.Volumes = []corev1.Volume{{
				Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "exclusive"}},
			}}
		})
	recreate.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	full, keda := deployment("full", 1, inPool("plain")), deployment("keda", 1, inPool("plain"))
	owned := autoscaler("keda", 1, 5)
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "keda", UID: "keda", Controller: ptr.To(true)}}
	s.create(s.workload.Client, autoscaler("full", 1, 1))
	paused, rolling := deployment("paused", 1, inPool("plain")), deployment("rolling", 1, inPool("plain"))
	s.runSurging(recreate, several, claims, full, keda, paused, rolling)
	s.create(s.workload.Client, owned)
	s.patchDeployment("paused", `{"spec":{"paused":true}}`)
	s.patchDeployment("rolling", `{"spec":{"template":{"spec":{"nodeSelector":{"pool":"none"}}}}}`)
	s.Eventually(func() []corev1.Pod { return s.podsOf("rolling") }, eventually, pace).Should(HaveLen(2))

	leaving := map[string]surge.Refusal{
		"recreate": surge.Recreated, "several": surge.TooManyReplicas, "claims": surge.ExclusiveVolume, "paused": surge.Paused, "rolling": surge.Progressing,
		"full": surge.AutoscalerAtMaximum, "keda": surge.ForeignAutoscaler,
	}
	pods := map[string][]corev1.Pod{}
	for app := range leaving {
		for _, pod := range s.podsOf(app) {
			if pod.Spec.NodeName == "plain-1" {
				pods[app] = append(pods[app], pod)
			}
		}
		s.Expect(pods[app]).NotTo(BeEmpty(), app)
	}
	s.create(s.workload.Client, surging("plain", v1alpha1.SurgeIfSingleReplica, "plain-1"))
	s.expectDrained("plain")
	for app, refusal := range leaving {
		s.Expect(s.ours().Resource("deployments").Named(namespace, app)).To(BeEmpty(), app)
		for _, pod := range pods[app] {
			s.Expect(s.evictions().Succeeded().Names()).To(ContainElement(pod.Name), app)
			s.Expect(s.reportsOf(&pod)).To(ContainElement(ContainSubstring(`"reason":"`+string(refusal)+`"`)), app)
			s.expectEventOn(pod.Name, "NotSurged", "")
		}
	}
	s.deleteMaintenances("plain")
}

// beginWithoutMetrics drains a Node with a Deployment whose autoscaler has no metrics, so it adds replicas and removes none.
func (s *scene) beginWithoutMetrics() {
	s.withNodes("hpa-1 pool=hpa")
	s.runSurging(deployment("hpa", 2, inPool("hpa")))
	s.create(s.workload.Client, autoscaler("hpa", 1, 5))
	s.withNodes("hpa-2 pool=hpa")
	s.create(s.workload.Client, surging("hpa", v1alpha1.SurgeAlways, "hpa-1"))
}

// endWithoutMetrics cancels the drain after one of the two Pods has moved. The other Pod stays.
func (s *scene) endWithoutMetrics() {
	s.expectEventOn("hpa", surge.EventCompleted, "")
	s.Eventually(func(g Gomega) {
		g.Expect(s.podsOf("hpa")).To(ContainElement(HaveField("Spec.NodeName", "hpa-2")))
		g.Expect(s.ours().Resource("deployments").Named(namespace, "hpa").Where(contains(`"replicas":2`))).NotTo(BeEmpty())
	}, 2*surge.ReturnTime, 4*pace).Should(Succeed())
	s.deleteMaintenances("hpa")
	s.expectScaledBack("hpa", 2)
	s.expectMinReplicas("hpa", 1)
	restored := s.first(s.ours().Resource("horizontalpodautoscalers").Named(namespace, "hpa").Where(contains(`"minReplicas":1`)))
	written := s.first(s.ours().Resource("deployments").Named(namespace, "hpa").Where(contains(`"replicas":2`)))
	s.expectOrder(restored, written)
	s.Expect(s.evictions().Where(ofApp("hpa"))).To(BeEmpty())
}
