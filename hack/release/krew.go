package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pkg/errors"
	"sigs.k8s.io/yaml"
)

const (
	krewName     = "node-maintenance"
	krewManifest = krewName + ".yaml"
	homepage     = "https://github.com/capnm/cluster-api-node-maintenance"
)

// krewPlugin is the part of Krew's Plugin that is used: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
type krewPlugin struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   krewMetadata `json:"metadata"`
	Spec       krewSpec     `json:"spec"`
}

type krewMetadata struct {
	Name string `json:"name"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Caveats          string         `json:"caveats"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// writeKrewManifest writes the manifest with which Krew installs the plugin from the archives of this release.
func (r *release) writeKrewManifest() error {
	plugin := krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: krewMetadata{krewName},
		Spec: krewSpec{
			Version: r.version, Homepage: homepage, ShortDescription: "Predict, explain and follow drains of Nodes",
			Description: "Predicts what a drain of a Cluster API Machine or of a Node would do and what would block it, explains what a drain waits for,\n" +
				"shows the progress of all drains, and drains Nodes declaratively. It needs Cluster API Node Maintenance.\n",
			Caveats: "To complete names with kubectl's completion, link the plugin:\n" +
				"  ln -s kubectl-node_maintenance \"${KREW_ROOT:-$HOME/.krew}/bin/kubectl_complete-node_maintenance\"\n",
		},
	}
	for _, p := range pluginPlatforms {
		content, err := os.ReadFile(filepath.Join(r.out, p.archive()))
		if err != nil {
			return errors.Wrap(err, "reading an archive of the plugin")
		}
		plugin.Spec.Platforms = append(plugin.Spec.Platforms, krewPlatform{
			Selector: krewSelector{map[string]string{"os": p.os, "arch": p.architecture}},
			URI:      fmt.Sprintf("%s/releases/download/%s/%s", homepage, r.version, p.archive()),
			SHA256:   fmt.Sprintf("%x", sha256.Sum256(content)), Bin: p.program(),
		})
	}
	content, err := yaml.Marshal(plugin)
	if err != nil {
		return errors.Wrap(err, "writing the manifest for Krew")
	}
	return r.write(krewManifest, content)
}
