package realnode_test

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
)

// TestRights uses kwok's Nodes: the permissions of an agent depend on its token only.
func TestRights(t *testing.T) {
	t.Parallel()
	root := newScene(t)
	for _, name := range []string{"mine", "theirs"} {
		root.create(root.workload.Client, controlplane.NewNode(name))
	}
	agent := root.asAgent("mine", true)
	maintenance := func(node string) *v1alpha1.NodeMaintenance {
		return shutdown.Maintenance(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, shutdown.Defaults())
	}
	forbidden := Satisfy(apierrors.IsForbidden)
	// An admission policy takes a moment to take effect.
	root.Eventually(func() error {
		return agent.Status().Patch(root.Context(), controlplane.NewNode("theirs"), client.RawPatch(types.MergePatchType, []byte(`{}`)))
	}, eventually, pace).Should(forbidden)

	t.Run("S12: the agent may only maintain its own Node", func(t *testing.T) {
		s := root.sub(t)
		s.Eventually(func() error { return agent.Create(s.Context(), maintenance("mine")) }, eventually, pace).Should(Succeed())
		s.Expect(agent.Create(s.Context(), maintenance("theirs"))).To(forbidden)
		disguised := maintenance("theirs")
		disguised.Name = "shutdown-mine-too"
		s.Expect(agent.Create(s.Context(), disguised)).To(forbidden)
		disguised = maintenance("theirs")
		disguised.Name = "shutdown-mine"
		s.Expect(agent.Delete(s.Context(), maintenance("mine"))).To(Succeed())
		s.Eventually(func() error {
			return s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(maintenance("mine")), disguised.DeepCopy())
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		s.Expect(agent.Create(s.Context(), disguised)).To(forbidden)
		others := maintenance("none") // of a Node that does not exist, which makes no difference here
		s.create(s.workload.Client, others)
		s.Expect(agent.Delete(s.Context(), others)).To(forbidden)
		before := others.DeepCopy()
		others.Spec.Stage = v1alpha1.StageComplete
		s.Expect(agent.Patch(s.Context(), others, client.MergeFrom(before))).To(forbidden)
	})

	t.Run("S12: the agent may only write its own condition, and only on its Node", func(t *testing.T) {
		s := root.sub(t)
		set := func(name string, change func(*corev1.Node)) error {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			s.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			before := node.DeepCopy()
			change(node)
			return agent.Status().Patch(s.Context(), node, client.StrategicMergeFrom(before))
		}
		condition := func(kind corev1.NodeConditionType) func(*corev1.Node) {
			return func(node *corev1.Node) {
				node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue})
			}
		}
		s.Expect(set("mine", condition(v1alpha1.NodeAgentReady))).To(Succeed())
		s.Expect(set("theirs", condition(v1alpha1.NodeAgentReady))).To(forbidden)
		s.Expect(set("mine", condition("Example"))).To(forbidden)
		for name, change := range map[string]func(*corev1.Node){
			"a label": func(node *corev1.Node) { node.Labels["x"] = "y" },
			"an owner": func(node *corev1.Node) {
				node.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "1"}}
			},
			"a finalizer": func(node *corev1.Node) { node.Finalizers = append(node.Finalizers, "example.com/x") },
			"its capacity": func(node *corev1.Node) {
				node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")}
			},
			"its volumes": func(node *corev1.Node) {
				node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v", DevicePath: "/dev/v"}}
			},
			"an address": func(node *corev1.Node) {
				node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
			},
		} {
			s.Expect(set("mine", change)).To(forbidden, name)
		}
	})

	t.Run("S12: the agent may only write the status of Evacuations of its Node while it is the active evacuator", func(t *testing.T) {
		s := root.sub(t)
		report := func(node, class string) error {
			pod := realnode.NewPod("p-"+node+"-"+class[:3], "")
			pod.Spec.NodeName = node
			if class == v1alpha1.EvacuatorClassKubelet { // it serves only static Pods
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.MirrorPodAnnotationKey, "static")
			}
			s.create(s.workload.Client, pod)
			e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: string(pod.UID) + "-" + pod.Name, Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: node},
				Finalizers: []string{v1alpha1.InstigatorFinalizerPrefix + "test"},
			}}
			e.Spec.PodRef = v1alpha1.LocalPodReference{Name: pod.Name, UID: string(pod.UID)}
			e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: class, Priority: 5}}
			s.create(s.workload.Client, e)
			s.Eventually(func(g Gomega) {
				g.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
				g.Expect(e.Status.ActiveEvacuatorClass).To(HaveValue(Equal(class)))
			}, eventually, pace).Should(Succeed())
			before := e.DeepCopy()
			e.Status.Message = "mine"
			return agent.Status().Patch(s.Context(), e, client.MergeFrom(before))
		}
		s.Expect(report("mine", v1alpha1.EvacuatorClassKubelet)).To(Succeed())
		s.Expect(report("theirs", v1alpha1.EvacuatorClassKubelet)).To(forbidden)
		s.Expect(report("mine", "example.com")).To(forbidden)
	})

	t.Run("S12: a token that is not bound to a Pod allows no writes, and an agent cannot read Pods", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(s.asAgent("mine", false).Create(s.Context(), maintenance("mine"))).To(forbidden)
		s.Expect(agent.List(s.Context(), &corev1.PodList{})).To(forbidden)
		s.Expect(agent.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})).To(forbidden)
	})

	t.Run("the manager removes the agents when the policy disables them", func(t *testing.T) {
		s := root.sub(t)
		s.setNodeAgent(v1alpha1.NodeAgentDisabled)
		s.Eventually(func() error {
			return s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: agentNamespace, Name: agentName}, &appsv1.DaemonSet{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
}

// asAgent returns a client with the token of the agent on a Node, or with one that is not bound to a Pod.
func (s *scene) asAgent(node string, bound bool) client.Client {
	s.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	if bound {
		var pod *corev1.Pod
		s.Eventually(func(g Gomega) { pod = s.agentPod(g, node) }, eventually, pace).Should(Succeed())
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: agentName}}
	s.Expect(s.workload.Client.SubResource("token").Create(s.Context(), account, request)).To(Succeed())
	admin := s.workload.AdminConfig()
	config := &rest.Config{Host: admin.Host, BearerToken: request.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData}}
	c, err := client.New(config, client.Options{Scheme: clusterapi.Scheme(), Mapper: s.workload.Client.RESTMapper()})
	s.Expect(err).NotTo(HaveOccurred())
	return c
}
