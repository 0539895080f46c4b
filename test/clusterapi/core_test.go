package clusterapi_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// TestInstall checks the webhooks: all tests that create Machines show that the controllers work.
func TestInstall(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	management := controlplane.ForTest(t, controlplane.Options{Name: "management"})
	_, err := clusterapi.Install(ctx, management, clusterapi.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	c, err := client.New(management.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())

	valid := machine("valid")
	valid.Spec.Version = "1.36.3"
	g.Expect(c.Create(ctx, valid)).To(Succeed())
	g.Expect(valid.Spec.Version).To(Equal("v1.36.3"), "a webhook has completed the version")

	invalid := machine("invalid")
	invalid.Spec.Version = "v1.thirty-six"
	g.Expect(c.Create(ctx, invalid)).To(MatchError(ContainSubstring("must be a valid semantic version")))

	// Conversion of a Machine would look up the CRD of its infrastructure.
	rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "rule"}}
	rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
	g.Expect(c.Create(ctx, rule)).To(Succeed())
	old := &unstructured.Unstructured{}
	old.SetGroupVersionKind(schema.GroupVersionKind{Group: clusterv1.GroupVersion.Group, Version: "v1beta1", Kind: "MachineDrainRule"})
	g.Expect(c.Get(ctx, client.ObjectKeyFromObject(rule), old)).To(Succeed())
}

// nowhere refers to infrastructure of a kind that does not exist.
var nowhere = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.example.com", Kind: "None", Name: "none"}

// machine returns a Machine of a Cluster that does not exist.
func machine(name string) *clusterv1.Machine {
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	machine.Spec.ClusterName = "nowhere"
	machine.Spec.Bootstrap.DataSecretName = ptr.To("none")
	machine.Spec.InfrastructureRef = nowhere
	return machine
}
