package tracing

import (
	"os"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/featuregate"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"sigs.k8s.io/yaml"
)

// configVersions are the versions of kube-apiserver's kind TracingConfiguration.
var configVersions = map[string]bool{
	"apiserver.config.k8s.io/v1": true, "apiserver.config.k8s.io/v1beta1": true, "apiserver.config.k8s.io/v1alpha1": true,
}

// configFile is the content of the file for --tracing-config-file of kube-apiserver:
// https://kubernetes.io/docs/concepts/cluster-administration/system-traces/#enabling-tracing-in-the-kube-apiserver.
type configFile struct {
	metav1.TypeMeta                 `json:",inline"`
	tracingapi.TracingConfiguration `json:",inline"`
}

// ReadConfig reads a file that kube-apiserver accepts for --tracing-config-file.
func ReadConfig(file string, gates featuregate.FeatureGate) (*tracingapi.TracingConfiguration, error) {
	content, err := os.ReadFile(file) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, errors.Wrap(err, "reading the tracing configuration")
	}
	config := &configFile{}
	if err := yaml.UnmarshalStrict(content, config); err != nil {
		return nil, errors.Wrapf(err, "parsing the tracing configuration %s", file)
	}
	if config.Kind != "TracingConfiguration" || !configVersions[config.APIVersion] {
		return nil, errors.Errorf("the tracing configuration %s must have kind TracingConfiguration and apiVersion apiserver.config.k8s.io/v1, not %q and %q", file,
			config.Kind, config.APIVersion)
	}
	if invalid := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, gates, nil); len(invalid) > 0 {
		return nil, errors.Wrapf(invalid.ToAggregate(), "validating the tracing configuration %s", file)
	}
	return &config.TracingConfiguration, nil
}
