package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	shownBy    = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
)

// TestSymptoms checks the guide to stuck drains: the code contains each message that it quotes, and each symptom links to a test that
// produces it.
func TestSymptoms(t *testing.T) {
	content, err := os.ReadFile(guides + "stuck-drains.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	said := sources(t)
	for _, part := range strings.Split(string(content), "\n### ")[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		t.Run(heading, func(t *testing.T) {
			g := NewWithT(t)
			quotes := inlineCode.FindAllStringSubmatch(quoted(body), -1)
			g.Expect(quotes).NotTo(BeEmpty())
			for _, quote := range quotes {
				g.Expect(strings.Contains(said, quote[1])).To(BeTrue(), "no code contains %q", quote[1])
			}
			_, tests, found := strings.Cut(body, "\nShown by ")
			g.Expect(found).To(BeTrue(), "the symptom has no test")
			tests, _, _ = strings.Cut(tests, "\n## ")
			for _, link := range shownBy.FindAllStringSubmatch(strings.ReplaceAll(tests, "\n", " "), -1) {
				source, err := os.ReadFile(filepath.Join(guides, link[2]))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(strings.Contains(string(source), link[1])).To(BeTrue(), "%s has no test %q", link[2], link[1])
			}
		})
	}
}

// TestManifests checks the YAML for the management cluster in the guide to draining Machines and in the README: each field exists.
func TestManifests(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, controlplanev1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	decoded := map[string]int{}
	for _, page := range []string{guides + "machines.md", "../../README.md"} {
		content, err := os.ReadFile(page)
		g.Expect(err).NotTo(HaveOccurred())
		for _, found := range block.FindAllStringSubmatch(string(content), -1) {
			for document := range strings.SplitSeq(found[2], "---\n") {
				isOfTool := strings.HasPrefix(document, "apiVersion: argoproj.io/") || strings.HasPrefix(document, "apiVersion: kustomize.toolkit.fluxcd.io/")
				if found[1] != "yaml" || isOfTool {
					continue
				}
				if strings.HasPrefix(document, "spec:") { // a part of a policy
					document = "apiVersion: " + v1alpha1.GroupVersion.String() + "\nkind: MachineDrainPolicy\n" + document
				}
				_, gvk, err := decoder.Decode([]byte(document), nil, nil)
				g.Expect(err).NotTo(HaveOccurred(), "%s:\n%s", page, document)
				decoded[gvk.Kind]++
			}
		}
	}
	g.Expect(decoded).To(And(HaveKey("Machine"), HaveKey("MachineDeployment"), HaveKey("KubeadmControlPlane"), HaveKey("Cluster"),
		HaveKey("MachineDrainRule"), HaveKeyWithValue("MachineDrainPolicy", BeNumerically(">", 2))))
}

// quoted returns the lines of block quotes.
func quoted(text string) string {
	var quote []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, ">") {
			quote = append(quote, line)
		}
	}
	return strings.Join(quote, "\n")
}

// sources returns all texts for users: the code without tests, and the alerts.
func sources(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	var all strings.Builder
	all.WriteString(v1alpha1.PreDrainHookAnnotation + "\n")
	for _, root := range []string{"api", "controllers", "drain", "config/monitoring"} {
		g.Expect(filepath.WalkDir("../../"+root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && filepath.Base(path) != "rules.yaml" {
				return err
			}
			content, err := os.ReadFile(path)
			all.Write(content)
			return err
		})).To(Succeed())
	}
	return all.String()
}
