package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/pkg/errors"
	"sigs.k8s.io/yaml"
)

const (
	metadataFile   = "metadata.yaml"
	componentsFile = "runtime-extension-components.yaml"
)

// tag matches the versions of releases, as tags of git and of images.
var tag = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-` + identifier + `(\.` + identifier + `)*)?$`)

// identifier matches a part of a pre-release. A number has no leading zeros.
const identifier = `(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)`

// series is a release series of metadata.yaml.
type series struct{ Major, Minor int }

// deriveVersion returns the tag of a released commit. Any other commit is a pre-release of the last series in metadata.yaml, so that
// clusterctl accepts it as part of that series, and as older than its release.
func (r *release) deriveVersion() (string, error) {
	if exact, err := r.git("describe", "--tags", "--exact-match"); err == nil && tag.MatchString(exact) {
		return exact, nil
	}
	all, err := r.allSeries()
	if err != nil {
		return "", err
	}
	commit, err := r.git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "", err
	}
	last := all[len(all)-1]
	return fmt.Sprintf("v%d.%d.0-dev.g%s", last.Major, last.Minor, commit), nil
}

// checkVersion returns an error if clusterctl would not install the version. If such a release were published, clusterctl could plan no
// upgrade of an earlier one either.
func (r *release) checkVersion() error {
	parts := tag.FindStringSubmatch(r.version)
	if parts == nil {
		return errors.Errorf("version %q is not a semantic version with a leading v, such as v0.1.0", r.version)
	}
	all, err := r.allSeries()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(s series) bool { return strconv.Itoa(s.Major) == parts[1] && strconv.Itoa(s.Minor) == parts[2] }) {
		return errors.Errorf("%s has no release series for version %s: add it", metadataFile, r.version)
	}
	return nil
}

// allSeries returns the release series of metadata.yaml, at least one.
func (r *release) allSeries() ([]series, error) {
	var metadata struct {
		ReleaseSeries []series `json:"releaseSeries"`
	}
	content, err := os.ReadFile(filepath.Join(r.root, metadataFile))
	if err != nil {
		return nil, errors.Wrap(err, "reading the metadata")
	}
	if err := yaml.Unmarshal(content, &metadata); err != nil {
		return nil, errors.Wrap(err, "parsing the metadata")
	}
	if len(metadata.ReleaseSeries) == 0 {
		return nil, errors.Errorf("%s has no release series", metadataFile)
	}
	return metadata.ReleaseSeries, nil
}

func (r *release) writeMetadata() error {
	content, err := os.ReadFile(filepath.Join(r.root, metadataFile))
	if err != nil {
		return errors.Wrap(err, "reading the metadata")
	}
	return r.write(metadataFile, content)
}

// placeholders are the images in config/manager, by program.
var placeholders = map[string]string{"manager": "manager:latest", "node-agent": "node-agent:latest"}

// writeComponents builds config/default and replaces the images in the result. `kustomize edit set image` would modify the checkout.
func (r *release) writeComponents() error {
	components, err := exec.Command(r.kustomize, "build", filepath.Join(r.root, "config", "default")).Output()
	if err != nil {
		return errors.Wrap(err, "kustomize build config/default")
	}
	for _, p := range programs {
		placeholder := []byte(placeholders[p.name])
		if bytes.Count(components, placeholder) != 1 {
			return errors.Errorf("config/default doesn't have %s exactly once", placeholder)
		}
		components = bytes.Replace(components, placeholder, []byte(r.imageName(p)), 1)
	}
	return r.write(componentsFile, components)
}
