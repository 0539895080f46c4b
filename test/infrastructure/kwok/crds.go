package kwok

import (
	"embed"
	"io/fs"
	"time"

	"github.com/pkg/errors"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// crdTimeout is long, for small machines that run many tests.
const crdTimeout = 3 * time.Minute

//go:embed config/crd/*.yaml
var crdFiles embed.FS

// CRDs returns the CRDs of the provider.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) { return readCRDs(crdFiles) }

// InstallCRDs applies the CRDs of the provider and waits until they are served.
func InstallCRDs(management *rest.Config) error {
	crds, err := CRDs()
	if err != nil {
		return err
	}
	if err := envtest.CreateCRDs(management, crds); err != nil {
		return errors.Wrap(err, "creating the CRDs of the kwok provider")
	}
	err = envtest.WaitForCRDs(management, crds, envtest.CRDInstallOptions{MaxTime: crdTimeout, PollInterval: 100 * time.Millisecond})
	return errors.Wrap(err, "waiting for the CRDs of the kwok provider")
}

func readCRDs(files fs.FS) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(files, "config/crd/*.yaml")
	if err != nil {
		return nil, errors.Wrap(err, "listing the CRDs of the kwok provider")
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, errors.Wrapf(err, "reading %s", name)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, crd); err != nil {
			return nil, errors.Wrapf(err, "decoding %s", name)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
