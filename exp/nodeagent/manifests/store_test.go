package manifests_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
)

const manifest = "# a comment\nkind: Pod\nmetadata: {name: web}\nspec: {priorityClassName: system-node-critical}\n"

func store(t *testing.T) (manifests.Store, string) {
	t.Helper()
	s := manifests.Store{Dir: t.TempDir()}
	file := filepath.Join(s.Dir, "web.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o640); err != nil {
		t.Fatal(err)
	}
	return s, file
}

func theOne[T any](t *testing.T, all []T, err error) T {
	t.Helper()
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}

func held(t *testing.T, s manifests.Store) hold.Record {
	t.Helper()
	all, err := s.Manifests()
	m := theOne(t, all, err)
	if m.Priority != 2_000_001_000 || m.Namespace != "default" {
		t.Errorf("%+v", m)
	}
	if err := s.Hold(m); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Manifests(); err != nil || len(all) != 0 {
		t.Fatalf("the kubelet's directory still has %v, %v", all, err)
	}
	records, err := s.Records()
	return theOne(t, records, err)
}

func release(t *testing.T, s manifests.Store, r hold.Record, want bool) {
	t.Helper()
	if replaced, err := s.Release(r); err != nil || (replaced == "") != want {
		t.Errorf("replaced: %q, %v", replaced, err)
	}
	if records, err := s.Records(); err != nil || len(records) != 0 {
		t.Errorf("records remain: %v, %v", records, err)
	}
}

func TestStore(t *testing.T) {
	t.Run("S10: restores the content and mode of a manifest", func(t *testing.T) {
		s, file := store(t)
		r := held(t, s)
		if !r.Moved {
			t.Error("the manifest has not moved")
		}
		release(t, s, r, true)
		content, err := os.ReadFile(file)
		info, statErr := os.Stat(file)
		if err != nil || statErr != nil || string(content) != manifest || info.Mode().Perm() != 0o640 {
			t.Errorf("%s %v %v %v", content, info, err, statErr)
		}
	})
	t.Run("S10: finishes the move after a power cut before it", func(t *testing.T) {
		s, file := store(t)
		r := held(t, s)
		if err := os.Rename(filepath.Join(s.Dir, ".held-by-node-maintenance", r.File), file); err != nil {
			t.Fatal(err)
		}
		records, err := s.Records()
		if r = theOne(t, records, err); r.Moved {
			t.Error("the manifest is reported as moved, but is in the kubelet's directory")
		}
		if err := s.Finish(r); err != nil {
			t.Fatal(err)
		}
		records, err = s.Records()
		release(t, s, theOne(t, records, err), true)
	})
	t.Run("S10: releases a manifest after a power cut during the release", func(t *testing.T) {
		s, file := store(t)
		r := held(t, s)
		if err := os.Link(filepath.Join(s.Dir, ".held-by-node-maintenance", r.File), file); err != nil {
			t.Fatal(err)
		}
		release(t, s, r, true)
	})
	t.Run("S10: keeps a recreated manifest in place", func(t *testing.T) {
		s, file := store(t)
		r := held(t, s)
		if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		release(t, s, r, false)
		if content, err := os.ReadFile(file); err != nil || string(content) != "new" {
			t.Errorf("%s, %v", content, err)
		}
	})
	t.Run("S79: keeps the manifests of several maintenances in which they were recreated", func(t *testing.T) {
		s, file := store(t)
		for _, recreated := range []string{manifest + "# 2\n", manifest + "# 3\n", manifest + "# 4\n"} {
			r := held(t, s)
			if err := os.WriteFile(file, []byte(recreated), 0o600); err != nil {
				t.Fatal(err)
			}
			release(t, s, r, false)
		}
		for name, want := range map[string]string{
			".web.yaml.replaced": manifest, ".web.yaml.2.replaced": manifest + "# 2\n", ".web.yaml.3.replaced": manifest + "# 3\n",
		} {
			if content, err := os.ReadFile(filepath.Join(s.Dir, ".held-by-node-maintenance", name)); err != nil || string(content) != want {
				t.Errorf("%s: %s, %v", name, content, err)
			}
		}
	})
	t.Run("S79: holding a manifest overwrites no one that was saved", func(t *testing.T) {
		s, file := store(t)
		r := held(t, s)
		if err := os.WriteFile(file, []byte(manifest+"# 2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		saved, err := s.Release(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file, filepath.Join(s.Dir, saved)); err != nil { // another static Pod, whose manifest has any name
			t.Fatal(err)
		}
		manifests, err := s.Manifests()
		for _, m := range manifests {
			if err := s.Hold(m); err != nil {
				t.Fatal(err)
			}
		}
		if content, readErr := os.ReadFile(filepath.Join(s.Dir, ".held-by-node-maintenance", saved)); err != nil || string(content) != manifest {
			t.Errorf("%s, %v, %v", content, err, readErr)
		}
	})
	t.Run("S74: restores a manifest that an earlier version of the agent holds, and whose name is that of a record", func(t *testing.T) {
		s, file := store(t)
		if err := os.Rename(file, file+".record"); err != nil {
			t.Fatal(err)
		}
		if err := s.Hold(hold.Manifest{File: "web.yaml.record", Name: "web"}); err != nil {
			t.Fatal(err)
		}
		records, err := s.Records()
		release(t, s, theOne(t, records, err), true)
		if content, err := os.ReadFile(file + ".record"); err != nil || string(content) != manifest {
			t.Errorf("%s, %v", content, err)
		}
	})
	t.Run("S10: holding a manifest overwrites no other one that is held", func(t *testing.T) {
		s, file := store(t)
		if err := os.Rename(file, file+".record.tmp"); err != nil {
			t.Fatal(err)
		}
		r := held(t, s)
		if err := s.Hold(hold.Manifest{File: "web.yaml", Name: "web"}); err != nil {
			t.Fatal(err)
		}
		if replaced, err := s.Release(r); err != nil || replaced != "" {
			t.Errorf("replaced: %q, %v", replaced, err)
		}
		if content, err := os.ReadFile(file + ".record.tmp"); err != nil || string(content) != manifest {
			t.Errorf("%s, %v", content, err)
		}
	})
	for name, content := range map[string]string{
		"S74: restores the manifest of a record that is no JSON":                               "",
		"S74: restores the manifest of a record that names a file outside the directory":       `{"file":"../x","name":"web"}`,
		"S74: restores the manifest of a record whose Pod has no string as its name":           `{"file":"web.yaml","name":1}`,
		"S74: restores the manifest of a record that names the manifest of another static Pod": `{"file":"other.yaml"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, file := store(t)
			held(t, s)
			if err := os.WriteFile(file+".record", []byte(manifest), 0o600); err != nil {
				t.Fatal(err)
			}
			if manifests, err := s.Manifests(); err != nil || len(manifests) != 0 {
				t.Errorf("would hold a manifest as a record: %v, %v", manifests, err)
			}
			if err := os.WriteFile(filepath.Join(s.Dir, ".held-by-node-maintenance", "web.yaml.record"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			records, err := s.Records()
			release(t, s, theOne(t, records, err), true)
			if content, err := os.ReadFile(file); err != nil || string(content) != manifest {
				t.Errorf("%s, %v", content, err)
			}
		})
	}
}
