package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	root := t.TempDir()
	metadata := []byte("releaseSeries:\n- {major: 0, minor: 1, contract: v1beta2}\n- {major: 0, minor: 12, contract: v1beta2}\n")
	if err := os.WriteFile(filepath.Join(root, metadataFile), metadata, 0o600); err != nil {
		t.Fatal(err)
	}
	for version, accepted := range map[string]bool{
		"v0.1.0": true, "v0.1.7": true, "v0.12.0-rc.1": true, "v0.1.0-dev.g0123456789ab": true, "v0.1.0-0": true, "v0.1.0-dev.012-3": true,
		"v0.2.0": false, "v1.1.0": false, "v0.1": false, "0.1.0": false, "v0.01.0": false, "v0.1.0+build": false, "v0.1.0\n": false,
		"v0.1.0-rc..1": false, "v0.1.0-rc.01": false,
	} {
		t.Run("M173: knows whether clusterctl would install "+version, func(t *testing.T) {
			r := &release{root: root, version: version}
			if err := r.checkVersion(); (err == nil) != accepted {
				t.Errorf("got %v", err)
			}
		})
	}

	t.Run("M173: a release that clusterctl would not install is not built, and does not replace an earlier one", func(t *testing.T) {
		earlier := filepath.Join(t.TempDir(), "earlier")
		if err := os.WriteFile(earlier, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r := &release{root: "../..", out: filepath.Dir(earlier), image: "registry.example.com/image", version: "v999.0.0", kustomize: "true", manifests: true}
		if err := r.make(); err == nil || !strings.Contains(err.Error(), "metadata.yaml has no release series for version v999.0.0") {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(earlier); err != nil {
			t.Error(err)
		}
	})
}
