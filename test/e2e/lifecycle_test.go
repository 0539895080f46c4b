package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/guide"
)

// The specs share a Cluster with three control plane Machines and two workers.
var _ = Describe("The lifecycle of a Cluster", Ordered, func() {
	var w *workloadCluster

	BeforeAll(func(ctx context.Context) {
		w = newWorkloadCluster(ctx, "lifecycle", 3, 2)
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.waitHooks(ctx)
		w.apply(ctx, budgeted)
		w.waitReady(ctx)
	})
	BeforeEach(func(ctx context.Context) { w.waitAvailable(ctx, 3, 2) })

	It("rolls out a KubeadmControlPlane of three Machines and a MachineDeployment at the same time, and the API server answers", func(ctx context.Context) {
		controlPlanes, workers, begin := w.controlPlanes(ctx, Default), w.workers(ctx, Default), len(w.events())
		client := w.pollAPIServer()
		controlPlane, deployment := w.controlPlane(ctx), w.machineDeployment(ctx)
		patch(ctx, controlPlane, func() { controlPlane.Spec.Rollout.After = metav1.Now() })
		patch(ctx, deployment, func() { deployment.Spec.Rollout.After = metav1.Now() })
		w.waitReplaced(ctx, workers, w.workers)
		w.waitReplaced(ctx, controlPlanes, w.controlPlanes)
		client.expectAvailable("the API server", 30*time.Second)
		w.expectOursEvict(w.events()[begin:])
	})

	It("M86: drains each Node before Cluster API updates its Machine in place", func(ctx context.Context) { w.updateInPlace(ctx) })

	It("drains the annotated Machine when a MachineDeployment is scaled down, as cluster-autoscaler does", func(ctx context.Context) {
		begin, removed := len(w.events()), &w.workers(ctx, Default)[0]
		patch(ctx, removed, func() { metav1.SetMetaDataAnnotation(&removed.ObjectMeta, clusterv1.DeleteMachineAnnotation, "true") })
		w.scale(ctx, 1)
		expectGone(ctx, management.client, removed)
		w.waitReady(ctx)
		w.expectOursEvict(w.events()[begin:])
		w.scale(ctx, 2)
	})

	It("cordons, drains and completes a Node and a Machine with the kubectl plugin", func(ctx context.Context) {
		workers := w.workers(ctx, Default)
		if len(w.podsOn(ctx, Default, workers[0].Status.NodeRef.Name)) == 0 {
			slices.Reverse(workers)
		}
		inWorkloadCluster := buildPlugin(ctx, "--kubeconfig="+w.kubeconfig())
		inManagementCluster := buildPlugin(ctx, "--kubeconfig="+management.kubeconfig, "--namespace="+w.name)
		w.maintain(ctx, inWorkloadCluster, workers[0].Status.NodeRef.Name, "node", workers[0].Status.NodeRef.Name)
		w.maintain(ctx, inManagementCluster, workers[1].Status.NodeRef.Name, "machine", workers[1].Name)
	})

	It("drains a Node with kubectl while a NodeMaintenance drains it", func(ctx context.Context) {
		node := w.workers(ctx, Default)[0].Status.NodeRef.Name
		w.apply(ctx, fmt.Sprintf(`
apiVersion: maintenance.cluster.x-k8s.io/v1alpha1
kind: NodeMaintenance
metadata: {name: by-hand}
spec:
  reason: A test
  stage: Drain
  nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [%s]}]}]}
  drainRules: [{name: daemonset-pods, behavior: Skip, pods: [{podType: DaemonSet}]}]
`, node))
		run(ctx, tool("kubectl"), "--kubeconfig="+w.kubeconfig(), "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3m")
		maintenance := &v1alpha1.NodeMaintenance{ObjectMeta: named("", "by-hand")}
		Eventually(func(g Gomega) {
			g.Expect(get(ctx, g, w.Client, maintenance).Status.Conditions).To(ContainElement(And(HaveField("Type", "Drained"),
				HaveField("Status", metav1.ConditionTrue))))
		}, eventually, pace).Should(Succeed())
		Expect(w.podsOn(ctx, Default, node)).To(BeEmpty())
		Expect(w.Delete(ctx, maintenance)).To(Succeed())
		expectGone(ctx, w.Client, maintenance)
		Eventually(func(g Gomega) {
			g.Expect(get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", node)}).Spec.Unschedulable).To(BeFalse())
		}, eventually, pace).Should(Succeed())
		w.waitReady(ctx)
	})

	It("replaces a Machine whose kubelet has stopped, for a MachineHealthCheck", func(ctx context.Context) {
		workers := w.workers(ctx, Default)
		unhealthy := workers[0].Status.NodeRef.Name
		management.apply(ctx, w.name, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: workers}
spec:
  clusterName: %s
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: %[1]s}}
  checks:
    unhealthyNodeConditions:
    - {type: Ready, status: Unknown, timeoutSeconds: 10}
`, w.name))
		run(ctx, "docker", "exec", unhealthy, "systemctl", "stop", "kubelet")
		w.waitReplaced(ctx, workers[:1], func(ctx context.Context, g Gomega) []clusterv1.Machine {
			g.Expect(w.workers(ctx, g)).To(HaveLen(2))
			var others []clusterv1.Machine
			for _, machine := range w.workers(ctx, g) {
				if machine.Name != workers[1].Name {
					others = append(others, machine)
				}
			}
			return others
		})
		w.waitReady(ctx)
	})

	It("moves to another management cluster in the middle of a drain", func(ctx context.Context) {
		deleted := w.beginBlockedDrain(ctx)
		first, second := management, newManagementCluster(ctx, "second")
		// clusterctl does not move a Cluster while a Machine, for example a replacement, is being created.
		Eventually(func(g Gomega) {
			g.Expect(w.machines(ctx, g)).To(HaveEach(HaveField("Status.NodeRef.Name", Not(BeEmpty()))))
		}, eventually, pace).Should(Succeed())
		first.clusterctl(ctx, "move", "--namespace="+w.name, "--to-kubeconfig="+second.kubeconfig)
		management = second
		// clusterctl does not preserve deletions: the drain is reverted, and the Machine is deleted again.
		moved := &clusterv1.Machine{ObjectMeta: named(w.name, deleted.Name)}
		Eventually(func(g Gomega) {
			get(ctx, g, second.client, moved)
			g.Expect(moved.DeletionTimestamp).To(BeNil())
			g.Expect(moved.Annotations).To(HaveKey(hook))
			node := get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", deleted.Status.NodeRef.Name)})
			g.Expect(node.Spec.Unschedulable).To(BeFalse())
		}, eventually, pace).Should(Succeed())
		w.allow(ctx)
		Expect(second.client.Delete(ctx, moved)).To(Succeed())
		expectGone(ctx, second.client, moved)
		w.waitReady(ctx)
	})

	It("is removed as the guide says, and leaves nothing behind", func(ctx context.Context) {
		commands := removalCommands()
		Expect(commands).To(HaveLen(5))
		management.shell(ctx, management.kubeconfig, commands[0])
		Eventually(func() string { return management.shell(ctx, management.kubeconfig, commands[1]) }, eventually, pace).Should(BeEmpty())
		management.shell(ctx, management.kubeconfig, commands[2])
		management.shell(ctx, w.kubeconfig(), commands[3])
		for _, kubeconfig := range []string{management.kubeconfig, w.kubeconfig()} { // clusterctl does not wait until the namespace is gone
			Eventually(func() []string { return management.traces(ctx, kubeconfig) }, eventually, pace).Should(BeEmpty())
		}
	})

	It("continues a drain of the previous commit's release after the upgrade to this one", func(ctx context.Context) {
		previous := management.repository.addPrevious()
		management.load(exec.CommandContext(ctx, "cat", filepath.Join(root, previousRelease, "manager-image.oci.tar")), "previous manager")
		management.clusterctl(ctx, "init", "--runtime-extension=node-maintenance:"+previous)
		management.waitVersion(ctx, previous)
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.waitHooks(ctx)
		begin := len(w.events())
		deleted := w.beginBlockedDrain(ctx)
		next := management.repository.version
		management.clusterctl(ctx, "upgrade", "apply", "--runtime-extension="+ourNamespace+"/node-maintenance:"+next)
		management.waitVersion(ctx, next)
		w.allow(ctx)
		expectGone(ctx, management.client, deleted)
		w.waitReady(ctx)
		w.expectOursEvict(w.events()[begin:])
	})

	It("scales a MachineDeployment to zero", func(ctx context.Context) {
		w.setBudget(ctx, "web", 6)
		w.scale(ctx, 0)
		w.waitAvailable(ctx, 3, 0)
		w.scale(ctx, 2)
	})

	It("deletes a Cluster without draining its Nodes", func(ctx context.Context) { w.delete(ctx) })
})

// budgeted is an application with a budget.
const budgeted = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      # Kubernetes deletes the Pods of an unreachable Node after this time instead of five minutes.
      tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 10}]
      containers:
      - {name: app, image: "capnm.dev/app:e2e", imagePullPolicy: Never, args: ["-serve=:8080", "-grace=2s"],
         readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 2, selector: {matchLabels: {app: web}}}
`

// beginBlockedDrain deletes the Machine of a worker with Pods, whose budget allows no disruption, and waits until the Node is cordoned.
func (w *workloadCluster) beginBlockedDrain(ctx context.Context) *clusterv1.Machine {
	GinkgoHelper()
	w.setBudget(ctx, "web", 0)
	workers := w.workers(ctx, Default)
	index := slices.IndexFunc(workers, func(m clusterv1.Machine) bool { return len(w.podsOn(ctx, Default, m.Status.NodeRef.Name)) > 0 })
	Expect(index).To(BeNumerically(">=", 0))
	machine := &workers[index]
	Expect(management.client.Delete(ctx, machine)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", machine.Status.NodeRef.Name)}).Spec.Unschedulable).To(BeTrue())
	}, eventually, pace).Should(Succeed())
	return machine
}

// scale sets the replicas of the MachineDeployment.
func (w *workloadCluster) scale(ctx context.Context, replicas int32) {
	GinkgoHelper()
	deployment := w.machineDeployment(ctx)
	patch(ctx, deployment, func() { deployment.Spec.Replicas = &replicas })
}

// allow lets the budget allow disruptions again.
func (w *workloadCluster) allow(ctx context.Context) {
	GinkgoHelper()
	w.setBudget(ctx, "web", 2)
}

func (w *workloadCluster) setBudget(ctx context.Context, name string, disruptions int32) {
	GinkgoHelper()
	budget := get(ctx, Default, w.Client, &policyv1.PodDisruptionBudget{ObjectMeta: named("default", name)})
	before := client.MergeFrom(budget.DeepCopy())
	most := intstr.FromInt32(disruptions)
	budget.Spec.MaxUnavailable = &most
	Expect(w.Patch(ctx, budget, before)).To(Succeed())
}

// maintain cordons, drains and completes a Node with the kubectl plugin, which names it or its Machine.
func (w *workloadCluster) maintain(ctx context.Context, p plugin, name string, target ...string) {
	GinkgoHelper()
	node := &corev1.Node{ObjectMeta: named("", name)}
	begin := len(w.events())
	Expect(p.run(ctx, "cordon", append(target, "--reason=A test")...)).To(HaveSuffix(" cordoned\n"))
	Expect(get(ctx, Default, w.Client, node).Spec.Unschedulable).To(BeTrue())
	Expect(w.events()[begin:].Verb("create").Resource("pods", "eviction")).To(BeEmpty())
	pods := w.podsOn(ctx, Default, name)
	Expect(pods).NotTo(BeEmpty())
	Expect(p.run(ctx, "drain", append(target, "--yes", "--wait")...)).To(HaveSuffix(" drained\n"))
	Expect(w.podsOn(ctx, Default, name)).NotTo(ContainElement(HaveField("Status.Phase", corev1.PodRunning)))
	w.expectEvictions(w.events()[begin:], pods, map[string]int{"web": len(pods)})
	Expect(p.run(ctx, "complete", target...)).To(HaveSuffix(" completed\n"))
	Expect(get(ctx, Default, w.Client, node).Spec.Unschedulable).To(BeFalse())
	w.waitReady(ctx)
}

// previousRelease is the release of the previous commit, which `make test-e2e` builds.
const previousRelease = "out/previous/out/release"

// addPrevious adds the previous commit's release.
func (r *repository) addPrevious() (version string) {
	GinkgoHelper()
	release := filepath.Join(root, previousRelease)
	if _, err := os.Stat(release); os.IsNotExist(err) {
		Skip("there is no release of the previous commit: `make release-previous` builds it")
	}
	return r.addRelease(release)
}

// waitVersion waits until only this version of our manager runs.
func (m *managementCluster) waitVersion(ctx context.Context, version string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		deployment := get(ctx, g, m.client, &appsv1.Deployment{ObjectMeta: named(ourNamespace, "capnm-controller-manager")})
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(HaveSuffix(":" + version))
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect([]int32{deployment.Status.UpdatedReplicas, deployment.Status.AvailableReplicas, deployment.Status.Replicas}).To(HaveEach(int32(1)))
	}, eventually, pace).Should(Succeed())
}

// removalCommands returns the commands of the guide that remove the provider.
func removalCommands() (commands []string) {
	GinkgoHelper()
	blocks, err := guide.Section(root, "upgrade.md", "Remove")
	Expect(err).NotTo(HaveOccurred())
	for _, block := range blocks {
		commands = append(commands, block.Content)
	}
	return commands
}

// ofProvider matches what is named for this provider in an object.
var ofProvider = regexp.MustCompile(`(?i)capnm-(system|manager|controller|leader|view|evacuator|node-agent)|nodemaintenance|` +
	`maintenance\.cluster\.x-k8s\.io|"node-maintenance"|/node-maintenance"|extension-node-maintenance|evacuation`)

// traces returns what objects of all kinds but events say about this provider.
func (m *managementCluster) traces(ctx context.Context, kubeconfig string) []string {
	GinkgoHelper()
	objects := m.shell(ctx, kubeconfig, `kubectl get -A -o json "$(kubectl api-resources --verbs=list -o name | grep -v '^events' | paste -sd,)"`)
	var traces []string
	for line := range strings.Lines(objects) {
		if ofProvider.MatchString(line) {
			traces = append(traces, line)
		}
	}
	return traces
}
