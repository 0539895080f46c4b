package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// limitedGroup is the group of the user in the kubeconfig Secret of these tests. Its rights change.
const limitedGroup = "limited"

// TestErrors makes each step of a drain fail: the condition of the Machine names the request and the error, and the drain continues when
// the request succeeds.
func TestErrors(t *testing.T) {
	parallel(t, 190*time.Second)
	all := newSceneOver(t, fleet.Options{PodReadyDelay: 100 * time.Millisecond, PodDeletionDelay: 200 * time.Millisecond}, (*scene).connectLimitedUser)
	all.withMachines("spare")

	const failed, draining = v1alpha1.ReasonReconcileFailed, v1alpha1.ReasonMachineDraining
	for i, tc := range []struct {
		name     string
		without  right
		reason   string
		messages []string
	}{
		{"creating the NodeMaintenance", right{"nodemaintenances", "create"}, failed, []string{"The drain cannot continue: creating NodeMaintenance "}},
		{
			"writing the status of the NodeMaintenance",
			right{"nodemaintenances/status", "patch"}, failed, []string{" cannot be reconciled: patching the status of NodeMaintenance "},
		},
		{"cordoning the Node", right{"nodes", "patch"}, v1alpha1.ReasonCordonFailed, []string{" cannot be cordoned: "}},
		{"listing the Pods", right{"pods", "*"}, failed, []string{"listing the Pods of Node "}},
		{"creating the Evacuations", right{"evacuations", "create"}, draining, []string{"Cannot create the Evacuation: "}},
		{"evicting the Pods", right{"pods/eviction", "create"}, draining, []string{`cannot create resource "pods/eviction"`}},
		{"listing the VolumeAttachments", right{"volumeattachments", "*"}, failed, []string{"listing VolumeAttachments"}},
	} {
		t.Run("M57: reports that the API server refuses "+tc.name, func(t *testing.T) {
			s := all.sub(t)
			s.mayBeRefused("the manager's user lacks a right")
			defer s.removeWorkloads()
			machine := fmt.Sprintf("refused-%d", i)
			s.withMachines(machine)
			pod := bare("on-"+machine, machine)
			s.run(pod)
			s.removeRight(tc.without)
			s.deleteMachine(machine)
			s.expectFailure(machine, tc.reason, append(tc.messages, "forbidden")...)
			s.removeRight(right{})
			s.expectGone(machine)
		})
	}

	t.Run("M57, M96: reports that the management cluster refuses reading the control plane, then the infrastructure machine, which stops no drain that has begun",
		func(t *testing.T) { all.sub(t).unreadReferences("unread") })
	t.Run("M58: names the kubeconfig Secret that prevents the connection, which is empty and then invalid", func(t *testing.T) {
		all.sub(t).uselessKubeconfig("unconnected")
	})
}

func (s *scene) unreadReferences(machine string) {
	const controlPlane, infrastructure = "controlplane.test.capnm.dev", "infrastructure.test.capnm.dev"
	s.withMachines(machine)
	waiting := bare("waiting-"+machine, machine, withEvacuator)
	s.run(waiting)
	s.fleet.KillManager() // what has been read of these objects is used for a while
	defer s.hideInfrastructure()
	s.hideInfrastructure(controlPlane)
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.deleteMachine(machine)
	s.expectFailure(machine, v1alpha1.ReasonReconcileFailed, "The drain cannot continue: getting the control plane of Cluster ", "forbidden")
	s.hideInfrastructure(infrastructure)
	s.expectFailure(machine, v1alpha1.ReasonReconcileFailed, "The drain cannot continue: getting the infrastructure machine of Machine ", "forbidden")
	s.hideInfrastructure()
	s.Eventually(func() string { return s.condition(machine).Reason }, soon, pace).Should(Equal(v1alpha1.ReasonMachineDraining))
	s.hideInfrastructure(controlPlane, infrastructure)
	s.deletePods(waiting.Name)
	s.expectGone(machine)
}

func (s *scene) uselessKubeconfig(machine string) {
	s.withMachines(machine)
	secret := read(s, s.fleet.Client, client.ObjectKey{Namespace: namespace, Name: "c1-kubeconfig"}, &corev1.Secret{})
	store := func(kubeconfig []byte) {
		s.Helper()
		s.patch(s.fleet.Client, secret, func() { secret.Data = map[string][]byte{"value": kubeconfig} })
	}
	valid := secret.Data["value"]
	s.fleet.KillManager() // a connection that exists does not read the Secret
	store(nil)
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.deleteMachine(machine)
	s.expectFailure(machine, v1alpha1.ReasonWaitingForWorkloadCluster, ": cannot read the kubeconfig in Secret default/c1-kubeconfig: ")
	store([]byte("nonsense"))
	s.expectFailure(machine, v1alpha1.ReasonWaitingForWorkloadCluster, ": the kubeconfig in Secret default/c1-kubeconfig is invalid")
	store(valid)
	s.expectGone(machine)
}

// expectFailure waits until the condition of a Machine has a reason and texts in its message, which is short enough.
func (s *scene) expectFailure(machine, reason string, messages ...string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		condition := s.condition(machine)
		g.Expect(condition.Reason).To(Equal(reason), condition.Message)
		for _, message := range messages {
			g.Expect(condition.Message).To(ContainSubstring(message))
		}
		g.Expect(len(condition.Message)).To(BeNumerically("<", 2048))
	}, soon, pace).Should(Succeed())
}

// hideInfrastructure takes the right to read groups of objects of the infrastructure provider from our manager in the management cluster,
// and gives it all others.
func (s *scene) hideInfrastructure(groups ...string) {
	s.Helper()
	role := read(s, s.fleet.Client, client.ObjectKey{Name: "capnm-test-infrastructure"}, &rbacv1.ClusterRole{})
	all := []string{"infrastructure.test.capnm.dev", "controlplane.test.capnm.dev", "none.test.capnm.dev"} // a rule must have a group
	role.Rules[0].APIGroups = slices.DeleteFunc(all, func(group string) bool { return slices.Contains(groups, group) })
	s.Expect(s.fleet.Client.Update(s.Context(), role)).To(Succeed())
}

// right is a verb on a resource. The verb * stands for all: a client that may only watch, or only list, observes a resource as well.
type right struct{ resource, verb string }

// connectLimitedUser connects the Cluster with a user whose rights removeRight limits.
func (s *scene) connectLimitedUser() {
	s.Helper()
	s.removeRight(right{})
	s.create(s.workload.Client, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: limitedGroup},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: limitedGroup}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: limitedGroup},
	})
	link, err := kwok.Direct(s.workload.ControlPlane)
	s.Expect(err).NotTo(HaveOccurred())
	link.Kubeconfig, err = s.workload.KubeconfigFor(kwok.ClusterAPIUser, limitedGroup)
	s.Expect(err).NotTo(HaveOccurred())
	s.fleet.ConnectOver(s.cluster, link)
}

// removeRight gives the user all rights but one, and waits until the API server denies that one: it observes roles by a watch.
func (s *scene) removeRight(without right) {
	s.Helper()
	groups := map[string][]string{
		"": {
			"pods", "pods/eviction", "pods/status", "nodes", "nodes/status", "namespaces", "events", "persistentvolumes", "persistentvolumeclaims", "secrets",
			"configmaps",
		},
		"policy":                    {"poddisruptionbudgets"},
		"storage.k8s.io":            {"volumeattachments"},
		v1alpha1.GroupVersion.Group: {"nodemaintenances", "nodemaintenances/status", "evacuations", "evacuations/status"},
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "finalize"}
	rules := []rbacv1.PolicyRule{{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}}}
	for _, group := range []string{
		"apps", "autoscaling", "rbac.authorization.k8s.io", "apiextensions.k8s.io", "admissionregistration.k8s.io", "events.k8s.io", "coordination.k8s.io",
		"authorization." + v1alpha1.GroupVersion.Group,
	} {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{"*"}, Verbs: []string{"*"}})
	}
	for group, resources := range groups {
		for _, resource := range resources {
			granted := slices.Clone(verbs)
			if resource == without.resource {
				granted = slices.DeleteFunc(granted, func(verb string) bool { return without.verb == "*" || verb == without.verb })
			}
			if len(granted) > 0 {
				rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: granted})
			}
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: limitedGroup}}
	if err := s.workload.Client.Get(s.Context(), types.NamespacedName{Name: limitedGroup}, role); client.IgnoreNotFound(err) == nil && err != nil {
		role.Rules = rules
		s.create(s.workload.Client, role)
		return
	}
	s.patch(s.workload.Client, role, func() { role.Rules = rules })
	if without.resource == "" {
		return
	}
	resource, subresource, _ := strings.Cut(without.resource, "/")
	verb := strings.Replace(without.verb, "*", "list", 1)
	for group, resources := range groups {
		if slices.Contains(resources, without.resource) {
			s.Eventually(func() (bool, error) {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					Groups:             []string{limitedGroup},
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource},
				}}
				err := s.workload.Client.Create(s.Context(), review)
				return review.Status.Allowed, err
			}, soon, pace).Should(BeFalse())
		}
	}
}
