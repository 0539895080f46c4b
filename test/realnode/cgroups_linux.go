package realnode

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pkg/errors"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroups are the directories of a node's own cgroup, one for each hierarchy.
type cgroups []string

// makeCgroups makes a cgroup of this name in every hierarchy that there is: one with cgroup v2, a dozen with v1.
func makeCgroups(name string) (cgroups, error) {
	hierarchies := []string{cgroupRoot}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err != nil {
		entries, err := os.ReadDir(cgroupRoot)
		if err != nil {
			return nil, errors.Wrap(err, "listing cgroup hierarchies")
		}
		hierarchies = nil
		for _, entry := range entries {
			if entry.IsDir() {
				hierarchies = append(hierarchies, filepath.Join(cgroupRoot, entry.Name()))
			}
		}
	}
	var made cgroups
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(hierarchy, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return made, errors.Wrap(err, "making the node's cgroup")
		}
		made = append(made, dir)
		// With v1 a new cgroup has no CPUs and no memory, and takes no process.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			parent, err := os.ReadFile(filepath.Join(hierarchy, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), parent, 0o600); err != nil {
				return made, errors.Wrap(err, "filling in the node's cpuset")
			}
		}
	}
	return made, nil
}

// remove removes them from the inside out. The processes in them are dead or about to be.
func (c cgroups) remove() error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		left := ""
		for _, dir := range c {
			if !removeTree(dir) {
				left = dir
			}
		}
		switch {
		case left == "":
			return nil
		case time.Now().After(deadline):
			return errors.Errorf("cgroup %s can't be removed: processes of the node are left", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func removeTree(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return os.IsNotExist(err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(dir, entry.Name()))
		}
	}
	err = os.Remove(dir)
	return err == nil || os.IsNotExist(err)
}

// cgroupName is what the kubelet calls it.
func (c cgroups) name() string {
	if len(c) == 0 {
		return "/"
	}
	return "/" + filepath.Base(strings.TrimSuffix(c[0], "/"))
}
