// Package workload embeds what every managed workload cluster gets: the CRDs of NodeMaintenance and Evacuation, the admission
// policies that say who may write them, and roles.
package workload

import (
	"bufio"
	"bytes"
	"embed"
	"io"
	"io/fs"
	"sync"

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

// The files are parsed once: after a restart every cluster of a fleet asks for them at the same time.
var (
	bundle    = sync.OnceValues(func() (objects, error) { return objectsOf("admission/*.yaml", "crd/*.yaml", "roles/*.yaml") })
	nodeAgent = sync.OnceValues(func() (objects, error) { return objectsOf("nodeagent/*.yaml") })
)

// Bundle returns the objects of the bundle, in the order in which they are applied: who may write a kind is said before the
// kind is there. They are the caller's own.
func Bundle() ([]*unstructured.Unstructured, error) {
	parsed, err := bundle()
	return parsed.deepCopy(), err
}

// NodeAgent returns the objects of the node agent, in the order in which they are applied, for workload clusters that are to have
// it. What it may do is limited before it may do anything. They are the caller's own.
func NodeAgent(image string) ([]*unstructured.Unstructured, error) {
	parsed, err := nodeAgent()
	if err != nil {
		return nil, err
	}
	agent := parsed.deepCopy()
	for _, object := range agent {
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
	return agent, nil
}

type objects []*unstructured.Unstructured

func (o objects) deepCopy() objects {
	copied := make(objects, 0, len(o))
	for _, object := range o {
		copied = append(copied, object.DeepCopy())
	}
	return copied
}

func objectsOf(patterns ...string) (objects, error) {
	var all objects
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
			all = append(all, documents...)
		}
	}
	return all, nil
}

func parse(content []byte) (objects, error) {
	var documents objects
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			documents = append(documents, object)
		}
	}
}
