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

// writeKrewManifest writes the manifest with which Krew installs the plugin from the archives of this release:
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
func (r *release) writeKrewManifest() error {
	var platforms []map[string]any
	for _, p := range pluginPlatforms {
		content, err := os.ReadFile(filepath.Join(r.out, p.archive()))
		if err != nil {
			return errors.Wrap(err, "reading an archive of the plugin")
		}
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": p.os, "arch": p.architecture}},
			"uri":      fmt.Sprintf("%s/releases/download/%s/%s", homepage, r.version, p.archive()),
			"sha256":   fmt.Sprintf("%x", sha256.Sum256(content)), "bin": p.program(),
		})
	}
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": map[string]string{"name": krewName},
		"spec": map[string]any{
			"version": r.version, "homepage": homepage, "platforms": platforms, "shortDescription": "Predict, explain and follow drains of Nodes",
			"description": "Predicts what a drain of a Cluster API Machine or of a Node would do and what would block it, explains what a drain waits for,\n" +
				"shows the progress of all drains, and drains Nodes declaratively. It needs Cluster API Node Maintenance.\n",
			"caveats": "To complete names with kubectl's completion, link the plugin:\n" +
				"  ln -s kubectl-node_maintenance \"${KREW_ROOT:-$HOME/.krew}/bin/kubectl_complete-node_maintenance\"\n",
		},
	})
	if err != nil {
		return errors.Wrap(err, "writing the manifest for Krew")
	}
	return r.write(krewManifest, content)
}
