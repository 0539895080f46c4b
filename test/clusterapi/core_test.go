package clusterapi_test

import (
	"io"
	"net/http"
	"testing"
	"time"

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

const soon = 3 * time.Minute

func TestInstall(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	management := controlplane.ForTest(t, controlplane.Options{Name: "management"})
	core, err := clusterapi.Install(ctx, management, clusterapi.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	c, err := client.New(management.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())

	t.Run("webhooks default, validate and convert", func(t *testing.T) { webhooksWork(t, c) })
	t.Run("controllers reconcile", func(t *testing.T) { controllersWork(t, c) })
	t.Run("metrics are served", func(t *testing.T) {
		g := NewWithT(t)
		response, err := http.Get(core.MetricsURL())
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(response.Body)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(response.Body.Close()).To(Succeed())
		g.Expect(string(content)).To(ContainSubstring("capi_reconcile_total"))
	})
	t.Run("a killed manager can be started again", func(t *testing.T) {
		g := NewWithT(t)
		core.Kill()
		g.Expect(c.Create(ctx, machine("homeless"))).NotTo(Succeed(), "the validating webhook is down")
		g.Expect(core.Start(ctx)).To(Succeed())
		g.Expect(c.Create(ctx, machine("homeless"))).To(Succeed())
		g.Expect(core.Log()).To(ContainSubstring("Starting manager"))
		g.Expect(core.Stop()).To(Succeed())
	})
}

func webhooksWork(t *testing.T, c client.Client) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
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

func controllersWork(t *testing.T, c client.Client) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "bare"}}
	cluster.Spec.InfrastructureRef = nowhere
	g.Expect(c.Create(ctx, cluster)).To(Succeed())
	g.Eventually(func() ([]string, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		return cluster.Finalizers, err
	}, soon).Should(ContainElement(clusterv1.ClusterFinalizer))
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
