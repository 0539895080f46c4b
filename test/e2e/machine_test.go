package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// The specs share a Cluster with one control plane Machine and two workers.
var _ = Describe("Machines", Ordered, Label("short"), func() {
	var w *workloadCluster

	BeforeAll(func(ctx context.Context) {
		w = newWorkloadCluster(ctx, "machines", 1, 2)
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.waitHooks(ctx)
	})
	BeforeEach(func(ctx context.Context) { w.waitAvailable(ctx, 1, 2) })
	AfterAll(func(ctx context.Context) {
		if w != nil && !CurrentSpecReport().Failed() {
			w.delete(ctx)
		}
	})

	It("drains the Node of a deleted Machine by rules, labels and budgets", func(ctx context.Context) {
		deleted, pods := w.applyToOneWorker(ctx, read("testdata/applications.yaml"))
		node := deleted.Status.NodeRef.Name
		Expect(pods).To(HaveLen(17))
		job := pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels["app"] == "job" })]
		Expect(job.Status.Phase).To(Equal(corev1.PodRunning))

		client, begin := w.pollSingle(ctx), len(w.events())
		plugin := buildPlugin(ctx, "--kubeconfig="+management.kubeconfig, "--namespace="+w.name)
		recording := plugin.record(ctx)
		Expect(plugin.output(ctx, "plan", "machine", deleted.Name)).To(And(ContainSubstring("Node "+node), ContainSubstring("default/db-0"),
			ContainSubstring("machine-drain-rule/")))
		Expect(management.client.Delete(ctx, deleted)).To(Succeed())
		Eventually(func() string { return plugin.output(ctx, "status") }, eventually, pace).
			Should(MatchRegexp("NodeMaintenance %s-[0-9a-f]+, stage Drain", deleted.Name))
		Expect(plugin.output(ctx, "why", "machine", deleted.Name)).To(ContainSubstring("Machine " + w.name + "/" + deleted.Name))

		// Each message stays until the test changes what the drain waits for.
		By("the condition of the Machine while Pods must complete, because of a rule and of a label")
		expectDraining(ctx, deleted, `0 Pods evacuating, 2 pending, 4 skipped
\* Pod default/job-\w+: Waiting for completion \(rule machine-drain-rule/job\)
\* Pod default/waiting: Waiting for completion \(label cluster\.x-k8s\.io/drain: wait-completed\)`)
		w.terminate(ctx, job)
		w.terminate(ctx, of(pods, "waiting")[0])
		By("the condition of the Machine while a budget allows no eviction of the Pods of the next order")
		expectDraining(ctx, deleted, `2 Pods evacuating, 0 pending, 4 skipped
\* Pods default/last-\S+, default/last-\S+: Waiting for PodDisruptionBudget default/last: 2 healthy Pods required; it never allows a `+
			`disruption \(maxUnavailable: 0\)\. No surge: Surge policy IfSingleReplica does not apply: Deployment default/last declares 2 replicas`)
		w.setBudget(ctx, "last", 1)
		expectGone(ctx, management.client, deleted)
		w.waitReady(ctx)
		client.expectAnswered("the Service")

		events := w.events()[begin:]
		evictions := w.expectEvictions(events, pods, map[string]int{"web": 4, "api": 3, "db": 2, "last": 2, "stubborn": 1})
		removed := events.Verb("delete").Resource("nodes").Named("", node).Succeeded()
		Expect(removed).NotTo(BeEmpty())

		By("the report of a recording")
		recorded := recording.stop()
		for _, eviction := range evictions {
			Expect(recorded).To(ContainSubstring(string(eviction.UIDPrecondition())), eviction.String())
		}
		Expect(plugin.output(ctx, "report", recording.file, "-o", "md")).To(And(ContainSubstring(deleted.Name), ContainSubstring("default/web")))
		Expect(plugin.output(ctx, "report", recording.file)).To(HavePrefix("<!DOCTYPE html>"))

		By("the rules and the labels that leave Pods on the Node")
		for _, app := range []string{"skipped", "labelled", "job", "waiting"} {
			for _, pod := range of(pods, app) {
				for _, deletion := range events.Verb("delete").Resource("pods").Named("default", pod.Name).Succeeded() {
					Expect(deletion.Requested).To(BeTemporally(">", removed[0].Requested), "%s, before the Node", deletion)
				}
			}
		}
		By("the rule that waits for the Job")
		completed := get(ctx, Default, w.Client, &batchv1.Job{ObjectMeta: named("default", "job")})
		Expect(completed.Status.Succeeded).To(BeEquivalentTo(1))
		Expect(completed.Status.Failed).To(BeZero())
		Expect(removed[0].Requested).To(BeTemporally(">", completed.Status.CompletionTime.Time))

		By("the order of the rule")
		first := of(pods, "last")[0].Name
		firstOfLast := slices.IndexFunc(evictions, func(e controlplane.Event) bool { return strings.HasPrefix(e.Name, "last-") })
		Expect(firstOfLast).To(BeNumerically(">=", 0), first)
		for _, app := range []string{"web", "api", "db", "single", "stubborn"} {
			for _, pod := range of(pods, app) {
				Expect(ended(events, pod)).To(BeTemporally("<", evictions[firstOfLast].Requested), "%s had terminated before the first Pod of the next order was evicted",
					pod.Name)
			}
		}
		By("the order of the StatefulSet")
		Expect(evictionsOf(evictions, "db-").Names()).To(Equal([]string{"db-1", "db-0"}))

		By("the Pod that ignores SIGTERM")
		stubborn := of(pods, "stubborn")[0]
		Expect(ended(events, stubborn).Sub(evictionsOf(evictions, "stubborn")[0].Answered)).To(BeNumerically(">=", 7*time.Second))
		Expect(removed[0].Requested).To(BeTemporally(">", ended(events, stubborn)))

		By("the surge of the single replica")
		single := get(ctx, Default, w.Client, &appsv1.Deployment{ObjectMeta: named("default", "single")})
		Expect(*single.Spec.Replicas).To(BeEquivalentTo(1))
		Expect(replicasOf(events, "single")).To(Equal([]int32{2, 1}), "one replica more, and back")
	})

	It("rolls out a MachineDeployment without a failed request", func(ctx context.Context) {
		before := w.workers(ctx, Default)
		begin := len(w.events())
		client := w.pollSingle(ctx)
		deployment := w.machineDeployment(ctx)
		patch(ctx, deployment, func() { deployment.Spec.Rollout.After = metav1.Now() })
		w.waitReplaced(ctx, before, w.workers)
		w.waitReady(ctx)
		client.expectAnswered("the Service")
		w.expectOursEvict(w.events()[begin:])
	})

	It("rolls out a KubeadmControlPlane, and the API server answers", func(ctx context.Context) {
		before := w.controlPlanes(ctx, Default)
		begin := len(w.events())
		client := w.pollAPIServer()
		controlPlane := w.controlPlane(ctx)
		patch(ctx, controlPlane, func() { controlPlane.Spec.Rollout.After = metav1.Now() })
		w.waitReplaced(ctx, before, w.controlPlanes)
		client.expectAvailable("the API server", 30*time.Second)
		w.expectOursEvict(w.events()[begin:])
	})
})

// expectDraining waits until the condition of a Machine reports a drain with this progress, and nothing else.
func expectDraining(ctx context.Context, machine *clusterv1.Machine, progress string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(get(ctx, g, management.client, machine).Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1alpha1.MachineNodeMaintenance), HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonMachineDraining),
			HaveField("Message", MatchRegexp(`^Drain not completed yet \(started at \S+Z\) \(NodeMaintenance %s-[0-9a-f]+\): %s$`, machine.Name, progress)))))
	}, eventually, pace).Should(Succeed())
}

// terminate sends SIGTERM to the container of a Pod, which completes.
func (w *workloadCluster) terminate(ctx context.Context, pod corev1.Pod) {
	GinkgoHelper()
	run(ctx, "docker", "exec", pod.Spec.NodeName, "sh", "-c", "crictl stop --timeout=60 $(crictl ps --quiet --label=io.kubernetes.pod.uid="+string(pod.UID)+")")
}

// waitReplaced waits until as many other Machines are available.
func (w *workloadCluster) waitReplaced(ctx context.Context, before []clusterv1.Machine, list func(context.Context, Gomega) []clusterv1.Machine) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		now := list(ctx, g)
		g.Expect(now).To(HaveLen(len(before)))
		for _, machine := range now {
			g.Expect(before).NotTo(ContainElement(HaveField("Name", machine.Name)))
			expectAvailable(g, machine)
		}
	}, eventually, pace).Should(Succeed())
}

// expectOursEvict expects that our manager maintained Nodes, that only it evicted Pods, that no eviction was refused, and that none was of
// a Pod of a DaemonSet or a static Pod.
func (w *workloadCluster) expectOursEvict(events controlplane.Events) {
	GinkgoHelper()
	Expect(events.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("nodemaintenances.maintenance.cluster.x-k8s.io").Succeeded()).NotTo(BeEmpty())
	for _, eviction := range events.Verb("create").Resource("pods", "eviction") {
		Expect(eviction.UserAgent).To(HavePrefix(fleet.ManagerAgent), eviction.String())
		Expect(eviction.Code).To(Equal(http.StatusCreated), eviction.String())
		Expect(eviction.Name).NotTo(Or(HavePrefix("kube-"), HavePrefix("etcd-"), HavePrefix("netd-")), eviction.String())
	}
}

const hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/node-maintenance"

// expectEvictions expects that each of the Pods was evicted once, by our manager, in the first attempt, and no other Pod of theirs. It
// returns the evictions.
func (w *workloadCluster) expectEvictions(events controlplane.Events, pods []corev1.Pod, want map[string]int) controlplane.Events {
	GinkgoHelper()
	evictions := events.Verb("create").Resource("pods", "eviction").InNamespace("default")
	counts := map[string]int{}
	for _, eviction := range evictions {
		Expect(eviction.UserAgent).To(HavePrefix(fleet.ManagerAgent), eviction.String())
		Expect(eviction.Code).To(Equal(http.StatusCreated), eviction.String())
		index := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.UID == eviction.UIDPrecondition() })
		Expect(index).To(BeNumerically(">=", 0), eviction.String())
		counts[pods[index].Labels["app"]]++
	}
	Expect(counts).To(Equal(want), evictions.String())
	return evictions
}

func evictionsOf(evictions controlplane.Events, prefix string) controlplane.Events {
	return evictions.Where(func(e controlplane.Event) bool { return strings.HasPrefix(e.Name, prefix) })
}

// ended returns when the kubelet reported that a Pod had terminated, from which time on the next Pods may be evicted. Of a static Pod, it
// only removes the mirror Pod.
func ended(events controlplane.Events, pod corev1.Pod) time.Time {
	GinkgoHelper()
	ofPod := events.By("system:node:"+pod.Spec.NodeName).Named(pod.Namespace, pod.Name).Succeeded()
	removed := ofPod.Verb("delete").Resource("pods")
	Expect(removed).NotTo(BeEmpty(), "the kubelet removed %s", pod.Name)
	for _, report := range ofPod.Verb("patch").Resource("pods", "status") {
		var body struct{ Status corev1.PodStatus }
		Expect(json.Unmarshal(report.RequestObject, &body)).To(Succeed(), report.String())
		if phase := body.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return report.Requested
		}
	}
	return removed[0].Requested
}

// replicasOf returns the replicas that our manager set in a Deployment.
func replicasOf(events controlplane.Events, deployment string) []int32 {
	GinkgoHelper()
	var all []int32
	for _, write := range events.WithUserAgent(fleet.ManagerAgent).Writes().Resource("deployments").Named("default", deployment).Succeeded() {
		var written appsv1.Deployment
		Expect(json.Unmarshal(write.RequestObject, &written)).To(Succeed())
		if written.Spec.Replicas != nil {
			all = append(all, *written.Spec.Replicas)
		}
	}
	return all
}

func of(pods []corev1.Pod, app string) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Labels["app"] != app })
}

// podsOn returns the Pods of the applications on a Node.
func (w *workloadCluster) podsOn(ctx context.Context, g Gomega, node string) []corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(w.List(ctx, pods, client.InNamespace("default"), client.MatchingFields{"spec.nodeName": node})).To(Succeed())
	return pods.Items
}

// waitReady waits until all Deployments and StatefulSets of the applications have their declared replicas, all of them available.
func (w *workloadCluster) waitReady(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		deployments, sets := &appsv1.DeploymentList{}, &appsv1.StatefulSetList{}
		g.Expect(w.List(ctx, deployments, client.InNamespace("default"))).To(Succeed())
		for _, deployment := range deployments.Items {
			status := deployment.Status
			g.Expect(status.ObservedGeneration).To(Equal(deployment.Generation), deployment.Name)
			g.Expect([]int32{status.Replicas, status.AvailableReplicas}).To(HaveEach(*deployment.Spec.Replicas), deployment.Name)
		}
		g.Expect(w.List(ctx, sets, client.InNamespace("default"))).To(Succeed())
		for _, set := range sets.Items {
			g.Expect(set.Status.AvailableReplicas).To(Equal(*set.Spec.Replicas), set.Name)
		}
		pods := &corev1.PodList{}
		g.Expect(w.List(ctx, pods, client.InNamespace("default"))).To(Succeed())
		for _, pod := range pods.Items {
			g.Expect(pod.Status.Phase).To(BeElementOf(corev1.PodRunning, corev1.PodSucceeded), pod.Name)
		}
	}, eventually, pace).Should(Succeed())
}

// applyToOneWorker applies manifests and waits until their Pods run, all of them on the Node of the same worker. It returns the Machine of
// this worker, and the Pods.
func (w *workloadCluster) applyToOneWorker(ctx context.Context, manifests string) (*clusterv1.Machine, []corev1.Pod) {
	GinkgoHelper()
	workers := w.workers(ctx, Default)
	worker, other := &workers[0], &workers[1]
	w.cordon(ctx, other, true)
	w.apply(ctx, manifests)
	w.waitReady(ctx)
	w.cordon(ctx, other, false)
	return worker, w.podsOn(ctx, Default, worker.Status.NodeRef.Name)
}

// cordon makes the Node of a Machine unschedulable or schedulable.
func (w *workloadCluster) cordon(ctx context.Context, machine *clusterv1.Machine, unschedulable bool) {
	GinkgoHelper()
	node := get(ctx, Default, w.Client, &corev1.Node{ObjectMeta: named("", machine.Status.NodeRef.Name)})
	before := client.MergeFrom(node.DeepCopy())
	node.Spec.Unschedulable = unschedulable
	Expect(w.Patch(ctx, node, before)).To(Succeed())
}

// pollSingle starts a client of the Service "single", at the Node of the control plane, when kube-proxy there knows its Pod.
func (w *workloadCluster) pollSingle(ctx context.Context) *requests {
	GinkgoHelper()
	addresses := w.controlPlanes(ctx, Default)[0].Status.Addresses
	index := slices.IndexFunc(addresses, func(a clusterv1.MachineAddress) bool { return a.Type == clusterv1.MachineInternalIP })
	Expect(index).To(BeNumerically(">=", 0))
	client, url := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+addresses[index].Address+":30080"
	Eventually(func() error { return request(ctx, client, url) }, eventually, pace).Should(Succeed())
	return poll(client, url)
}

// pollAPIServer starts a client of the API server, at the load balancer.
func (w *workloadCluster) pollAPIServer() *requests {
	GinkgoHelper()
	certificates, err := rest.TLSConfigFor(w.config)
	Expect(err).NotTo(HaveOccurred())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: certificates}}
	return poll(client, w.config.Host+"/readyz")
}

// patch changes an object of the management cluster.
func patch(ctx context.Context, object client.Object, change func()) {
	GinkgoHelper()
	copied, isObject := object.DeepCopyObject().(client.Object)
	Expect(isObject).To(BeTrue())
	change()
	Expect(management.client.Patch(ctx, object, client.MergeFrom(copied))).To(Succeed())
}

func expectGone(ctx context.Context, c client.Client, object client.Object) {
	GinkgoHelper()
	Eventually(func() error { return c.Get(ctx, client.ObjectKeyFromObject(object), object) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
}
