package clusterapi

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// crdTimeout is long, for small machines that run many tests.
const crdTimeout = 3 * time.Minute

// manifests are the objects that a manager needs in its cluster.
type manifests struct {
	namePrefix string // which a release adds to the names of the webhook configurations
	decoder    runtime.Decoder
	crds       []*apiextensionsv1.CustomResourceDefinition
	mutating   []*admissionregistrationv1.MutatingWebhookConfiguration
	validating []*admissionregistrationv1.ValidatingWebhookConfiguration
}

// readManifests reads the manifests of the release that a program is built from. They are in a directory of its module.
func readManifests(ctx context.Context, program, dir, namePrefix string) (*manifests, error) {
	config, err := configDir(ctx, program, dir)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(config, "crd", "bases", "*.yaml"))
	if err != nil {
		return nil, errors.Wrap(err, "listing Cluster API's CRDs")
	}
	m := &manifests{namePrefix: namePrefix, decoder: serializer.NewCodecFactory(Scheme()).UniversalDeserializer()}
	for _, file := range append(files, filepath.Join(config, "webhook", "manifests.yaml")) {
		if err := m.read(file); err != nil {
			return nil, err
		}
	}
	if len(m.crds) == 0 || len(m.mutating) == 0 || len(m.validating) == 0 {
		return nil, errors.Errorf("%s lacks CRDs or webhook configurations: has Cluster API moved them?", config)
	}
	return m, nil
}

// configDir finds the manifests in the module cache, which contains them because the program was
// built from the same module. The version is that of the tool, not that of the main module: the
// two may differ during an upgrade.
func configDir(ctx context.Context, name, dir string) (string, error) {
	program, err := toolchain.Find(name)
	if err != nil {
		return "", err
	}
	module, err := toolchain.ModuleDir(ctx, program.Pin, program.Module)
	return filepath.Join(module, dir), err
}

func (m *manifests) read(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return errors.Wrap(err, "reading a manifest of Cluster API")
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		document := runtime.RawExtension{}
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return errors.Wrapf(err, "splitting %s", file)
		}
		if len(document.Raw) == 0 || string(document.Raw) == "null" {
			continue
		}
		if err := m.add(document.Raw); err != nil {
			return errors.Wrapf(err, "decoding %s", file)
		}
	}
}

func (m *manifests) add(document []byte) error {
	object, _, err := m.decoder.Decode(document, nil, nil)
	if err != nil {
		return err
	}
	switch typed := object.(type) {
	case *apiextensionsv1.CustomResourceDefinition:
		m.crds = append(m.crds, typed)
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		m.mutating = append(m.mutating, typed)
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		m.validating = append(m.validating, typed)
	default:
		return errors.Errorf("unexpected kind %T", object)
	}
	return nil
}

// serveFrom directs all webhooks to the server at url, with the same paths as behind its Service.
func (m *manifests) serveFrom(url string, ca []byte) {
	for _, crd := range m.crds {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1"},
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: ptr.To(url + "/convert"), CABundle: ca},
			},
		}
	}
	redirect := func(config *admissionregistrationv1.WebhookClientConfig) {
		path := ptr.Deref(config.Service.Path, "")
		*config = admissionregistrationv1.WebhookClientConfig{URL: ptr.To(url + path), CABundle: ca}
	}
	for _, configuration := range m.mutating {
		for i := range configuration.Webhooks {
			redirect(&configuration.Webhooks[i].ClientConfig)
		}
	}
	for _, configuration := range m.validating {
		for i := range configuration.Webhooks {
			redirect(&configuration.Webhooks[i].ClientConfig)
		}
	}
}

// apply creates or updates the manifests and waits until the CRDs are served.
func (m *manifests) apply(ctx context.Context, config *rest.Config) error {
	c, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		return errors.Wrap(err, "creating a client")
	}
	if err := m.keepLabels(ctx, c); err != nil {
		return err
	}
	if err := envtest.CreateCRDs(config, m.crds); err != nil {
		return errors.Wrap(err, "creating Cluster API's CRDs")
	}
	for _, wanted := range m.mutating {
		actual := &admissionregistrationv1.MutatingWebhookConfiguration{}
		actual.Name = m.namePrefix + wanted.Name
		if _, err := controllerutil.CreateOrUpdate(ctx, c, actual, func() error { actual.Webhooks = wanted.Webhooks; return nil }); err != nil {
			return errors.Wrapf(err, "creating %s", actual.Name)
		}
	}
	for _, wanted := range m.validating {
		actual := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		actual.Name = m.namePrefix + wanted.Name
		if _, err := controllerutil.CreateOrUpdate(ctx, c, actual, func() error { actual.Webhooks = wanted.Webhooks; return nil }); err != nil {
			return errors.Wrapf(err, "creating %s", actual.Name)
		}
	}
	err = envtest.WaitForCRDs(config, m.crds, envtest.CRDInstallOptions{MaxTime: crdTimeout, PollInterval: 100 * time.Millisecond})
	return errors.Wrap(err, "waiting for Cluster API's CRDs")
}

// keepLabels preserves the labels of existing CRDs, such as those that clusterctl uses for its inventory.
func (m *manifests) keepLabels(ctx context.Context, c client.Client) error {
	for _, crd := range m.crds {
		present := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), present); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return errors.Wrapf(err, "getting CRD %s", crd.Name)
		}
		crd.Labels = labels.Merge(present.Labels, crd.Labels)
	}
	return nil
}
