package workloadcluster

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestNodeAgentNotInstalled(t *testing.T) {
	t.Run("S19: installs no node agent without admission policies, and records an event on the Cluster", func(t *testing.T) {
		s := newAgentScene(t)
		s.remoteGet = func(object client.Object) error {
			if kind := object.GetObjectKind().GroupVersionKind(); kind.Group == "admissionregistration.k8s.io" {
				return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
			}
			return nil
		}
		s.ensure()
		s.Expect(s.events()).To(ConsistOf(HavePrefix("Warning NodeAgentNotInstalled The node agent is not installed: ")))
		s.Expect(s.agent()).To(BeNil())
	})
}

// agentScene is a workload cluster in which a policy has enabled the node agent.
type agentScene struct {
	*testing.T
	*WithT
	*Reconciler
	key       types.NamespacedName
	remote    client.Client
	remoteGet func(client.Object) error
	// remoteList is the answer to a list of NodeMaintenances.
	remoteList error
}

func newAgentScene(t *testing.T) *agentScene {
	t.Helper()
	s := &agentScene{T: t, WithT: NewWithT(t), remoteGet: func(client.Object) error { return nil }}
	s.remote = fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := s.remoteGet(object); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			_, isTyped := list.(*v1alpha1.NodeMaintenanceList)
			if s.remoteList != nil && (isTyped || list.GetObjectKind().GroupVersionKind().Kind == "NodeMaintenanceList") {
				return s.remoteList
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	s.Reconciler, s.key = over(s.remote)
	s.NodeAgentImage, s.ManagementCluster, s.recorder = "agent:v1", "here", record.NewFakeRecorder(100)
	s.setPolicy(func(spec *v1alpha1.MachineDrainPolicySpec) { spec.NodeAgent = v1alpha1.NodeAgentEnabled })
	return s
}

func (s *agentScene) policy() *v1alpha1.MachineDrainPolicy {
	s.Helper()
	policy := &v1alpha1.MachineDrainPolicy{}
	s.Expect(s.Client.Get(s.Context(), types.NamespacedName{Namespace: s.key.Namespace, Name: "all"}, policy)).To(Succeed())
	return policy
}

func (s *agentScene) setPolicy(change func(*v1alpha1.MachineDrainPolicySpec)) {
	s.Helper()
	policy := s.policy()
	change(&policy.Spec)
	s.Expect(s.Client.Update(s.Context(), policy)).To(Succeed())
}

// ensure is a reconciliation in a workload cluster whose bundle is installed.
func (s *agentScene) ensure() {
	s.Helper()
	_, err := s.ensureNodeAgent(s.Context(), s.remote, clusterOf(s.key), true)
	s.Expect(err).NotTo(HaveOccurred())
}

func (s *agentScene) agent() *appsv1.DaemonSet {
	s.Helper()
	agents := &appsv1.DaemonSetList{}
	s.Expect(s.remote.List(s.Context(), agents)).To(Succeed())
	if len(agents.Items) == 0 {
		return nil
	}
	return &agents.Items[0]
}

func (s *agentScene) createNode(annotations map[string]string) {
	s.Helper()
	s.Expect(s.remote.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: annotations}})).To(Succeed())
}

// drainStaticPods creates a NodeMaintenance that drains the static Pods of n1: of a Machine in this management cluster, or of a user if it
// is empty.
func (s *agentScene) drainStaticPods(managementCluster string) *v1alpha1.NodeMaintenance {
	s.Helper()
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "drains", Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer}}}
	if managementCluster != "" {
		m.Annotations = map[string]string{v1alpha1.OwnerManagementClusterAnnotation: managementCluster}
	}
	m.Spec.Stage = v1alpha1.StageDrain
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
		NodeRef: v1alpha1.NodeReference{Name: "n1"}, DrainTargets: []v1alpha1.DrainTarget{{PodType: v1alpha1.PodTypeStatic}},
	}}
	s.Expect(s.remote.Create(s.Context(), m)).To(Succeed())
	return m
}

// pageNotFound is the answer of a proxy, or of an API server that does not serve the kind, to a request for an object of this name.
func pageNotFound(name string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, schema.GroupResource{}, name, "page not found", 0, true)
}

func (s *agentScene) events() []string {
	var events []string
	for recorder := s.recorder.(*record.FakeRecorder); len(recorder.Events) > 0; {
		events = append(events, <-recorder.Events)
	}
	return events
}

func TestNodeAgentIsRemoved(t *testing.T) {
	disable := func(s *agentScene) {
		s.setPolicy(func(spec *v1alpha1.MachineDrainPolicySpec) { spec.NodeAgent = v1alpha1.NodeAgentDisabled })
	}
	for name, change := range map[string]func(*agentScene){
		"the policy disables it": disable,
		"the policy is deleted":  func(s *agentScene) { s.Expect(s.Client.Delete(s.Context(), s.policy())).To(Succeed()) },
		"the policy does not select the Cluster any more": func(s *agentScene) {
			s.setPolicy(func(spec *v1alpha1.MachineDrainPolicySpec) {
				spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"env": "dev"}}
			})
		},
		"the feature gate is off": func(s *agentScene) { s.NodeAgentImage = "" },
		"the feature gate is off, and a policy is invalid": func(s *agentScene) {
			s.setPolicy(invalidSelector)
			s.NodeAgentImage = ""
		},
		"the CRD of NodeMaintenances does not exist": func(s *agentScene) {
			s.Expect(s.Client.Delete(s.Context(), s.policy())).To(Succeed())
			s.remoteList = pageNotFound("")
		},
		"the bundle cannot be installed": func(s *agentScene) {
			disable(s)
			s.remoteGet = func(object client.Object) error {
				if object.GetObjectKind().GroupVersionKind().Kind == crdKind {
					return apierrors.NewForbidden(schema.GroupResource{}, "any", errors.New("no role permits it"))
				}
				return nil
			}
		},
		"it was installed by a manager that recorded no owner": func(s *agentScene) {
			disable(s)
			s.setOwner("")
		},
	} {
		t.Run("S71: the node agent is removed: "+name, func(t *testing.T) {
			s := newAgentScene(t)
			now := clocktesting.NewFakePassiveClock(time.Now())
			s.Clock = now
			s.ensure()
			s.Expect(s.agent()).NotTo(BeNil())
			change(s)
			for range 2 { // another policy may replace it within three seconds
				_, _ = s.Reconcile(s.Context(), reconcile.Request{NamespacedName: s.key})
				now.SetTime(now.Now().Add(rules.GoneCounts))
			}
			s.Expect(s.agent()).To(BeNil())
			s.Expect(s.events()).NotTo(ContainElement(ContainSubstring(eventNodeAgentUnchanged)))
		})
	}
}

func TestNodeAgentOfAPolicyThatIsReplaced(t *testing.T) {
	t.Run("S71: the node agent stays for three seconds after its policy was deleted", func(t *testing.T) {
		s := newAgentScene(t)
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := clocktesting.NewFakePassiveClock(start)
		s.Clock = now
		at := func(after time.Duration) (isInstalled bool) {
			now.SetTime(start.Add(after))
			s.ensure()
			return s.agent() != nil
		}
		policy := s.policy()
		policy.ResourceVersion = ""
		s.Expect(at(0)).To(BeTrue())
		s.Expect(s.Client.Delete(s.Context(), s.policy())).To(Succeed())
		s.Expect(at(time.Second)).To(BeTrue())
		s.Expect(at(3 * time.Second)).To(BeTrue())
		s.Expect(s.Client.Create(s.Context(), policy)).To(Succeed())
		s.Expect(at(10 * time.Second)).To(BeTrue())
		s.Expect(s.Client.Delete(s.Context(), s.policy())).To(Succeed())
		s.Expect(at(11*time.Second)).To(BeTrue(), "the policy was deleted again a moment ago")
		s.Expect(at(14 * time.Second)).To(BeFalse())
	})
}

func invalidSelector(spec *v1alpha1.MachineDrainPolicySpec) {
	spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"a key": ""}}
}

func (s *agentScene) setOwner(uid string) {
	s.Helper()
	agent := s.agent()
	if agent.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = uid; uid == "" {
		delete(agent.Annotations, v1alpha1.OwnerManagementClusterAnnotation)
	}
	s.Expect(s.remote.Update(s.Context(), agent)).To(Succeed())
}

// reads is a client whose lists of policies have this answer.
type reads struct {
	client.Reader

	err      error
	policies []v1alpha1.MachineDrainPolicy
}

func (r reads) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.MachineDrainPolicyList).Items = r.policies
	return r.err
}

func TestNodeAgentIsKept(t *testing.T) {
	const missing = "the CustomResourceDefinition of MachineDrainPolicies is missing or being deleted"
	deletePolicy := func(s *agentScene) { s.Expect(s.Client.Delete(s.Context(), s.policy())).To(Succeed()) }
	for name, tc := range map[string]struct {
		change func(*agentScene)
		says   string
		fails  bool
	}{
		"S71: a selector is invalid": {
			func(s *agentScene) { s.setPolicy(invalidSelector) }, "the clusterSelector of MachineDrainPolicy all is invalid", false,
		},
		"S71: the CRD of policies is missing": {func(s *agentScene) {
			deletePolicy(s)
			s.APIReader = reads{s.Client, &meta.NoKindMatchError{}, nil}
		}, missing, false},
		"S71: the CRD of policies is being deleted": {func(s *agentScene) {
			deletePolicy(s)
			s.Expect(s.Client.Delete(s.Context(), policyCRD())).To(Succeed())
		}, missing, false},
		"S71: the policies cannot be listed": {func(s *agentScene) {
			deletePolicy(s)
			s.APIReader = reads{s.Client, errors.New("the API server is overloaded"), nil}
		}, "it cannot be confirmed that no MachineDrainPolicy enables it", true},
		"S71: the cache lacks a policy": {func(s *agentScene) {
			s.APIReader = reads{s.Client, nil, []v1alpha1.MachineDrainPolicy{*s.policy()}}
			deletePolicy(s)
		}, "", false},
		"S71: agents may hold static Pods": {func(s *agentScene) {
			s.createNode(map[string]string{v1alpha1.StaticPodTargetsAnnotation: "[]"})
			s.drainStaticPods("")
			deletePolicy(s)
		}, "it restores the static Pods of Node n1 first", false},
		"S71: a proxy answers that the DaemonSet does not exist": {func(s *agentScene) {
			deletePolicy(s)
			s.remoteGet = func(object client.Object) error {
				if object.GetObjectKind().GroupVersionKind().Kind != daemonSetKind {
					return nil
				}
				return pageNotFound("capnm-node-agent")
			}
		}, "", true},
		"S71, M109: a proxy answers that there are no NodeMaintenances": {func(s *agentScene) {
			deletePolicy(s)
			s.createNode(map[string]string{v1alpha1.StaticPodTargetsAnnotation: "[]"})
			s.remoteList = pageNotFound("")
			s.remoteGet = func(object client.Object) error {
				if object.GetObjectKind().GroupVersionKind().Kind == crdKind {
					return pageNotFound(object.GetName())
				}
				return nil
			}
		}, "it may hold static Pods: listing NodeMaintenances: ", true},
		"S71, M109: the API server does not serve NodeMaintenances yet, but has their CRD": {func(s *agentScene) {
			deletePolicy(s)
			s.createNode(map[string]string{v1alpha1.StaticPodTargetsAnnotation: "[]"})
			s.remoteList = pageNotFound("")
			s.Expect(s.remote.Create(s.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
				Name: "nodemaintenances." + v1alpha1.GroupVersion.Group,
			}})).To(Succeed())
		}, "it may hold static Pods: listing NodeMaintenances: ", true},
		"S71: a NodeMaintenance cannot be decoded": {func(s *agentScene) {
			deletePolicy(s)
			s.createNode(map[string]string{v1alpha1.StaticPodTargetsAnnotation: "[]"})
			s.remoteList = errors.New("json: cannot unmarshal")
		}, "it may hold static Pods: listing NodeMaintenances: json: cannot unmarshal", true},
		"S72: another management cluster has installed it": {func(s *agentScene) {
			s.setOwner("there")
			deletePolicy(s)
		}, "another management cluster, whose Namespace kube-system has the UID there, has installed it", false},
		"S72: another actor has created it": {func(s *agentScene) {
			agent := s.agent()
			agent.Annotations = nil
			s.Expect(s.remote.Update(s.Context(), agent)).To(Succeed())
			deletePolicy(s)
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAgentScene(t)
			s.ensure()
			tc.change(s)
			_, err := s.ensureNodeAgent(s.Context(), s.remote, clusterOf(s.key), true)
			s.Expect(err != nil).To(Equal(tc.fails))
			s.Expect(s.agent()).NotTo(BeNil())
			if tc.says == "" {
				s.Expect(s.events()).To(BeEmpty())
			} else {
				s.Expect(s.events()).To(ConsistOf(HavePrefix("Normal NodeAgentUnchanged The node agent is neither installed nor removed: " + tc.says)))
			}
		})
	}

	t.Run("S71: none is installed while a selector is invalid, and an event says so", func(t *testing.T) {
		s := newAgentScene(t)
		s.setPolicy(invalidSelector)
		s.ensure()
		s.Expect(s.agent()).To(BeNil())
		s.Expect(s.events()).To(ConsistOf(ContainSubstring("neither installed nor removed: the clusterSelector of MachineDrainPolicy all is invalid")))
	})
	t.Run("S71: static Pods that no maintenance drains are released before the agent is removed", func(t *testing.T) {
		s := newAgentScene(t)
		now := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		s.Clock = now
		s.ensure()
		deletePolicy(s)
		s.Expect(s.remote.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
			v1alpha1.StaticPodTargetsAnnotation: "[]", v1alpha1.StaticPodCauseAnnotation: "why", "a": "b",
		}}})).To(Succeed())
		after, err := s.ensureNodeAgent(s.Context(), s.remote, clusterOf(s.key), true)
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(after).To(Equal(drainingCheckInterval))
		s.Expect(s.agent()).NotTo(BeNil())
		node := &corev1.Node{}
		s.Expect(s.remote.Get(s.Context(), types.NamespacedName{Name: "n1"}, node)).To(Succeed())
		s.Expect(node.Annotations).To(Equal(map[string]string{"a": "b"}))
		now.SetTime(now.Now().Add(time.Second))
		after, err = s.ensureNodeAgent(s.Context(), s.remote, clusterOf(s.key), true) // another policy was deleted
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(after).To(Equal(drainingCheckInterval - time.Second))
		s.Expect(s.agent()).NotTo(BeNil(), "the agents have had no time to release them")
		now.SetTime(now.Now().Add(after))
		s.ensure()
		s.Expect(s.agent()).To(BeNil())
	})
	for name, tc := range map[string]struct{ image, owner string }{
		"S71: static Pods are not released while a maintenance drains them":                                                 {"agent:v1", ""},
		"S75: static Pods are not released while a maintenance drains them, also without the feature gate":                  {"", ""},
		"S72: static Pods are not released while a maintenance of another management cluster drains them":                   {"agent:v1", "there"},
		"S72, S75: static Pods are not released while another management cluster drains them, nor without the feature gate": {"", "there"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAgentScene(t)
			now := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			s.Clock = now
			s.ensure()
			deletePolicy(s)
			targets := map[string]string{v1alpha1.StaticPodTargetsAnnotation: "[]"}
			s.createNode(targets)
			maintenance := s.drainStaticPods(tc.owner)
			s.NodeAgentImage = tc.image
			for range 3 {
				now.SetTime(now.Now().Add(drainingCheckInterval))
				s.ensure()
				node := &corev1.Node{}
				s.Expect(s.remote.Get(s.Context(), types.NamespacedName{Name: "n1"}, node)).To(Succeed())
				s.Expect(node.Annotations).To(Equal(targets), "the controller that serves the agents would write them again")
				s.Expect(s.agent()).NotTo(BeNil())
			}
			maintenance.Spec.Stage = v1alpha1.StageComplete
			s.Expect(s.remote.Update(s.Context(), maintenance)).To(Succeed())
			s.ensure()
			s.Expect(s.agent()).NotTo(BeNil(), "the agents have had no time to release them")
			now.SetTime(now.Now().Add(drainingCheckInterval))
			s.ensure()
			s.Expect(s.agent()).To(BeNil())
		})
	}
}

func TestNodeAgentOfTwoManagementClusters(t *testing.T) {
	owner := func(s *agentScene) string { return s.agent().Annotations[v1alpha1.OwnerManagementClusterAnnotation] }
	t.Run("S72: the management cluster that connects last keeps the node agent, and both leave it to that one", func(t *testing.T) {
		here, now := newAgentScene(t), clocktesting.NewFakePassiveClock(time.Now())
		here.Clock = now
		there := &agentScene{T: t, WithT: here.WithT, key: here.key, remote: here.remote}
		there.Reconciler, _ = over(here.remote)
		there.NodeAgentImage, there.ManagementCluster = "agent:v1", "there"
		there.setPolicy(func(spec *v1alpha1.MachineDrainPolicySpec) { spec.NodeAgent = v1alpha1.NodeAgentEnabled })
		here.ensure()
		here.Expect(owner(here)).To(Equal("here"))
		there.ensure()
		here.Expect(owner(here)).To(Equal("there"))
		here.ensure()
		here.Expect(owner(here)).To(Equal("there"))
		here.disconnect(here.key)
		here.ensure()
		here.Expect(owner(here)).To(Equal("here"), "the other management cluster may be gone")

		here.setPolicy(func(spec *v1alpha1.MachineDrainPolicySpec) { spec.NodeAgent = v1alpha1.NodeAgentDisabled })
		here.ensure()
		now.SetTime(now.Now().Add(rules.GoneCounts))
		here.ensure()
		here.Expect(here.agent()).To(BeNil())
		there.ensure()
		here.Expect(owner(here)).To(Equal("there"), "it still wants the agent")
		here.ensure()
		here.Expect(owner(here)).To(Equal("there"))
	})
}

func TestNodeAgentWithChangesOfUsers(t *testing.T) {
	for name, tc := range map[string]struct {
		answer  error // of the API server to updates of the DaemonSet
		updates int
	}{
		"S18, E64: are not dropped because a webhook denies the DaemonSet as invalid": {
			fakes.DeniedWith(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), 1,
		},
		"S18: are dropped if the DaemonSet is invalid with them": {
			apierrors.NewInvalid(appsv1.SchemeGroupVersion.WithKind(daemonSetKind).GroupKind(), "capnm-node-agent", nil), 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, updates := newAgentScene(t), 0
			s.ensure()
			agent := s.agent()
			agent.Annotations[v1alpha1.BundleVersionAnnotation] = "1"
			s.Expect(s.remote.Update(s.Context(), agent)).To(Succeed())
			refusing := interceptor.NewClient(s.remote.(client.WithWatch), interceptor.Funcs{
				Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
					if object.GetObjectKind().GroupVersionKind().Kind == daemonSetKind {
						updates++
						return tc.answer
					}
					return c.Update(ctx, object, options...)
				},
			})
			_, err := s.ensureNodeAgent(s.Context(), refusing, clusterOf(s.key), true)
			s.Expect(err).To(MatchError(tc.answer))
			s.Expect(updates).To(Equal(tc.updates))
		})
	}
}
