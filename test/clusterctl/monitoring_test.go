package clusterctl

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

var (
	metricName = regexp.MustCompile(`\b(?:capnm|capi|controller_runtime|leader_election|workqueue|process)_[a-z_]+\b`)
	grouping   = regexp.MustCompile(`\b(?:by|without) \(([^)]*)\)`)
	selector   = regexp.MustCompile(`([a-z_]+) *(?:=|!=|=~|!~) *"`)
	// ofSeries are the suffixes of the series of a histogram.
	ofSeries = regexp.MustCompile(`_(?:bucket|count|sum)$`)
)

// addedByPrometheus are labels that a PodMonitor adds to metrics.
var addedByPrometheus = []string{"namespace", "pod", "le"}

// expectQueriesAnswered checks that every query of the alerts and of the dashboard uses only metrics that the manager exposes, and
// labels that these have.
func (f *fixture) expectQueriesAnswered(scraped string) {
	f.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(scraped))
	f.Expect(err).NotTo(HaveOccurred())
	for _, query := range f.queries() {
		names := metricName.FindAllString(query, -1)
		f.Expect(names).NotTo(BeEmpty(), query)
		has := map[string]bool{}
		for _, name := range names {
			family := families[name]
			if family == nil {
				family = families[ofSeries.ReplaceAllString(name, "")]
			}
			f.Expect(family).NotTo(BeNil(), "%s, of the query %s, is not exposed", name, query)
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					has[label.GetName()] = true
				}
			}
		}
		for _, label := range labelsOf(query) {
			f.Expect(has[label] || slices.Contains(addedByPrometheus, label)).To(BeTrue(), "no metric of the query %s has the label %s", query, label)
		}
	}
}

func labelsOf(query string) []string {
	labels := map[string]bool{}
	for _, match := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(match[1], ",") {
			labels[strings.TrimSpace(label)] = true
		}
	}
	for _, match := range selector.FindAllStringSubmatch(query, -1) {
		labels[match[1]] = true
	}
	return slices.Sorted(maps.Keys(labels))
}

// queries returns the queries of config/monitoring.
func (f *fixture) queries() []string {
	f.Helper()
	dir := filepath.Join(f.at.repository.root, "config", "monitoring")
	var rules struct {
		Spec struct {
			Groups []struct{ Rules []struct{ Expr string } }
		}
	}
	f.Expect(yaml.Unmarshal([]byte(f.at.repository.read(filepath.Join(dir, "rules.yaml"))), &rules)).To(Succeed())
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	f.Expect(json.Unmarshal([]byte(f.at.repository.read(filepath.Join(dir, "dashboard.json"))), &dashboard)).To(Succeed())
	var all []string
	for _, group := range rules.Spec.Groups {
		for _, rule := range group.Rules {
			all = append(all, rule.Expr)
		}
	}
	alerts := len(all)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all = append(all, target.Expr)
		}
	}
	f.Expect(alerts).To(BeNumerically(">=", 4))
	f.Expect(len(all)).To(BeNumerically(">", alerts))
	return all
}
