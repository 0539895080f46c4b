package tracing

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/component-base/featuregate"
	"k8s.io/utils/ptr"
)

func TestReadConfig(t *testing.T) {
	const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	read := func(t *testing.T, content string) (endpoint *string, rate *int32, err error) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "tracing.yaml")
		NewWithT(t).Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed())
		config, err := ReadConfig(file, featuregate.NewFeatureGate())
		if err != nil {
			return nil, nil, err
		}
		return config.Endpoint, config.SamplingRatePerMillion, nil
	}
	t.Run("reads the file of kube-apiserver", func(t *testing.T) {
		g := NewWithT(t)
		endpoint, rate, err := read(t, header+"endpoint: localhost:4317\nsamplingRatePerMillion: 1000\n")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(endpoint).To(HaveValue(Equal("localhost:4317")))
		g.Expect(rate).To(HaveValue(BeEquivalentTo(1000)))
	})
	for name, invalid := range map[string]struct{ content, message string }{
		"a rate above one million": {header + "samplingRatePerMillion: 1000001\n", "less than or equal to one million"},
		"an endpoint with http":    {header + "endpoint: http://localhost:4317\n", "unsupported scheme"},
		"an unknown field":         {header + "sampling: 1\n", "unknown field"},
		"another kind":             {"apiVersion: v1\nkind: ConfigMap\n", "must have kind TracingConfiguration"},
	} {
		t.Run("rejects "+name, func(t *testing.T) {
			_, _, err := read(t, invalid.content)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(invalid.message)))
		})
	}
}

func TestSampling(t *testing.T) {
	g := NewWithT(t)
	var off *Exporter
	traceNumber1 := traceNumbered(1)
	g.Expect(off.Samples(traceNumber1)).To(BeFalse())
	off.Export() // a nil Exporter exports nothing
	off.Shutdown()
	g.Expect(testing.AllocsPerRun(100, func() { off.Samples(traceNumber1) })).To(BeZero(), "tracing that is off costs nothing")
	for _, rate := range []*int32{nil, ptr.To[int32](0)} {
		g.Expect(sampled(t, rate)).To(BeZero())
	}
	g.Expect(sampled(t, ptr.To[int32](perMillion))).To(Equal(traces))
	g.Expect(sampled(t, ptr.To[int32](perMillion/2))).To(BeNumerically("~", traces/2, traces/10))
}
