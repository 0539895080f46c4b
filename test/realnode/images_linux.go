package realnode

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// Image is the image of the workload: see guest/.
const Image = "realnode.test/guest:test"

// Build builds a static program of this module.
func Build(output, pkg string) error {
	root, err := toolchain.Root()
	if err != nil {
		return err
	}
	command := exec.Command("go", "build", "-ldflags", "-s -w", "-o", output, pkg)
	command.Dir, command.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	log, err := command.CombinedOutput()
	return errors.Wrapf(err, "building %s: %s", pkg, log)
}

// images writes the tarballs of the node's images unless they exist, and returns their paths.
func (n *Node) images() ([]string, error) {
	programs := map[string]string{Image: n.guest}
	maps.Copy(programs, n.options.Programs)
	var files []string
	for name, program := range programs {
		file := filepath.Join(n.dir, "images", hex.EncodeToString([]byte(name))+".tar")
		files = append(files, file)
		if _, err := os.Stat(file); err == nil {
			continue
		}
		content, err := os.ReadFile(program)
		if err != nil {
			return nil, errors.Wrap(err, "reading the program of an image")
		}
		layout, err := image(name, filepath.Base(program), content)
		if err != nil {
			return nil, err
		}
		if err := n.unpackImage(name, layout); err != nil {
			return nil, err
		}
		if content, err = tarball(layout); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return nil, errors.Wrap(err, "writing an image")
		}
	}
	return files, nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// image packs one program into an OCI image layout, and returns its files.
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md
func image(name, program string, content []byte) (map[string][]byte, error) {
	layer, err := tarball(map[string][]byte{program: content})
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	add := func(mediaType string, value any) (descriptor, error) {
		blob, isBlob := value.([]byte)
		if !isBlob {
			var err error
			if blob, err = json.Marshal(value); err != nil {
				return descriptor{}, errors.Wrap(err, "writing an image")
			}
		}
		sum := sha256.Sum256(blob)
		files["blobs/sha256/"+hex.EncodeToString(sum[:])] = blob
		return descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: len(blob)}, nil
	}
	layerIs, err := add("application/vnd.oci.image.layer.v1.tar", layer)
	if err != nil {
		return nil, err
	}
	configIs, err := add("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + program, "pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerIs.Digest}},
	})
	if err != nil {
		return nil, err
	}
	manifestIs, err := add("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": configIs, "layers": []descriptor{layerIs},
	})
	if err != nil {
		return nil, err
	}
	_, tag, _ := strings.Cut(name, ":")
	manifestIs.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifestIs}})
	if err != nil {
		return nil, errors.Wrap(err, "writing an image")
	}
	files["index.json"] = index
	return files, nil
}

func tarball(files map[string][]byte) ([]byte, error) {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for name, content := range files {
		if err := writer.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return nil, errors.Wrap(err, "writing a tarball")
		}
		if _, err := writer.Write(content); err != nil {
			return nil, errors.Wrap(err, "writing a tarball")
		}
	}
	return buffer.Bytes(), errors.Wrap(writer.Close(), "writing a tarball")
}
