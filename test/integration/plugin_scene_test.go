package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pluginAgent is the prefix of the user agent of the kubectl plugin.
const pluginAgent = "kubectl-node_maintenance"

// pluginBinary builds the kubectl plugin.
var pluginBinary = sync.OnceValues(func() (path string, err error) {
	directory, err := os.MkdirTemp("", "kubectl-node_maintenance-")
	if err != nil {
		return "", errors.Wrap(err, "creating a directory for the plugin")
	}
	path = filepath.Join(directory, "kubectl-node_maintenance")
	command := exec.Command("go", "build", "-o", path, "../../cmd/kubectl-node_maintenance")
	output, err := command.CombinedOutput()
	return path, errors.Wrapf(err, "building the plugin: %s", output)
})

// kubeconfigFile writes a kubeconfig for a client configuration to a file.
func (s *scene) kubeconfigFile(config *rest.Config) string {
	s.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	kubeconfig.Contexts["test"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: namespace}
	kubeconfig.CurrentContext = "test"
	file := filepath.Join(s.TempDir(), "kubeconfig")
	s.Expect(clientcmd.WriteToFile(*kubeconfig, file)).To(Succeed())
	return file
}

// plugin runs the kubectl plugin with the kubeconfig of a cluster, and returns its output and its exit code.
func (s *scene) plugin(config *rest.Config, args ...string) (stdout, stderr string, code int) {
	s.Helper()
	path, err := pluginBinary()
	s.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(s.Context(), eventually)
	defer cancel()
	command := exec.CommandContext(ctx, path, append(args, "--kubeconfig", s.kubeconfigFile(config), "--cache-dir", s.TempDir())...)
	var out, errOut bytes.Buffer
	command.Stdout, command.Stderr = &out, &errOut
	var failed *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &failed) {
		s.Expect(err).NotTo(HaveOccurred())
	}
	s.Logf("kubectl node-maintenance %s: exit code %d\n%s%s", strings.Join(args, " "), command.ProcessState.ExitCode(), tail(out.String()), errOut.String())
	return out.String(), errOut.String(), command.ProcessState.ExitCode()
}

// tail limits what is logged of a long output.
func tail(output string) string {
	const longest = 6000
	if len(output) > longest {
		return "…" + output[len(output)-longest:]
	}
	return output
}

// predictedDrain is the part of the output of plan that tests compare.
type predictedDrain struct {
	Node       string
	Policy     string
	Skipped    string
	Blockers   []predictedProblem
	Unknown    []predictedProblem
	Delays     []predictedProblem
	Pods       []predictedPod
	Volumes    []string
	DrainRules json.RawMessage
}

type predictedProblem struct {
	Reason, Message, Budget, Fix, Guide string
	Pods                                []string
}

type predictedPod struct {
	Namespace, Name, UID, Outcome, Rule, Reason, WaitsFor string
	Step                                                  int
	Order                                                 int32
	Evacuators                                            []string
	Surge                                                 struct{ Refusal, Message string }
}

// predict runs plan for a Machine and returns the only drain of its result.
func (s *scene) predict(args ...string) (predictedDrain, int) {
	s.Helper()
	output, _, code := s.plugin(s.fleet.Management.AdminConfig(), append([]string{"plan"}, append(args, "-o", "json")...)...)
	var plan struct {
		Drains []predictedDrain
		Gaps   []string
	}
	s.Expect(json.Unmarshal([]byte(output), &plan)).To(Succeed())
	s.Expect(plan.Gaps).To(BeEmpty())
	s.Expect(plan.Drains).To(HaveLen(1))
	return plan.Drains[0], code
}
