package integration

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadbundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// The size of a full Node, and of the cluster around it. The number of Nodes is that of TestManyNodes.
const (
	podsOfFullNode = 110
	manyBudgets    = 500
	manyTeams      = 50
	pageOfPlugin   = 500
)

// TestPluginScale predicts the drain of a full Node in a large cluster. No manager is needed: plan reads the cluster and writes nothing.
func TestPluginScale(t *testing.T) {
	parallel(t, 30*time.Second)
	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Kwok: true})
	s := &scene{T: t, WithT: NewWithT(t)}
	c, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	s.Expect(err).NotTo(HaveOccurred())
	s.workload = &fleet.Workload{ControlPlane: cluster, Client: c}
	s.withBundle()
	s.createNodes(*manyNodes)
	s.withFullNode("full")

	t.Run("K23, K59: plan of a full Node takes few requests in a cluster with many Nodes and budgets, and those for warnings are pages", func(t *testing.T) {
		s := s.part(t)
		path, err := pluginBinary()
		s.Expect(err).NotTo(HaveOccurred())
		args := []string{"plan", "node", "full", "--kubeconfig", s.kubeconfigFile(cluster.AdminConfig()), "--cache-dir", s.TempDir(), "--placement=false"}
		for range 3 { // the first run reads the program from the disk
			s.begin, err = cluster.Audit().Mark()
			s.Expect(err).NotTo(HaveOccurred())
			command := exec.CommandContext(s.Context(), path, args...)
			begin := time.Now()
			output, err := command.CombinedOutput()
			s.Expect(err).NotTo(HaveOccurred(), string(output))
			usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage)
			s.Expect(ok).To(BeTrue())
			s.Expect(string(output)).To(ContainSubstring(fmt.Sprintf("%d Pods evacuated", podsOfFullNode)))

			requests := s.audited().WithUserAgent(pluginAgent).Where(func(e controlplane.Event) bool { return e.Resource != "" })
			t.Logf("%d Nodes, %d budgets, %d Pods on the Node: %d requests, %s, %d MB resident at most, %s of CPU time", *manyNodes, manyBudgets, podsOfFullNode,
				len(requests), time.Since(begin).Round(time.Millisecond), usage.Maxrss/1024,
				(command.ProcessState.UserTime() + command.ProcessState.SystemTime()).Round(time.Millisecond))
			s.Expect(requests.Writes()).To(BeEmpty())
			s.Expect(len(requests)).To(BeNumerically("<=", 8), "%v", requests)
			s.Expect(requests.Verb("list").Resource("nodes")).To(BeEmpty())
			pods := requests.Verb("list").Resource("pods")
			s.Expect(pods).To(HaveLen(1))
			s.Expect(pods[0].URI).To(ContainSubstring("fieldSelector=spec.nodeName%3Dfull"))
		}
		s.begin, err = cluster.Audit().Mark()
		s.Expect(err).NotTo(HaveOccurred())
		warns := exec.CommandContext(s.Context(), path, args[:len(args)-1]...)
		output, err := warns.CombinedOutput()
		s.Expect(err).NotTo(HaveOccurred(), string(output))
		requests := s.audited().WithUserAgent(pluginAgent).Where(func(e controlplane.Event) bool { return e.Resource != "" })
		used := warns.ProcessState.UserTime() + warns.ProcessState.SystemTime()
		t.Logf("with the warnings that need all Nodes and Pods: %d requests, %s of CPU time", len(requests), used.Round(time.Millisecond))
		pages := (*manyNodes + pageOfPlugin) / pageOfPlugin // of manyNodes Nodes and the full one
		s.Expect(requests.Verb("list").Resource("nodes")).To(HaveLen(pages))
		s.Expect(requests.Verb("list").Resource("pods")).To(HaveLen(2), "those of the Node, and all")
		s.Expect(len(requests)).To(BeNumerically("<=", 8+pages+1), "%v", requests)
		s.Expect(used).To(BeNumerically("<", 5*time.Second))
	})
}

// withBundle creates what the manager installs in a workload cluster.
func (s *scene) withBundle() {
	s.Helper()
	bundle, err := workloadbundle.Bundle()
	s.Expect(err).NotTo(HaveOccurred())
	for _, object := range bundle {
		s.Eventually(func() error { return s.workload.Client.Create(s.Context(), object.DeepCopy()) }, soon, pace).Should(Succeed())
	}
}

// withFullNode runs the Pods of a full Node, of as many teams as there are, and creates the budgets of all teams.
func (s *scene) withFullNode(name string) {
	s.Helper()
	s.withNodes(name)
	for team := range manyTeams {
		s.create(s.workload.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team-%d", team)}})
	}
	var group errgroup.Group
	group.SetLimit(16)
	create := func(object client.Object) {
		group.Go(func() error { return s.workload.Client.Create(s.Context(), object) })
	}
	for i := range manyBudgets {
		none := intstr.FromInt32(0)
		create(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", i%manyTeams), Name: fmt.Sprintf("app-%d", i)},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", i)}},
			},
		})
	}
	s.Expect(group.Wait()).To(Succeed())
	s.Eventually(func(g Gomega) { // a controller creates them in new Namespaces, and Pods need them
		accounts := &corev1.ServiceAccountList{}
		g.Expect(s.workload.Client.List(s.Context(), accounts, client.MatchingFields{"metadata.name": "default"})).To(Succeed())
		g.Expect(len(accounts.Items)).To(BeNumerically(">", manyTeams))
	}, eventually, pace).Should(Succeed())
	owners := make([]metav1.OwnerReference, manyTeams)
	for team := range owners { // a controller that does nothing
		owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", team), Name: "owner"}}
		s.create(s.workload.Client, owner)
		owners[team] = metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}
	}
	for i := range podsOfFullNode {
		pod := bare(fmt.Sprintf("app-%d", i), name)
		pod.Namespace, pod.OwnerReferences = fmt.Sprintf("team-%d", i%manyTeams), owners[i%manyTeams:i%manyTeams+1]
		create(pod)
	}
	s.Expect(group.Wait()).To(Succeed())
	s.Eventually(func(g Gomega) { // all Pods run, and their budgets count them
		pods := &corev1.PodList{}
		g.Expect(s.workload.Client.List(s.Context(), pods, client.MatchingFields{"spec.nodeName": name})).To(Succeed())
		running := 0
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		g.Expect(running).To(Equal(podsOfFullNode))
		list := &policyv1.PodDisruptionBudgetList{}
		g.Expect(s.workload.Client.List(s.Context(), list)).To(Succeed())
		allowed := 0
		for i := range list.Items {
			allowed += int(list.Items[i].Status.DisruptionsAllowed)
		}
		g.Expect(allowed).To(Equal(podsOfFullNode))
	}, eventually, time.Second).Should(Succeed())
}
