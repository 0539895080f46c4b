package page_test

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/page"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// screen returns the block of a guide that begins with a text, without its fences.
func screen(t *testing.T, guide, begin string) string {
	t.Helper()
	content, err := os.ReadFile("../../../../docs/guide/" + guide)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile("(?s)\n```text\n(" + regexp.QuoteMeta(begin) + ".*?\n)```\n").FindSubmatch(content)
	NewWithT(t).Expect(found).NotTo(BeNil(), begin)
	return string(found[1])
}

// TestGuide compares the screens of the guide with what the commands write about the policy's status that the guide shows.
func TestGuide(t *testing.T) {
	policy := v1alpha1.MachineDrainPolicy{}
	policy.Namespace = "default"
	NewWithT(t).Expect(yaml.UnmarshalStrict([]byte(screen(t, "machines.md", "recentDrains:")), &policy.Status)).To(Succeed())
	ended := outcome.EndedOf([]v1alpha1.MachineDrainPolicy{policy})
	NewWithT(t).Expect(ended).To(HaveLen(1))
	end := ended[0].EndTime.Time

	t.Run("K61: the guide shows what status says after a drain", func(t *testing.T) {
		s, out := &report.Status{}, bytes.Buffer{}
		s.AddEnded(ended)
		command := "$ kubectl node-maintenance status machine " + ended[0].Machine + "\n"
		out.WriteString(command)
		report.WriteStatus(&out, s, false, end.Add(5*time.Minute), terminal.Style{})
		NewWithT(t).Expect(screen(t, "kubectl.md", command)).To(Equal(out.String()))
	})

	t.Run("K61: the guide shows what the report says after a drain", func(t *testing.T) {
		var recorder recording.Recorder
		h := &recording.History{Start: end.Add(-time.Minute)}
		for _, line := range recorder.Observe(recording.Observation{Ended: ended}, end) {
			h.Outcomes = append(h.Outcomes, *line.Outcome)
		}
		var out bytes.Buffer
		NewWithT(t).Expect(page.WriteMarkdown(&out, h)).To(Succeed())
		_, text, _ := strings.Cut(out.String(), "UTC\n\n")
		NewWithT(t).Expect(screen(t, "kubectl.md", "Pods after 1 drain")).To(Equal(text))
	})
}
