package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// testPluginExplains is the part of TestPlugin that compares the explanations of the kubectl plugin with the conditions.
func (s *scene) testPluginExplains() {
	t, all := s.T, s
	all.withMachines("explained", "surged", "outofservice")

	t.Run("K2, K4: a command without rights or with an unknown kind says so by its exit code", func(t *testing.T) { all.sub(t).usesRights() })

	t.Run("K4: the roles of the plugin suffice, a missing right is named, and the rest is reported", func(t *testing.T) {
		s := all.sub(t)
		defer s.cleanUp()
		s.readsWithRoles()
	})

	t.Run("K3: plan predicts with a rule that is not applied", func(t *testing.T) {
		s := all.sub(t)
		defer s.cleanUp()
		s.runOn("explained", "web", 1, deployment("web", 1), budget("web", 0))
		predicted, code := s.predict("machine", "explained")
		s.Expect(code).To(Equal(1))
		s.Expect(predicted.Pods).To(HaveLen(1))
		s.Expect(predicted.Pods[0].Outcome).To(Equal(string(forecast.Evacuated)))
		rule := drainRule("proposed", "web", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
		rule.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineDrainRule"}
		predicted, code = s.predict("machine", "explained", "--rule", s.manifest(rule))
		s.Expect(code).To(BeZero())
		s.Expect(predicted.Pods[0].Outcome).To(Equal(string(forecast.Stays)))
		s.Expect(predicted.Pods[0].Rule).To(Equal("machine-drain-rule/proposed"))
		s.expectWritesNothing()
	})

	t.Run("K30: plan predicts which Deployments surge with a policy that is not applied", func(t *testing.T) {
		s := all.sub(t)
		defer s.cleanUp()
		s.predictsSurges("surged")
	})

	t.Run("K1: plan predicts that a Node that is out of service is not drained", func(t *testing.T) {
		s := all.sub(t)
		defer s.cleanUp()
		s.run(bare("dead", "outofservice"))
		s.stopAnswering("outofservice")
		patch := fmt.Appendf(nil, `{"spec":{"taints":[{"key":%q,"value":"nodeshutdown","effect":"NoSchedule"}]}}`, corev1.TaintNodeOutOfService)
		s.Expect(s.workload.Client.Patch(s.Context(), s.node("outofservice"), client.RawPatch(types.StrategicMergePatchType, patch))).To(Succeed())
		predicted, code := s.predict("machine", "outofservice")
		s.Expect(code).To(BeZero())
		s.Expect(predicted.Skipped).To(Equal(string(machinedrain.SkipOutOfService)))
		s.Expect(predicted.Pods).To(BeEmpty())
		s.expectWritesNothing()

		s.deleteMachine("outofservice")
		s.expectGoneWithPods("outofservice")
		s.Expect(s.evictions()).To(BeEmpty())
	})

	t.Run("K5, K7: what why and status say is what the conditions say", func(t *testing.T) {
		s := all.sub(t)
		defer s.cleanUp()
		s.explains("explained")
	})
}

// predictsSurges compares what plan says of a policy that is not applied with the drain after it was applied.
func (s *scene) predictsSurges(machine string) {
	s.Helper()
	s.runOn(machine, "two", 2, deployment("two", 2), budget("two", 0))
	s.runOn(machine, "one", 1, deployment("one", 1), budget("one", 0))
	budgets := func(problems []predictedProblem) []string {
		var names []string
		for _, problem := range problems {
			if problem.Budget != "" {
				names = append(names, problem.Budget)
			}
		}
		return names
	}
	predicted, code := s.predict("machine", machine)
	s.Expect(code).To(Equal(1))
	s.Expect(budgets(predicted.Blockers)).To(ConsistOf(namespace+"/one", namespace+"/two"))

	policy := &v1alpha1.MachineDrainPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MachineDrainPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"},
		Spec:       v1alpha1.MachineDrainPolicySpec{SharedEvacuationPolicy: v1alpha1.SharedEvacuationPolicy{Surge: v1alpha1.SurgeIfSingleReplica}},
	}
	predicted, code = s.predict("machine", machine, "--policy", s.manifest(policy))
	s.Expect(code).To(Equal(1))
	s.Expect(budgets(predicted.Blockers)).To(ConsistOf(namespace + "/two"))
	s.Expect(predicted.Blockers[0].Message).To(ContainSubstring("Deployment " + namespace + "/two declares 2 replicas"))
	s.Expect(budgets(predicted.Delays)).To(ConsistOf(namespace + "/one"))
	var refused, surges predictedPod
	for _, pod := range predicted.Pods {
		switch {
		case pod.Surge.Refusal != "":
			refused = pod
		case pod.Surge.Message != "":
			surges = pod
		}
	}
	s.Expect(surges.Surge.Message).To(ContainSubstring("Deployment " + namespace + "/one is scaled from 1 to 2 replicas"))
	s.expectWritesNothing()

	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = policy.Spec.Surge })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeNever })
	pods := s.podsOf("two")
	s.deleteMachine(machine)
	s.Eventually(func(g Gomega) { // only the Pods of the Deployment with two replicas are left
		g.Expect(s.podsOf("one")).To(ConsistOf(HaveField("Spec.NodeName", Not(Equal(machine)))))
		for i := range pods {
			e := s.evacuation(&pods[i])
			g.Expect(e).NotTo(BeNil())
			g.Expect(e.Status.Message).To(ContainSubstring("Waiting for PodDisruptionBudget " + namespace + "/two"))
			surged := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged)
			g.Expect(surged).NotTo(BeNil())
			g.Expect(surged.Reason).To(Equal(refused.Surge.Refusal))
			g.Expect(surged.Message).To(Equal(refused.Surge.Message))
		}
	}, eventually, pace).Should(Succeed())
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.workload.Client.Delete(s.Context(), budget("two", 0))).To(Succeed())
	s.expectGone(machine)
}

// manifest writes an object with its kind to a file.
func (s *scene) manifest(object client.Object) string {
	s.Helper()
	content, err := json.Marshal(object)
	s.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(s.TempDir(), "object.yaml")
	s.Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	return file
}

// explanation is the part of the output of why that tests compare.
type explanation struct {
	Answer    string
	Condition struct{ Status, Reason, Message string }
	Problems  []predictedProblem
	Pod       struct {
		predictedPod
		Target bool
		Rules  []struct {
			Rule, Matches, Why string
			Decides            bool
		}
		Budgets []struct {
			Name               string
			DisruptionsAllowed int32
		}
		Evacuation struct{ Message string }
	}
}

func (s *scene) why(args ...string) explanation {
	s.Helper()
	output, _, code := s.plugin(s.fleet.Management.AdminConfig(), append([]string{"why"}, append(args, "-o", "json")...)...)
	s.Expect(code).To(BeZero())
	var e explanation
	s.Expect(json.Unmarshal([]byte(output), &e)).To(Succeed())
	return e
}

// explains runs on a Machine whose drain is blocked by a budget and a job.
func (s *scene) explains(machine string) {
	s.Helper()
	s.create(s.fleet.Client, drainRule("keep", "keep", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
	s.runOn(machine, "web", 2, deployment("web", 2), budget("web", 0))
	s.runOn(machine, "keep", 1, deployment("keep", 1))
	s.run(bare("job", machine, func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "wait-completed" }))
	s.deleteMachine(machine)
	web := s.podsOf("web")[0]
	s.Eventually(func(g Gomega) {
		e := s.evacuation(&web)
		g.Expect(e).NotTo(BeNil())
		g.Expect(e.Status.Message).To(ContainSubstring("Waiting for PodDisruptionBudget"))
		g.Expect(s.condition(machine).Message).To(ContainSubstring(e.Status.Message))
		g.Expect(s.condition(machine).Message).To(ContainSubstring("job"))
	}, eventually, pace).Should(Succeed())

	s.part(s.T).explainsAsConditions(machine, &web)
	s.unblockAll()
	s.expectGone(machine)
}

func (s *scene) explainsAsConditions(machine string, web *corev1.Pod) {
	s.Helper()
	s.Eventually(func(g Gomega) { // the condition may still change: not all Pods wait from the same moment on
		whole := s.why("machine", machine)
		g.Expect(whole.Condition.Message).To(Equal(s.condition(machine).Message))
		g.Expect(whole.Answer).To(Equal(whole.Condition.Message))
		g.Expect(whole.Problems).To(ConsistOf(HaveField("Reason", "BudgetExhausted"), HaveField("Reason", "NeverCompletes")))
	}, soon, pace).Should(Succeed())

	one := s.why("pod", web.Name, "-n", namespace)
	s.Expect(one.Answer).To(Equal(s.evacuation(web).Status.Message))
	s.Expect(one.Pod.WaitsFor).To(Equal(one.Answer))
	s.Expect(one.Pod.Target).To(BeTrue())
	s.Expect(one.Pod.Budgets).To(HaveLen(1))
	s.Expect(one.Pod.Budgets[0].Name).To(Equal(namespace + "/web"))
	s.Expect(one.Pod.Rules).To(HaveLen(6))
	for _, rule := range one.Pod.Rules {
		s.Expect(rule.Decides).To(BeFalse())
		s.Expect(rule.Matches).To(Equal("no"))
	}

	skipped := s.why("pod", s.podsOf("keep")[0].Name, "-n", namespace)
	last := skipped.Pod.Rules[len(skipped.Pod.Rules)-1]
	s.Expect(last.Rule).To(Equal("machine-drain-rule/keep"))
	s.Expect(last.Decides).To(BeTrue())
	s.Expect(last.Why).To(Equal("selector app=keep"))
	s.Expect(skipped.Pod.Outcome).To(Equal("Stays"))

	output, _, code := s.plugin(s.fleet.Management.AdminConfig(), "status", "machine", machine)
	s.Expect(code).To(BeZero())
	s.Expect(output).To(ContainSubstring(s.evacuation(web).Status.Message))
	output, _, code = s.plugin(s.workload.AdminConfig(), "why", "node", machine)
	s.Expect(code).To(BeZero())
	s.Expect(output).To(ContainSubstring(s.evacuation(web).Status.Message))
}

// unblockAll deletes the job and the budget.
func (s *scene) unblockAll() {
	s.Helper()
	s.Expect(s.workload.Client.Delete(s.Context(), s.pod("job"))).To(Succeed())
	s.Expect(s.workload.Client.Delete(s.Context(), budget("web", 0))).To(Succeed())
}

// usesRights runs the plugin as a user without rights, and with an invalid command line.
func (s *scene) usesRights() {
	s.Helper()
	config, err := s.fleet.Management.ConfigFor("stranger")
	s.Expect(err).NotTo(HaveOccurred())
	_, stderr, code := s.plugin(config, "plan", "machine", "spare")
	s.Expect(code).To(Equal(3))
	s.Expect(stderr).To(ContainSubstring("forbidden"))
	_, stderr, code = s.plugin(config, "plan", "teapot", "spare")
	s.Expect(code).To(Equal(2))
	s.Expect(stderr).To(ContainSubstring("teapot"))
}

// pluginUser returns the configurations of a user that has the roles of config/plugin in both clusters.
func (s *scene) pluginUser(name, managementRole, workloadRole string) (management, workload *rest.Config) {
	s.Helper()
	s.grant(s.fleet.Client, managementRole, name)
	s.grant(s.workload.Client, workloadRole, name)
	management, err := s.fleet.Management.ConfigFor(name)
	s.Expect(err).NotTo(HaveOccurred())
	workload, err = s.workload.ConfigFor(name)
	s.Expect(err).NotTo(HaveOccurred())
	return management, workload
}

// grant creates a ClusterRole of the plugin and binds it to a user in a cluster.
func (s *scene) grant(c client.Client, name, user string) {
	s.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "config", "plugin", "role.yaml"))
	s.Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.ClusterRole{}
	for manifest := range bytes.SplitSeq(content, []byte("\n---\n")) {
		each := &rbacv1.ClusterRole{}
		s.Expect(yaml.UnmarshalStrict(manifest, each)).To(Succeed())
		if each.Name == "capnm-plugin-"+name {
			role = each
		}
	}
	s.Expect(role.Rules).NotTo(BeEmpty(), name)
	s.ensure(c, role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name + "-" + user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
	s.awaitRight(c, user, "", role.Rules[0])
}

// awaitRight waits until the API server has observed a role of a user and its binding, with which it grants a right.
func (s *scene) awaitRight(c client.Client, user, namespace string, right rbacv1.PolicyRule) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: right.Verbs[0], Group: right.APIGroups[0], Resource: right.Resources[0],
			},
		}}
		g.Expect(c.Create(s.Context(), review)).To(Succeed())
		g.Expect(review.Status.Allowed).To(BeTrue(), "%s %v", user, right)
	}, soon, pace).Should(Succeed())
}

// readsWithRoles runs the plugin as a user with the roles of config/plugin. The infrastructure of the tests has other API groups, so that
// those rights are missing.
func (s *scene) readsWithRoles() {
	s.Helper()
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeIfSingleReplica })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeNever })
	management, workload := s.pluginUser("reader", "management-reader", "workload-reader")
	s.runOn("explained", "web", 2, deployment("web", 2), budget("web", 1))

	output, stderr, code := s.plugin(management, "plan", "machine", "explained", "--workload-kubeconfig", s.kubeconfigFile(workload))
	s.Expect(code).To(Equal(3), stderr)
	s.Expect(output).To(ContainSubstring("2 Pods evacuated"))
	s.Expect(output).To(ContainSubstring("No right to get kwokmachines"))
	s.Expect(strings.Count(output, "No right to")).To(Equal(2), "only the objects of the infrastructure provider may not be read")

	_, stderr, code = s.plugin(workload, "plan", "node", "explained")
	s.Expect(code).To(BeZero(), stderr)
	s.readsWithoutNodes()
	_, stderr, code = s.plugin(management, "plan", "machine", "explained")
	s.Expect(code).To(Equal(3))
	s.Expect(stderr).To(ContainSubstring("--workload-kubeconfig"))
}

// readsWithoutNodes runs the plugin in the workload cluster as the owner of an application, who may read Namespace default and nothing
// else.
func (s *scene) readsWithoutNodes() {
	s.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "owner"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps", "autoscaling", "policy", v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list"}},
	}}
	s.create(s.workload.Client, role, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "owner"}},
	})
	s.awaitRight(s.workload.Client, "owner", namespace, role.Rules[0])
	config, err := s.workload.ConfigFor("owner")
	s.Expect(err).NotTo(HaveOccurred())
	output, stderr, code := s.plugin(config, "why", "pod", s.podsOf("web")[0].Name, "-n", namespace)
	s.Expect(code).To(BeZero(), stderr)
	s.Expect(output).To(ContainSubstring("Whether a NodeMaintenance drains the Node is not known"))
	s.Expect(output).To(ContainSubstring(namespace + "/web allows 1 disruption:"))
	for _, gap := range []string{"No right to get nodes", "No right to list nodemaintenances", "only those of Namespace " + namespace + " are considered"} {
		s.Expect(output).To(ContainSubstring(gap))
	}
	_, stderr, code = s.plugin(config, "plan", "node", "explained")
	s.Expect(code).To(Equal(3), "without its Pods, the drain of a Node cannot be predicted")
	s.Expect(stderr).To(ContainSubstring("listing the Pods of Node explained"))
}
