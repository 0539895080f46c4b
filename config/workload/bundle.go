// Package workload embeds what every managed workload cluster gets: the CRDs of NodeMaintenance and Evacuation.
package workload

import (
	"embed"
	"io/fs"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// BundleVersion counts the changes of the bundle. A manager never replaces what a newer bundle has brought: it goes up by
// one with every change of the files beside this one.
const BundleVersion = 1

//go:embed crd/*.yaml
var files embed.FS

// Bundle returns the objects of the bundle, in the order in which they are applied.
func Bundle() ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(files, "crd/*.yaml")
	if err != nil {
		return nil, errors.Wrap(err, "listing the embedded bundle")
	}
	objects := make([]*unstructured.Unstructured, 0, len(names))
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			return nil, errors.Wrapf(err, "reading %s of the embedded bundle", name)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &object.Object); err != nil {
			return nil, errors.Wrapf(err, "parsing %s of the embedded bundle", name)
		}
		objects = append(objects, object)
	}
	return objects, nil
}
