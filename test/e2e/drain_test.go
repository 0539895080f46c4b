package e2e

import (
	"context"
	"fmt"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	replicas = 6
	hook     = "pre-drain.delete.hook.machine.cluster.x-k8s.io/node-maintenance"
)

var _ = Describe("A Cluster whose Machines follow a policy", Ordered, func() {
	var (
		namespace *corev1.Namespace
		result    = &clusterctl.ApplyClusterTemplateAndWaitResult{}
		workload  client.Client
	)

	BeforeAll(func(ctx context.Context) {
		namespace = framework.CreateNamespace(ctx, framework.CreateNamespaceInput{Creator: management.GetClient(), Name: "drain-" + util.RandomString(6)})
		policy := &unstructured.Unstructured{}
		policy.SetAPIVersion("maintenance.cluster.x-k8s.io/v1alpha1")
		policy.SetKind("MachineDrainPolicy")
		policy.SetNamespace(namespace.Name)
		policy.SetName("all")
		Expect(management.GetClient().Create(ctx, policy)).To(Succeed())
		clusterctl.ApplyClusterTemplateAndWait(ctx, clusterctl.ApplyClusterTemplateAndWaitInput{
			ClusterProxy: management,
			ConfigCluster: clusterctl.ConfigClusterInput{
				LogFolder: filepath.Join(artifacts, "workload"), ClusterctlConfigPath: clusterctlConfig, KubeconfigPath: management.GetKubeconfigPath(),
				InfrastructureProvider: "docker", Flavor: clusterctl.DefaultFlavor, Namespace: namespace.Name, ClusterName: namespace.Name,
				KubernetesVersion:        e2eConfig.MustGetVariable("KUBERNETES_VERSION"),
				ControlPlaneMachineCount: ptr.To[int64](1), WorkerMachineCount: ptr.To[int64](2),
			},
			CNIManifestPath:              e2eConfig.MustGetVariable("CNI"),
			WaitForClusterIntervals:      e2eConfig.GetIntervals("default", "wait-cluster"),
			WaitForControlPlaneIntervals: e2eConfig.GetIntervals("default", "wait-control-plane"),
			WaitForMachineDeployments:    e2eConfig.GetIntervals("default", "wait-worker-nodes"),
		}, result)
		workload = management.GetWorkloadCluster(ctx, namespace.Name, namespace.Name).GetClient()
		for _, object := range application("web") {
			Expect(workload.Create(ctx, object)).To(Succeed())
		}
		expectReady(ctx, workload, "web")
	})

	AfterAll(func(ctx context.Context) {
		framework.DeleteAllClustersAndWait(ctx, framework.DeleteAllClustersAndWaitInput{
			ClusterProxy: management, ClusterctlConfigPath: clusterctlConfig, Namespace: namespace.Name, ArtifactFolder: artifacts,
		}, e2eConfig.GetIntervals("default", "wait-delete-cluster")...)
	})

	It("drains the Node of a deleted Machine by rules and budgets", func(ctx context.Context) {
		stays := application("stays")
		for _, object := range stays {
			Expect(workload.Create(ctx, object)).To(Succeed())
		}
		expectReady(ctx, workload, "stays")
		Expect(management.GetClient().Create(ctx, skip(namespace.Name, "stays"))).To(Succeed())
		machine := &machinesOf(ctx, result)[0]
		Expect(machine.Annotations).To(HaveKey(hook))
		before := podsOf(ctx, workload, "stays", machine.Status.NodeRef.Name)

		Expect(management.GetClient().Delete(ctx, machine)).To(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(healthy(ctx, g, workload, "web")).To(BeNumerically(">=", replicas-1))
			if management.GetClient().Get(ctx, client.ObjectKeyFromObject(machine), &clusterv1.Machine{}) == nil {
				for _, pod := range before {
					g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(&pod), &corev1.Pod{})).To(Succeed(), "a skipped Pod was evicted")
				}
			}
		}, "30s", "1s").Should(Succeed())
		Eventually(func() error {
			return management.GetClient().Get(ctx, client.ObjectKeyFromObject(machine), &clusterv1.Machine{})
		}, e2eConfig.GetIntervals("default", "wait-machine-deleted")...).Should(Satisfy(apierrors.IsNotFound))
	})

	It("rolls out a MachineDeployment while the application keeps its budget", func(ctx context.Context) {
		old := map[string]bool{}
		for _, machine := range machinesOf(ctx, result) {
			old[machine.Name] = true
		}
		deployment := result.MachineDeployments[0]
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"rollout":{"after":"`+metav1.Now().UTC().Format("2006-01-02T15:04:05Z")+`"}}}`))
		Expect(management.GetClient().Patch(ctx, deployment, patch)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(healthy(ctx, g, workload, "web")).To(BeNumerically(">=", replicas-1))
			machines := machinesOf(ctx, result)
			g.Expect(machines).To(HaveLen(2))
			for _, machine := range machines {
				g.Expect(old).NotTo(HaveKey(machine.Name))
				g.Expect(machine.Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
			}
		}, e2eConfig.GetIntervals("default", "wait-rollout")...).Should(Succeed())
	})
})

func machinesOf(ctx context.Context, result *clusterctl.ApplyClusterTemplateAndWaitResult) []clusterv1.Machine {
	return framework.GetMachinesByMachineDeployments(ctx, framework.GetMachinesByMachineDeploymentsInput{
		Lister: management.GetClient(), ClusterName: result.Cluster.Name, Namespace: result.Cluster.Namespace, MachineDeployment: *result.MachineDeployments[0],
	})
}

// application returns a Deployment whose budget allows one disruption.
func application(name string) []client.Object {
	labels := map[string]string{"app": name}
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}
	one := intstr.FromInt32(1)
	return []client.Object{
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "pause", Image: e2eConfig.MustGetVariable("PAUSE_IMAGE")}},
			}},
		}},
		&policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		}},
	}
}

// skip returns a MachineDrainRule that skips Pods.
func skip(namespace, app string) *clusterv1.MachineDrainRule {
	return &clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("skip-%s", app)},
		Spec: clusterv1.MachineDrainRuleSpec{
			Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
			Pods:  []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
		},
	}
}

func expectReady(ctx context.Context, c client.Client, app string) {
	Eventually(func(g Gomega) {
		g.Expect(healthy(ctx, g, c, app)).To(BeEquivalentTo(replicas))
	}, e2eConfig.GetIntervals("default", "wait-application")...).Should(Succeed())
}

// healthy counts healthy Pods as the budget does.
func healthy(ctx context.Context, g Gomega, c client.Client, app string) int32 {
	budget := &policyv1.PodDisruptionBudget{}
	g.Expect(c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: app}, budget)).To(Succeed())
	return budget.Status.CurrentHealthy
}

func podsOf(ctx context.Context, c client.Client, app, node string) []corev1.Pod {
	list := &corev1.PodList{}
	Expect(c.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": app})).To(Succeed())
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if pod.Spec.NodeName == node {
			pods = append(pods, pod)
		}
	}
	return pods
}
