// Package workload embeds the objects that the manager installs in every workload cluster: the CRDs of NodeMaintenance and Evacuation, the
// admission policies that protect them, and roles.
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

// BundleVersion is the version of the bundle. Increase it by one with each change of the embedded files: two managers with the same version
// and different objects would revert each other's objects. A manager never replaces objects of a bundle with a higher version.
const BundleVersion = 13

//go:embed admission/*.yaml crd/*.yaml roles/*.yaml nodeagent/*.yaml
var files embed.FS

// The files are parsed once: after a restart all clusters of a fleet need them at the same time, and parsing YAML is slow.
var (
	bundle    = sync.OnceValues(func() (manifests, error) { return manifestsOf("admission/*.yaml", "crd/*.yaml", "roles/*.yaml") })
	nodeAgent = sync.OnceValues(func() (manifests, error) { return manifestsOf("nodeagent/*.yaml") })
)

// Bundle returns the objects of the bundle in the order in which they are applied: the admission policies of a kind come before its CRD.
// The caller may modify them.
func Bundle() ([]*unstructured.Unstructured, error) {
	present, err := bundle()
	if err != nil {
		return nil, err
	}
	return present.objects()
}

// NodeAgent returns the objects of the node agent in the order in which they are applied: the admission policy comes before the roles that
// it limits. The caller may modify them.
func NodeAgent(image string) ([]*unstructured.Unstructured, error) {
	present, err := nodeAgent()
	if err != nil {
		return nil, err
	}
	agent, err := present.objects()
	if err != nil {
		return nil, err
	}
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

// manifests are objects as JSON. Those of the bundle take 50 kB, and parsing takes half a millisecond. JSON takes less memory than parsed
// objects: `make bench-smoke` measured 1.19 to 1.27 MB for each of its twelve idle Clusters, instead of 1.32 to 1.36 MB.
type manifests [][]byte

func (m manifests) objects() ([]*unstructured.Unstructured, error) {
	objects := make([]*unstructured.Unstructured, 0, len(m))
	for _, manifest := range m {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(manifest); err != nil {
			return nil, errors.Wrap(err, "parsing the embedded bundle")
		}
		objects = append(objects, object)
	}
	return objects, nil
}

func manifestsOf(patterns ...string) (manifests, error) {
	var all manifests
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
			documents, err := toJSON(content)
			if err != nil {
				return nil, errors.Wrapf(err, "parsing %s of the embedded bundle", name)
			}
			all = append(all, documents...)
		}
	}
	return all, nil
}

// toJSON converts the YAML documents of a file, except for empty ones.
func toJSON(content []byte) (manifests, error) {
	var documents manifests
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		manifest, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(manifest, []byte("null")) {
			documents = append(documents, manifest)
		}
	}
}
