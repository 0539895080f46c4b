package command

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func run(args ...string) (stdout, stderr string, code int) {
	var out, errOut bytes.Buffer
	code = Run("v1.2.3", args, strings.NewReader(""), &out, &errOut)
	return out.String(), errOut.String(), code
}

func TestHelp(t *testing.T) {
	for _, command := range newRoot("v1.2.3", genericiooptions.IOStreams{}).Commands() {
		t.Run("K20: help of "+command.Name()+" has examples", func(t *testing.T) {
			g := NewWithT(t)
			stdout, _, code := run(command.Name(), "--help")
			g.Expect(code).To(BeZero())
			g.Expect(stdout).To(ContainSubstring("Examples:\n  "))
			g.Expect(stdout).To(ContainSubstring("kubectl node-maintenance " + command.Name()))
		})
	}
}

func TestOutput(t *testing.T) {
	t.Run("K20: version prints JSON", func(t *testing.T) {
		g := NewWithT(t)
		stdout, _, code := run("version", "-o", "json")
		g.Expect(code).To(BeZero())
		var info struct{ Version string }
		g.Expect(json.Unmarshal([]byte(stdout), &info)).To(Succeed())
		g.Expect(info.Version).To(Equal("v1.2.3"))
	})

	t.Run("K20: an unknown output format is an invalid command line", func(t *testing.T) {
		for _, command := range []string{"plan", "why", "status", "drain", "cordon", "complete", "version"} {
			g := NewWithT(t)
			_, stderr, code := run(command, "-o", "teapot")
			g.Expect(code).To(Equal(2), command)
			g.Expect(stderr).To(ContainSubstring(`unknown output format "teapot"`), command)
		}
	})
}

func TestExitCodes(t *testing.T) {
	t.Run("K2, K20: an unknown command is an invalid command line", func(t *testing.T) {
		g := NewWithT(t)
		_, stderr, code := run("paln", "machine", "x")
		g.Expect(code).To(Equal(2))
		g.Expect(stderr).To(HavePrefix("error: unknown command \"paln\""))
	})

	t.Run("K2, K5: a Cluster without a namespace is an invalid command line", func(t *testing.T) {
		g := NewWithT(t)
		_, stderr, code := run("why", "pod", "web-0", "--workload-cluster", "prod")
		g.Expect(code).To(Equal(2))
		g.Expect(stderr).To(HavePrefix("error: --workload-cluster needs a namespace, as in: --workload-cluster default/prod\n"))
	})

	t.Run("K2, K60: another value of --fail-on, or one that needs what is not to be read, is an invalid command line", func(t *testing.T) {
		g := NewWithT(t)
		_, stderr, code := run("plan", "machine", "x", "--fail-on", "NotRecreated,warning")
		g.Expect(code).To(Equal(2))
		g.Expect(stderr).To(HavePrefix("error: --fail-on must be of warnings, MayFindNoNode, MayNotFitTogether, NotRecreated, "))
		for _, flag := range []string{"fail-on", "rule", "policy"} {
			_, stderr, code = run("plan", "machine", "x", "--"+flag, "")
			g.Expect(code).To(Equal(2), "a variable of a script may be empty")
			g.Expect(stderr).To(HavePrefix("error: --" + flag + " has no value\n"))
		}
		_, stderr, code = run("plan", "machine", "x", "--fail-on", "LastReady", "--placement=false")
		g.Expect(code).To(Equal(2))
		g.Expect(stderr).To(HavePrefix("error: --fail-on LastReady needs --placement\n"))
	})

	t.Run("K54: --cluster has the meaning that it has for kubectl, and --workload-cluster is for Pods", func(t *testing.T) {
		g := NewWithT(t)
		for _, command := range []string{"plan", "why", "status", "drain"} {
			args := []string{command, "machine", "x", "--cluster", "default/prod", "--kubeconfig", os.DevNull}
			if command == "drain" {
				args = append(args, "--yes")
			}
			_, stderr, code := run(args...)
			g.Expect(code).To(Equal(3), command)
			g.Expect(stderr).To(ContainSubstring(`cluster "default/prod"`), command)
		}
		_, stderr, code := run("why", "machine", "x", "--workload-cluster", "default/prod")
		g.Expect(code).To(Equal(2))
		g.Expect(stderr).To(HavePrefix("error: --workload-cluster is for Pods\n"))
	})

	t.Run("K20: without a command, the plugin prints its help", func(t *testing.T) {
		g := NewWithT(t)
		stdout, _, code := run()
		g.Expect(code).To(BeZero())
		g.Expect(stdout).To(ContainSubstring("Examples:"))
		g.Expect(stdout).NotTo(ContainSubstring("autocompletion"), "a shell would complete the name of the program, and not kubectl")
	})

	for _, command := range [][]string{{"plan", "machine", "x"}, {"why", "machine", "x"}, {"status"}, {"status", "--watch"}, {"drain", "machine", "x", "--yes"}} {
		t.Run("K32: Ctrl-C ends "+command[0]+" also while the API server does not answer", func(t *testing.T) {
			g := NewWithT(t)
			ctx, interrupt := context.WithCancel(t.Context())
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				interrupt()
				<-r.Context().Done()
			}))
			defer server.Close()
			defer server.CloseClientConnections()
			var errOut bytes.Buffer
			code := execute(ctx, "v1.2.3", append(command, "--server", server.URL, "--kubeconfig", os.DevNull), strings.NewReader(""), io.Discard, &errOut)
			g.Expect(code).To(Equal(130))
			g.Expect(errOut.String()).To(Equal("error: interrupted\n"))
		})
	}
}

// TestInterruptedReads has a cluster that answers, until a request that a part of the result depends on.
func TestInterruptedReads(t *testing.T) {
	group := v1alpha1.GroupVersion.String()
	m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "rack-7"}}
	m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("n1")
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: ptr.To(true)},
	}}, Spec: corev1.PodSpec{NodeName: "n1"}}
	machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m1", DeletionTimestamp: ptr.To(metav1.Now())}}
	machine.Spec.ClusterName = "prod"
	address, _ := serving(t, map[string]any{
		"/api/v1": metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
				{Name: "nodes", Kind: "Node"}, {Name: "pods", Kind: "Pod", Namespaced: true}, {Name: "secrets", Kind: "Secret", Namespaced: true},
			},
		},
		"/api/v1/nodes/n1": corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid"}},
		"/api/v1/pods":     corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{pod}},
		"/apis/" + group + "/nodemaintenances": v1alpha1.NodeMaintenanceList{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "NodeMaintenanceList"}, Items: []v1alpha1.NodeMaintenance{m},
		},
		"/apis/" + clusterv1.GroupVersion.String() + "/namespaces/default/machines": clusterv1.MachineList{
			TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineList"}, Items: []clusterv1.Machine{machine},
		},
	}, "Machine", "Cluster")
	upstream, err := url.Parse(address)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, each := range []struct {
		command []string
		path    string
	}{
		{[]string{"status"}, "/api/v1/namespaces/default/secrets/prod-kubeconfig"},
		{[]string{"why", "node", "n1", "--as-workload"}, "/api/v1/nodes"},
		{[]string{"plan", "node", "n1", "--as-workload"}, "/api/v1/nodes"},
	} {
		t.Run("K32: Ctrl-C ends "+each.command[0]+" while "+each.path+" is read, which is no gap then", func(t *testing.T) {
			g := NewWithT(t)
			ctx, interrupt := context.WithCancel(t.Context())
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == each.path {
					interrupt()
					<-r.Context().Done()
					return
				}
				httputil.NewSingleHostReverseProxy(upstream).ServeHTTP(w, r)
			}))
			defer server.Close()
			defer server.CloseClientConnections()
			var out, errOut bytes.Buffer
			code := execute(ctx, "v1.2.3", append(each.command, "--server", server.URL, "--kubeconfig", os.DevNull), strings.NewReader(""), &out, &errOut)
			g.Expect(code).To(Equal(130), out.String()+errOut.String())
			g.Expect(out.String()).To(BeEmpty())
			g.Expect(errOut.String()).To(Equal("error: interrupted\n"))
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Run("K6: a warning of an API server is printed once, and does not control the terminal", func(t *testing.T) {
		g := NewWithT(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Warning", "299 - \"a\u202eb\"")
			w.WriteHeader(http.StatusForbidden)
		}))
		defer server.Close()
		_, stderr, code := run("plan", "machine", "x", "--server", server.URL, "--kubeconfig", os.DevNull)
		g.Expect(code).To(Equal(3))
		g.Expect(strings.Count(stderr, "Warning: a\uFFFDb\n")).To(Equal(1))
		g.Expect(strings.Split(strings.TrimSpace(stderr), "\n")).To(HaveLen(2), stderr)
	})
}

func clusters(t *testing.T) *runtime.Scheme {
	t.Helper()
	return fakes.Scheme()
}

func TestInParallel(t *testing.T) {
	t.Run("K7: status reads workload clusters concurrently: one that does not answer delays no other", func(t *testing.T) {
		clusters, reads := []types.NamespacedName{{Name: "a"}, {Name: "b"}}, make(chan string)
		drains := inParallel(clusters, func(cluster types.NamespacedName) report.Drains {
			if cluster.Name == "a" {
				<-reads // "a" answers when "b" was read
			} else {
				reads <- cluster.Name
			}
			return report.Drains{Maintenances: make([]v1alpha1.NodeMaintenance, len(clusters))}
		})
		NewWithT(t).Expect(drains).To(HaveEach(HaveField("Maintenances", HaveLen(2))))
	})
}

func TestPlanEach(t *testing.T) {
	unreachable, missing := errors.New("connection refused"), apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "c")
	_, deleted := (&observe.Cluster{WithWatch: fake.NewClientBuilder().WithScheme(clusters(t)).Build()}).MachineOf(t.Context(),
		types.NamespacedName{Namespace: "default", Name: "b"}, observe.Proposed{})
	for name, test := range map[string]struct {
		selected bool // by label
		errs     map[string]error
		drains   int
		gaps     []string
		failure  error
	}{
		"all": {false, nil, 2, nil, nil},
		"the others if one cannot be predicted": {
			false, map[string]error{"a": unreachable}, 1, []string{"Machine default/a is not predicted: connection refused"}, nil,
		},
		"none if none can be": {
			false, map[string]error{"a": unreachable, "b": unreachable}, 0,
			[]string{"Machine default/a is not predicted: connection refused", "Machine default/b is not predicted: connection refused"}, unreachable,
		},
		"the others if a Cluster has no kubeconfig": {
			true, map[string]error{"b": missing}, 1, []string{"Machine default/b is not predicted: secrets \"c\" not found"}, nil,
		},
		"the others if a Machine was deleted meanwhile": {true, map[string]error{"b": deleted}, 1, nil, nil},
		"none if all were deleted meanwhile":            {true, map[string]error{"a": deleted, "b": deleted}, 0, nil, deleted},
		"none if a named Machine does not exist":        {false, map[string]error{"b": deleted}, 0, nil, deleted},
		"none after Ctrl-C":                             {true, map[string]error{"a": context.Canceled}, 0, nil, context.Canceled},
	} {
		t.Run("K33: plan predicts "+name, func(t *testing.T) {
			g := NewWithT(t)
			gaps := &observe.Gaps{}
			drains, err := planEach([]types.NamespacedName{{Namespace: "default", Name: "a"}, {Namespace: "default", Name: "b"}}, !test.selected, gaps,
				func(key types.NamespacedName) (report.Drain, error) {
					return report.Drain{}, test.errs[key.Name]
				})
			g.Expect(drains).To(HaveLen(test.drains))
			g.Expect(gaps.List()).To(Equal(test.gaps))
			if test.failure == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(test.failure))
			}
		})
	}
}

func TestRecorder(t *testing.T) {
	t.Run("K50: the view says at once that a recording has ended", func(t *testing.T) {
		g := NewWithT(t)
		r, err := newRecorder(filepath.Join(t.TempDir(), "recording"), "context test", clock.RealClock{})
		g.Expect(err).NotTo(HaveOccurred())
		r.observe(recording.Observation{Gaps: []string{"a"}})
		g.Expect(r.problem()).To(BeEmpty())
		r.limit = r.written
		r.observe(recording.Observation{Gaps: []string{"b"}})
		g.Expect(r.problem()).To(ConsistOf(HavePrefix("changes for the recording: the recording has reached its maximum size")))
	})
}

func TestCompletable(t *testing.T) {
	t.Run("K19: a name that a shell could interpret is not offered", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(completable([]string{"web-1", "web-0", "db", "web$(id)", "web\x1b[2J", "web-0"}, "web")).To(Equal([]string{"web-0", "web-1"}))
	})
}

func TestRoles(t *testing.T) {
	content, err := os.ReadFile("../../../../config/plugin/role.yaml")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	lists := map[string][]string{} // by role
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		role := &rbacv1.ClusterRole{}
		NewWithT(t).Expect(yaml.Unmarshal([]byte(document), role)).To(Succeed())
		for _, rule := range role.Rules {
			if slices.Contains(rule.Verbs, "list") {
				lists[role.Name] = append(lists[role.Name], rule.Resources...)
			}
		}
	}
	for role, kinds := range map[string][]string{
		"capnm-plugin-management-reader": {"machines", "machinedeployments", "clusters"}, "capnm-plugin-workload-reader": {"nodes", "pods", "namespaces"},
	} {
		t.Run("K19: role "+role+" permits to complete the names of the objects that the commands take", func(t *testing.T) {
			NewWithT(t).Expect(lists[role]).To(ContainElements(kinds))
		})
	}
}

func TestAsk(t *testing.T) {
	for answer, agreed := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		t.Run("K15: asks before it drains", func(t *testing.T) {
			g := NewWithT(t)
			var errOut bytes.Buffer
			o := &options{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(answer), ErrOut: &errOut}}
			got, err := o.ask(t.Context(), "Drain this Node?")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(agreed), answer)
			g.Expect(errOut.String()).To(Equal("Drain this Node? (y/N): "))
		})
	}

	t.Run("K15: the plan about which it asks is not on the standard output, which has names with -o name", func(t *testing.T) {
		g := NewWithT(t)
		var out, errOut bytes.Buffer
		o := &options{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &errOut}}
		o.proposePlan(&report.Plan{})
		g.Expect(out.String()).To(BeEmpty())
		g.Expect(errOut.String()).NotTo(BeEmpty())
	})
	t.Run("K15: Ctrl-C at the question changes nothing", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var errOut bytes.Buffer
		silent, _ := io.Pipe()
		o := &options{IOStreams: genericiooptions.IOStreams{In: silent, ErrOut: &errOut}}
		_, err := o.ask(ctx, "Drain this Node?")
		g.Expect(err).To(Equal(exit{130}))
	})
}

func TestK9s(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile("../../../../config/plugin/k9s.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	var file struct {
		Plugins map[string]struct {
			ShortCut, Description, Command string
			Scopes, Args                   []string
			Background, Override           bool
			Dangerous                      bool
		}
	}
	g.Expect(yaml.UnmarshalStrict(content, &file)).To(Succeed())
	g.Expect(file.Plugins).NotTo(BeEmpty())
	t.Run("K22: the plugins of k9s call commands that exist", func(t *testing.T) {
		g := NewWithT(t)
		for _, plugin := range file.Plugins {
			args := plugin.Args[slices.IndexFunc(plugin.Args, func(arg string) bool { return arg == "sh" || arg == "node-maintenance" })+1:]
			command, rest, err := newRoot("v1.2.3", genericiooptions.IOStreams{}).Find(args)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(command.HasParent()).To(BeTrue())
			g.Expect(command.ParseFlags(rest)).To(Succeed())
			if kinds := command.Flags().Args(); len(kinds) > 0 {
				g.Expect(kinds).To(Equal([]string{kinds[0], "$NAME"}))
				g.Expect(plugin.Scopes).To(Equal([]string{kinds[0] + "s"}))
			}
		}
	})
}

func TestWhere(t *testing.T) {
	t.Run("K17: the commands that are suggested after the wait concern the same cluster and namespace", func(t *testing.T) {
		g := NewWithT(t)
		o := &options{config: genericclioptions.NewConfigFlags(true)}
		g.Expect(o.where()).To(BeEmpty())
		*o.config.Context, *o.config.Namespace = "it's prod", "team-a"
		g.Expect(o.where()).To(Equal(` --context='it'\''s prod' --namespace=team-a`))
	})
}
