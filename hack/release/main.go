// Command release builds a release in one directory: the components for clusterctl, binaries, images, the kubectl plugin, checksums,
// licenses and bills of materials. It pulls nothing and needs no container engine. Two runs on the same commit with the same Go version
// produce the same bytes.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
)

// release is the configuration of one run.
type release struct {
	root, out string
	// version is a semantic version, such as v0.1.0.
	version string
	// image is the name under which the manager's image is published, without its tag.
	image     string
	kustomize string
	// manifests restricts the release to the manifests that clusterctl reads.
	manifests bool
	// licenses are the SPDX identifiers of the licenses of all modules, by module.
	licenses map[string]string
	// created is the time of the commit, so that the output does not depend on the time of the run.
	created time.Time
}

func main() {
	r := &release{}
	flag.StringVar(&r.root, "root", ".", "the checkout")
	flag.StringVar(&r.out, "out", "out/release", "directory of the release; its contents are removed first")
	flag.StringVar(&r.version, "version", "", "the version; default: the tag of the commit, or a pre-release of metadata.yaml's last series")
	flag.StringVar(&r.image, "image", "", "the name of the image, without a tag")
	flag.StringVar(&r.kustomize, "kustomize", "kustomize", "path of kustomize")
	flag.BoolVar(&r.manifests, "manifests", false, "build only the manifests")
	flag.Parse()
	if err := r.make(); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func (r *release) make() error {
	steps := []func() error{r.prepare, r.writeMetadata, r.writeComponents}
	if !r.manifests {
		steps = append(steps, r.buildBinaries, r.writeLicenses, r.writeSBOMs, r.writePlugin, r.writeImages, r.writeChecksums)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	fmt.Printf("Built %s in %s\n", r.version, r.out)
	return nil
}

func (r *release) prepare() (err error) {
	if r.image == "" {
		return errors.New("-image is missing")
	}
	if r.root, err = filepath.Abs(r.root); err != nil {
		return errors.Wrap(err, "finding the checkout")
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return errors.Wrap(err, "finding the directory of the release")
	}
	seconds, err := r.git("log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return errors.Wrap(err, "reading the time of the commit")
	}
	r.created = time.Unix(unix, 0).UTC()
	if r.version == "" {
		if r.version, err = r.deriveVersion(); err != nil {
			return err
		}
	}
	if err := r.checkVersion(); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return errors.Wrap(err, "removing an earlier release")
	}
	return errors.Wrap(os.MkdirAll(r.out, 0o755), "creating the directory of the release")
}

func (r *release) git(args ...string) (string, error) {
	command := exec.Command("git", args...)
	command.Dir = r.root
	output, err := command.Output()
	return strings.TrimSpace(string(output)), errors.Wrapf(err, "git %s", strings.Join(args, " "))
}

func (r *release) write(name string, content []byte) error {
	return errors.Wrapf(os.WriteFile(filepath.Join(r.out, name), content, 0o644), "writing %s", name)
}

// writeChecksums writes checksums in the format of `sha256sum --check`.
func (r *release) writeChecksums() error {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return errors.Wrap(err, "listing the release")
	}
	var sums bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(r.out, file.Name()))
		if err != nil {
			return errors.Wrap(err, "reading a file of the release")
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), file.Name())
	}
	return r.write("checksums.txt", sums.Bytes())
}
