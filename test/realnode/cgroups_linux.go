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

// makeCgroups creates a cgroup of this name in every hierarchy: cgroup v2 has one hierarchy, v1 about a dozen.
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
			return made, errors.Wrap(err, "creating the node's cgroup")
		}
		made = append(made, dir)
		// With v1, a new cgroup accepts no process until it has CPUs and memory nodes.
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

// clear removes the children of the cgroups, those of the Pods of an earlier boot. On a machine, they do not outlive the boot: the kubelet
// would look for the container of each of them for three seconds.
func (c cgroups) clear() error { return c.await(removeChildren) }

// remove removes the cgroups and their children.
func (c cgroups) remove() error { return c.await(removeTree) }

// await calls a function that removes cgroups until it succeeds: it waits until the kernel has killed the processes in them.
func (c cgroups) await(remove func(dir string) bool) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		left := ""
		for _, dir := range c {
			if !remove(dir) {
				left = dir
			}
		}
		switch {
		case left == "":
			return nil
		case time.Now().After(deadline):
			return errors.Errorf("cannot remove cgroup %s: processes of the node remain", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func removeTree(dir string) bool {
	removeChildren(dir)
	err := os.Remove(dir)
	return err == nil || os.IsNotExist(err)
}

func removeChildren(dir string) bool {
	entries, err := os.ReadDir(dir)
	removed := err == nil || os.IsNotExist(err)
	for _, entry := range entries {
		if entry.IsDir() {
			removed = removeTree(filepath.Join(dir, entry.Name())) && removed
		}
	}
	return removed
}

// name returns the path of the cgroup for the kubelet.
func (c cgroups) name() string {
	if len(c) == 0 {
		return "/"
	}
	return "/" + filepath.Base(strings.TrimSuffix(c[0], "/"))
}
