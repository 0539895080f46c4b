package command

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// TestDrainInPlace has a Machine that Cluster API excludes from drains and that has a hook of another owner. A drain that a user requests
// takes no account of either.
func TestDrainInPlace(t *testing.T) {
	w1 := clusterv1.Machine{TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"}}
	w1.Namespace, w1.Name, w1.UID, w1.Spec.ClusterName, w1.Status.NodeRef.Name = "default", "w1", "w1", "prod", "n1"
	w1.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](600)
	w1.Annotations = map[string]string{
		v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeNodeDrainingAnnotation: "",
		clusterv1.PreDrainDeleteHookAnnotationPrefix + "/approval": "sre",
	}
	control := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c1"}}
	control.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
	cluster := clusterv1.Cluster{TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster"}}
	cluster.Namespace, cluster.Name = "default", "prod"
	policy := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1"}}
	rack := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "rack-7"}}
	rack.Spec.Stage, rack.Spec.NodeSelector = v1alpha1.StageCordon, v1alpha1.SelectNodes("n1")
	list := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind}
	}
	ofClusterAPI, ours := "/apis/"+clusterv1.GroupVersion.String(), "/apis/"+v1alpha1.GroupVersion.String()
	address, _ := serving(t, map[string]any{
		ofClusterAPI + "/namespaces/default/machines/w1":   w1,
		ofClusterAPI + "/namespaces/default/machines":      clusterv1.MachineList{Items: []clusterv1.Machine{w1, control}},
		ofClusterAPI + "/namespaces/default/clusters/prod": cluster,
		ours + "/namespaces/default/machinedrainpolicies": v1alpha1.MachineDrainPolicyList{
			TypeMeta: list("MachineDrainPolicyList"), Items: []v1alpha1.MachineDrainPolicy{policy},
		},
		ours + "/nodemaintenances": v1alpha1.NodeMaintenanceList{
			TypeMeta: list("NodeMaintenanceList"), Items: []v1alpha1.NodeMaintenance{rack},
		},
		"/api/v1/nodes/n1": node,
		"/api/v1/pods":     corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{pod}},
	}, "Machine", "Cluster", "MachineDrainRule")
	kubeconfig := filepath.Join(t.TempDir(), "workload")
	content := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n"+
		"current-context: c\n", address)
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}

	t.Run("K68: the plan that drain prints is that of the drain that it requests, and not that of a deletion", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		o := &options{
			IOStreams: genericiooptions.IOStreams{In: strings.NewReader("n\n"), Out: &out, ErrOut: &out}, config: genericclioptions.NewConfigFlags(true),
			warnings: newWarnings(&out), clock: clock.RealClock{}, workloadKubeconfig: kubeconfig,
		}
		*o.config.APIServer, *o.config.KubeConfig = address, os.DevNull
		connections, err := o.connect(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		m := &maintainOptions{selection: &selection{options: o}, stage: v1alpha1.StageDrain}
		err = m.confirm(t.Context(), connections, targets{kind: "machine", namespace: "default", names: []string{"w1"}}, 1)
		g.Expect(err).To(Equal(exit{1}))
		g.Expect(out.String()).To(ContainSubstring("1 Pod evacuated; limited to 10m0s (nodeDrainTimeoutSeconds), then the drain continues, and"))
		g.Expect(out.String()).NotTo(ContainSubstring("The Node is not drained"))
		g.Expect(out.String()).NotTo(ContainSubstring("pre-drain hooks"))
		g.Expect(out.String()).NotTo(ContainSubstring("is deleted"))
	})

	t.Run("K68: plan predicts the deletion of the Machine", func(t *testing.T) {
		g := NewWithT(t)
		stdout, stderr, _ := run("plan", "machine", "w1", "--server", address, "--kubeconfig", os.DevNull, "--workload-kubeconfig", kubeconfig)
		g.Expect(stdout).To(ContainSubstring("The Node is not drained: the Machine has the annotation "+clusterv1.ExcludeNodeDrainingAnnotation), stderr)
	})

	t.Run("K69: why machine reads the Node of a Machine that only its deletion would not drain", func(t *testing.T) {
		g := NewWithT(t)
		stdout, stderr, _ := run("why", "machine", "w1", "--server", address, "--kubeconfig", os.DevNull, "--workload-kubeconfig", kubeconfig)
		g.Expect(stdout).To(ContainSubstring("NODEMAINTENANCE rack-7"), stderr)
	})
}
