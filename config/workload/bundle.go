// Package workload embeds what every managed workload cluster gets: the CRDs of NodeMaintenance and Evacuation, the admission
// policies that say who may write them, and roles.
package workload

import (
	"bufio"
	"bytes"
	"embed"
	"io"
	"io/fs"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// BundleVersion counts the changes of the bundle. A manager never replaces what a newer bundle has brought: it goes up by
// one with every change of the files beside this one.
const BundleVersion = 5

//go:embed admission/*.yaml crd/*.yaml roles/*.yaml nodeagent/*.yaml
var files embed.FS

// Bundle returns the objects of the bundle, in the order in which they are applied: who may write a kind is said before the
// kind is there.
func Bundle() ([]*unstructured.Unstructured, error) {
	return objectsOf("admission/*.yaml", "crd/*.yaml", "roles/*.yaml")
}

// NodeAgent returns the objects of the node agent, in the order in which they are applied, for workload clusters that are to have
// it. What it may do is limited before it may do anything.
func NodeAgent(image string) ([]*unstructured.Unstructured, error) {
	objects, err := objectsOf("nodeagent/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return nil, errors.Wrap(err, "reading the embedded node agent")
		}
		for _, each := range containers {
			if container, ok := each.(map[string]any); ok {
				container["image"] = image
			}
		}
		if err := unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			return nil, errors.Wrap(err, "setting the image of the node agent")
		}
	}
	return objects, nil
}

func objectsOf(patterns ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, pattern := range patterns {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, errors.Wrap(err, "listing the embedded bundle")
		}
		for _, name := range names {
			content, err := files.ReadFile(name)
			if err != nil {
				return nil, errors.Wrapf(err, "reading %s of the embedded bundle", name)
			}
			documents, err := parse(content)
			if err != nil {
				return nil, errors.Wrapf(err, "parsing %s of the embedded bundle", name)
			}
			objects = append(objects, documents...)
		}
	}
	return objects, nil
}

func parse(content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}
