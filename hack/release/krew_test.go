package main

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// krew runs a program of Krew, which hack/tools/krew pins.
func krew(t *testing.T, environment []string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"-C", "../tools/krew", "tool"}, args...)...)
	command.Env = append(os.Environ(), environment...)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// archived returns a release with archives of programs that only print the platform.
func archived(t *testing.T) *release {
	t.Helper()
	r := &release{root: "../..", out: t.TempDir(), version: "v1.2.3", created: time.Unix(1_700_000_000, 0).UTC()}
	for _, p := range pluginPlatforms {
		if err := r.archivePlugin(p, fmt.Appendf(nil, "#!/bin/sh\necho %s %s\n", p.os, p.architecture)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.writeKrewManifest(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestKrewManifest(t *testing.T) {
	r := archived(t)
	manifest := filepath.Join(r.out, krewManifest)

	t.Run("K21: Krew's own validation accepts the manifest", func(t *testing.T) {
		krew(t, nil, "validate-krew-manifest", "-manifest", manifest, "-skip-install")
	})

	for _, p := range pluginPlatforms {
		t.Run("K21: Krew installs the archive for "+p.os+"/"+p.architecture, func(t *testing.T) {
			root := t.TempDir()
			krew(t, []string{"KREW_ROOT=" + root, "KREW_OS=" + p.os, "KREW_ARCH=" + p.architecture}, "krew", "install",
				"--manifest="+manifest, "--archive="+filepath.Join(r.out, p.archive()))
			installed := filepath.Join(root, "store", krewName, "v1.2.3")
			program, err := os.ReadFile(filepath.Join(installed, p.program()))
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("#!/bin/sh\necho %s %s\n", p.os, p.architecture); string(program) != want {
				t.Errorf("the program is %q, want %q", program, want)
			}
			if _, err := os.Stat(filepath.Join(installed, "LICENSE")); err != nil {
				t.Errorf("the license is missing: %v", err)
			}
		})
	}
}

func TestArchives(t *testing.T) {
	t.Run("K21: the same programs give the same archives", func(t *testing.T) {
		a, b := archived(t), archived(t)
		for _, p := range pluginPlatforms {
			first, err := os.ReadFile(filepath.Join(a.out, p.archive()))
			if err != nil {
				t.Fatal(err)
			}
			second, err := os.ReadFile(filepath.Join(b.out, p.archive()))
			if err != nil {
				t.Fatal(err)
			}
			if string(first) != string(second) {
				t.Errorf("%s differs", p.archive())
			}
		}
	})

	t.Run("K21: the program in a zip file is executable", func(t *testing.T) {
		archive, err := zip.OpenReader(filepath.Join(archived(t).out, platform{"windows", "amd64"}.archive()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = archive.Close() }()
		if name, mode := archive.File[0].Name, archive.File[0].Mode(); name != pluginName+".exe" || mode != 0o755 {
			t.Errorf("the first file is %s with mode %s", name, mode)
		}
	})
}

func TestKrewManifestNamesRelease(t *testing.T) {
	t.Run("K21: the manifest refers to the archives of the release", func(t *testing.T) {
		content, err := os.ReadFile(filepath.Join(archived(t).out, krewManifest))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pluginPlatforms {
			if want := "uri: https://github.com/capnm/cluster-api-node-maintenance/releases/download/v1.2.3/" + p.archive() + "\n"; !strings.Contains(string(content),
				want) {
				t.Errorf("%s has no %s", content, want)
			}
		}
	})
}
