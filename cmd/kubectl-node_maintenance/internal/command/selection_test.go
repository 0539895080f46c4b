package command

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/live"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
)

func TestTargets(t *testing.T) {
	t.Run("K72: an object that the command line names twice counts once", func(t *testing.T) {
		g, o := NewWithT(t), &options{config: genericclioptions.NewConfigFlags(true)}
		*o.config.KubeConfig = os.DevNull
		targets, err := (&selection{options: o}).targets([]string{"machine", "b", "a", "b"}, "machine")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(targets.names).To(Equal([]string{"b", "a"}))
	})
	t.Run("K72: a command line that names and selects objects, or does neither, says what is wrong", func(t *testing.T) {
		g, o := NewWithT(t), &options{config: genericclioptions.NewConfigFlags(true)}
		_, err := (&selection{options: o}).targets([]string{"machine"}, "machine")
		g.Expect(err).To(MatchError("name a machine, or select objects with -l"))
		_, err = (&selection{options: o, selector: "app=web"}).targets([]string{"machine", "a"}, "machine")
		g.Expect(err).To(MatchError("name objects or select them with -l, not both"))
	})
}

func TestConcernsMachines(t *testing.T) {
	for name, test := range map[string]struct {
		namespace string
		concerns  bool
	}{
		"rejects a rule of a namespace without these Machines": {"other", false},
		"accepts a rule of the namespace of a Machine":         {"default", true},
		"accepts a rule without a namespace":                   {"", true},
	} {
		t.Run("K3: plan "+name, func(t *testing.T) {
			proposed := observe.Proposed{Rules: []clusterv1.MachineDrainRule{{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: "web"}}}}
			err := concernsMachines(proposed, []types.NamespacedName{{Namespace: "default", Name: "a"}})
			NewWithT(t).Expect(err == nil).To(Equal(test.concerns))
		})
	}
}

// forbidding returns the address of an API server that serves Nodes, Pods and NodeMaintenances, and forbids each request, and the number of
// writes.
func forbidding(t *testing.T) (address string, writes *atomic.Int32) {
	t.Helper()
	return serving(t, nil)
}

// serving returns the address of an API server that serves Nodes, Pods, NodeMaintenances, MachineDrainPolicies and the kinds of Cluster
// API that are named, and the number of writes, which it accepts. It forbids to read what is not in the answers, which are by path.
func serving(t *testing.T, answers map[string]any, ofClusterAPI ...string) (address string, writes *atomic.Int32) {
	t.Helper()
	all := map[string]any{
		"/api": metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/api/v1": metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "nodes", Kind: "Node"}, {Name: "pods", Kind: "Pod", Namespaced: true}},
		},
	}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}}
	ours := []string{"NodeMaintenance", "MachineDrainPolicy"}
	for group, kinds := range map[schema.GroupVersion][]string{v1alpha1.GroupVersion: ours, clusterv1.GroupVersion: ofClusterAPI} {
		version := metav1.GroupVersionForDiscovery{GroupVersion: group.String(), Version: group.Version}
		resources := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: group.String()}
		for _, kind := range kinds {
			plural, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
			resources.APIResources = append(resources.APIResources, metav1.APIResource{
				Name: plural.Resource, Kind: kind, Namespaced: kind != "NodeMaintenance",
			})
		}
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
		all["/apis/"+group.String()] = resources
	}
	all["/apis"] = groups
	maps.Copy(all, answers)
	writes = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodGet {
			writes.Add(1)
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
			return
		}
		answer, served := all[r.URL.Path]
		if status, is := answer.(metav1.Status); is {
			w.WriteHeader(int(status.Code))
		} else if !served {
			w.WriteHeader(http.StatusForbidden)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return server.URL, writes
}

// TestOwnNodes has a management cluster without Machines, whose Node is drained by hand.
func TestOwnNodes(t *testing.T) {
	const node = "own"
	m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "rack-7"}}
	m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes(node)
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: node}}}
	group := v1alpha1.GroupVersion.String()
	address, writes := serving(t, map[string]any{
		"/apis/" + clusterv1.GroupVersion.String() + "/namespaces/default/machines": clusterv1.MachineList{
			TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineList"},
		},
		"/api/v1/nodes/" + node: corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node, UID: "uid"}},
		"/api/v1/pods":          corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}},
		"/apis/" + group + "/nodemaintenances": v1alpha1.NodeMaintenanceList{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "NodeMaintenanceList"}, Items: []v1alpha1.NodeMaintenance{m},
		},
		"/apis/" + group + "/nodemaintenances/kubectl-own": apierrors.NewNotFound(schema.GroupResource{Resource: "nodemaintenances"}, "kubectl-own").Status(),
	}, "Machine", "Cluster")
	own := func(args ...string) (stdout, stderr string, code int) {
		return run(append(args, "--server", address, "--kubeconfig", os.DevNull)...)
	}
	for _, command := range [][]string{{"plan"}, {"why"}, {"drain", "--yes"}, {"complete"}} {
		t.Run("K42: "+command[0]+" says how to name a Node of the management cluster itself", func(t *testing.T) {
			g := NewWithT(t)
			_, stderr, code := own(append(command, "node", node)...)
			g.Expect(code).To(Equal(3))
			g.Expect(stderr).To(ContainSubstring("no Machine of Node own in namespace default of API server " + address +
				"; for a Node of this cluster itself, pass --as-workload"))
			g.Expect(writes.Load()).To(BeZero())
		})
	}
	for _, command := range []string{"plan", "why"} {
		t.Run("K42: "+command+" explains a Node of the management cluster itself", func(t *testing.T) {
			g := NewWithT(t)
			stdout, stderr, _ := own(command, "node", node, "--as-workload")
			g.Expect(stdout).To(ContainSubstring("rack-7"), stderr)
			g.Expect(stdout).To(ContainSubstring("Read from workload cluster, "))
		})
	}
	t.Run("K42: status shows the maintenance of the management cluster's own Nodes", func(t *testing.T) {
		g := NewWithT(t)
		stdout, _, code := own("status")
		g.Expect(code).To(BeZero())
		g.Expect(stdout).NotTo(ContainSubstring("rack-7"))
		stdout, _, code = own("status", "--as-workload")
		g.Expect(code).To(BeZero())
		g.Expect(stdout).To(ContainSubstring("NodeMaintenance rack-7, stage Drain"))
	})
	t.Run("K42: drain maintains a Node of the management cluster itself", func(t *testing.T) {
		g := NewWithT(t)
		stdout, stderr, code := own("drain", "node", node, "--as-workload", "--yes", "--wait=false")
		g.Expect(code).To(BeZero(), stderr)
		g.Expect(stdout).To(Equal("nodemaintenance.maintenance.cluster.x-k8s.io/kubectl-own created\n"))
		g.Expect(writes.Load()).To(BeEquivalentTo(1))
	})
	t.Run("K42: there are no Machines in a management cluster that is read as a workload cluster", func(t *testing.T) {
		for _, command := range [][]string{{"plan"}, {"why"}, {"drain", "--yes"}, {"status"}} {
			g := NewWithT(t)
			_, stderr, code := own(append(command, "machine", "w1", "--as-workload")...)
			g.Expect(code).To(Equal(3))
			g.Expect(stderr).To(ContainSubstring("has no Machines: it does not serve them, or is read as a workload cluster (--as-workload)"), command[0])
		}
	})
	t.Run("K42: the commands that are suggested after the wait read the same cluster in the same way", func(t *testing.T) {
		g := NewWithT(t)
		o := &options{config: genericclioptions.NewConfigFlags(true), asWorkload: true}
		g.Expect(o.where()).To(Equal(" --as-workload"))
		g.Expect(o.whereOfKubectl()).To(BeEmpty(), "kubectl has no such flag")
	})
}

func TestUnreadNode(t *testing.T) {
	for _, command := range [][]string{{"drain", "--yes"}, {"cordon"}} {
		t.Run("K18: "+command[0]+" names the missing right to read a Node, which may not exist, and writes nothing", func(t *testing.T) {
			g := NewWithT(t)
			address, writes := forbidding(t)
			_, stderr, code := run(append(command, "node", "x", "--wait=false", "--server", address, "--kubeconfig", os.DevNull)...)
			g.Expect(code).To(Equal(3))
			g.Expect(stderr).To(ContainSubstring("no right to get Node x in"))
			g.Expect(writes.Load()).To(BeZero())
		})
	}

	t.Run("K4, K9: the page of a Node in the live view says what could not be read, and of which cluster", func(t *testing.T) {
		g := NewWithT(t)
		s := &statusOptions{options: &options{config: genericclioptions.NewConfigFlags(true), warnings: newWarnings(io.Discard), clock: clock.RealClock{}}}
		address, _ := forbidding(t)
		*s.config.APIServer, *s.config.KubeConfig = address, os.DevNull
		page, err := s.explain(t.Context(), live.Target{Kind: "node", Name: "x"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(page).To(ContainSubstring("Whether a NodeMaintenance selects the Node is not known"))
		for _, gap := range []string{"No right to get nodes", "No right to list nodemaintenances", "listing the Pods of Node x"} {
			g.Expect(page).To(ContainSubstring(gap))
		}
		g.Expect(page).To(ContainSubstring("Read from workload cluster, "))
	})
}
