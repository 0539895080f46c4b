package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/pkg/errors"
)

// writeImages writes the image of each program, for all architectures, as an archive of an OCI layout, which skopeo, crane, podman,
// containerd and docker can load. An image has one layer with one file, the static binary.
func (r *release) writeImages() error {
	for _, p := range programs {
		if err := r.writeImage(p); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) writeImage(p program) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		image, err := r.imageOf(p, architecture)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	dir, err := os.MkdirTemp(r.out, ".image-")
	if err != nil {
		return errors.Wrap(err, "creating a directory for the image")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	layoutPath, err := layout.Write(dir, empty.Index)
	if err != nil {
		return errors.Wrap(err, "writing the image layout")
	}
	names := map[string]string{"org.opencontainers.image.ref.name": r.version, "io.containerd.image.name": r.imageName(p)}
	if err := layoutPath.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return errors.Wrap(err, "writing the image")
	}
	return r.archive(dir, p.name+"-image.oci.tar")
}

func (r *release) imageName(p program) string { return r.image + p.suffix + ":" + r.version }

func (r *release) imageOf(p program, architecture string) (v1.Image, error) {
	layer, err := r.layer(p, architecture)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "hack/release"}})
	if err != nil {
		return nil, errors.Wrap(err, "adding the layer")
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, errors.Wrap(err, "reading the image's configuration")
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", architecture, v1.Time{Time: r.created}
	config.Config = v1.Config{
		User: p.user, Entrypoint: []string{"/" + p.name}, WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "Cluster API Node Maintenance: " + p.name,
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	image, err = mutate.ConfigFile(image, config)
	return image, errors.Wrap(err, "setting the image's configuration")
}

func (r *release) layer(p program, architecture string) (v1.Layer, error) {
	binary, err := os.ReadFile(filepath.Join(r.out, p.binary(architecture)))
	if err != nil {
		return nil, errors.Wrap(err, "reading the binary")
	}
	content, err := r.tar([]file{{p.name, 0o555, binary}})
	if err != nil {
		return nil, errors.Wrap(err, "writing the layer")
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	return layer, errors.Wrap(err, "making the layer")
}

// archive packs the layout into one file, sorted by name and without timestamps of this run, so that it is reproducible.
func (r *release) archive(dir, to string) error {
	var files []file
	packed := os.DirFS(dir)
	err := fs.WalkDir(packed, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(packed, name)
		files = append(files, file{name, 0o644, content})
		return err
	})
	if err != nil {
		return errors.Wrap(err, "archiving the image")
	}
	content, err := r.tar(files)
	if err != nil {
		return errors.Wrap(err, "archiving the image")
	}
	return r.write(to, content)
}
