package fleet

import (
	"context"
	"maps"
	"net/http"

	"github.com/pkg/errors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are metric families by name, as Prometheus scrapes them.
type Metrics map[string]*dto.MetricFamily

// Metrics scrapes our manager.
func (m *Manager) Metrics(ctx context.Context) (Metrics, error) { return Scrape(ctx, m.MetricsURL()) }

// Scrape scrapes our manager or Cluster API's.
func Scrape(ctx context.Context, url string) (Metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, errors.Wrapf(err, "asking for the metrics of %s", url)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, errors.Wrapf(err, "asking for the metrics of %s", url)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, errors.Errorf("asking for the metrics of %s: %s", url, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	return families, errors.Wrapf(err, "reading the metrics of %s", url)
}

// ShareWithin returns the share of the samples of a histogram without labels in the buckets up to a bound. It returns 0 for a histogram
// without samples.
func (m Metrics) ShareWithin(name string, bound float64) float64 {
	share := 0.0
	for _, metric := range m[name].GetMetric() {
		histogram := metric.GetHistogram()
		for _, bucket := range histogram.GetBucket() {
			if bucket.GetUpperBound() <= bound && histogram.GetSampleCount() > 0 {
				share = float64(bucket.GetCumulativeCount()) / float64(histogram.GetSampleCount())
			}
		}
	}
	return share
}

// Sum adds the values of the counters, gauges and histogram counts of a family that have at least these labels. It returns 0 for a
// family that is not exposed.
func (m Metrics) Sum(name string, labels map[string]string) float64 {
	sum := 0.0
	for _, metric := range m[name].GetMetric() {
		has := map[string]string{}
		for _, label := range metric.GetLabel() {
			has[label.GetName()] = label.GetValue()
		}
		merged := maps.Clone(has)
		maps.Copy(merged, labels)
		if maps.Equal(has, merged) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
