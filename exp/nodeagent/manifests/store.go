// Package manifests moves the manifests of static Pods out of the kubelet's staticPodPath and restores them.
//
// Held manifests are in a subdirectory whose name begins with a dot, which the kubelet ignores. The subdirectory is on the same file
// system and mount, so a rename moves a file there atomically.
package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
)

const (
	heldDir      = ".held-by-node-maintenance"
	recordSuffix = ".record"
	// maxSize is the maximum size of a manifest in bytes. The kubelet accepts 10 MB; manifests are a few kilobytes.
	maxSize = 1 << 20
)

// Store is the directory of the manifests of static Pods.
type Store struct{ Dir string }

func (s Store) heldPath(name string) string { return filepath.Join(s.Dir, heldDir, name) }

// Manifests returns the manifests in the kubelet's directory. It skips files that cannot be parsed, and those that would be taken for a
// record when they are held.
func (s Store) Manifests() ([]hold.Manifest, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, errors.Wrap(err, "listing the manifests of static Pods")
	}
	var found []hold.Manifest
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxSize || strings.HasPrefix(entry.Name(), ".") ||
			strings.HasSuffix(entry.Name(), recordSuffix) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(s.Dir, entry.Name()))
		if err != nil {
			continue // deleted since ReadDir
		}
		if m, ok := parse(entry.Name(), content); ok {
			found = append(found, m)
		}
	}
	return found, nil
}

func parse(file string, content []byte) (hold.Manifest, bool) {
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(content, pod); err != nil || pod.Name == "" {
		return hold.Manifest{}, false
	}
	m := hold.Manifest{File: file, Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Priority: Priority(pod)}
	if m.Namespace == "" {
		m.Namespace = metav1.NamespaceDefault
	}
	m.GracePeriod = rules.GracePeriodOf(pod)
	return m, true
}

// Priority returns the priority of a static Pod. Only the API server can resolve a PriorityClass that a user has defined. A Pod with such
// a class gets the highest priority that users can define, so that it terminates late rather than early.
func Priority(pod *corev1.Pod) int32 {
	const highestOfUsers, clusterCritical, nodeCritical = 1_000_000_000, 2_000_000_000, 2_000_001_000
	switch {
	case pod.Spec.Priority != nil:
		return *pod.Spec.Priority
	case pod.Spec.PriorityClassName == "system-node-critical":
		return nodeCritical
	case pod.Spec.PriorityClassName == "system-cluster-critical":
		return clusterCritical
	case pod.Spec.PriorityClassName != "":
		return highestOfUsers
	default:
		return 0
	}
}

// Records returns the records of manifests that are held, or that the agent is about to hold. The name of a record says which manifest that
// is. Its content only names the Pod: if another actor or the disk has made it invalid, the record has no name of a Pod.
func (s Store) Records() ([]hold.Record, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, heldDir))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrap(err, "listing held manifests")
	}
	var records []hold.Record
	for _, entry := range entries {
		file, isRecord := strings.CutSuffix(entry.Name(), recordSuffix)
		if _, err := os.Lstat(s.heldPath(entry.Name() + recordSuffix)); !isRecord || err == nil { // a manifest; earlier versions held any
			continue
		}
		record := hold.Record{}
		content, err := os.ReadFile(s.heldPath(entry.Name()))
		if err != nil || json.Unmarshal(content, &record) != nil {
			record = hold.Record{}
		}
		_, err = os.Lstat(s.heldPath(file))
		record.File, record.Moved = file, !os.IsNotExist(err) // one that cannot be read is not lost
		records = append(records, record)
	}
	return records, nil
}

// Hold moves a manifest to the held ones. The record is on disk before the manifest moves.
func (s Store) Hold(m hold.Manifest) error {
	if err := os.MkdirAll(filepath.Join(s.Dir, heldDir), 0o700); err != nil {
		return errors.Wrap(err, "creating the directory of held manifests")
	}
	record := hold.Record{File: m.File, Namespace: m.Namespace, Name: m.Name, GracePeriod: m.GracePeriod}
	content, err := json.Marshal(record)
	if err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	unfinished := s.heldPath(".unfinished") // no manifest has this name: the kubelet ignores files whose names begin with a dot
	if err = writeAndSync(unfinished, content); err == nil {
		err = os.Rename(unfinished, s.heldPath(m.File+recordSuffix))
	}
	if err == nil {
		err = s.sync()
	}
	if err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	return s.Finish(record)
}

func writeAndSync(file string, content []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) //nolint:gosec // in the directory of held manifests
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Sync()
}

// Finish moves the manifest of a record to the held ones. It does nothing if the manifest has already moved.
func (s Store) Finish(r hold.Record) error {
	if err := os.Rename(filepath.Join(s.Dir, r.File), s.heldPath(r.File)); err != nil && !os.IsNotExist(err) {
		return errors.Wrapf(err, "holding the manifest %s", r.File)
	}
	return s.sync()
}

// Release moves a held manifest back and removes its record. If the kubelet's directory has another file of that name by now, that file
// stays, and the held one gets the name that Release returns: .<name>.replaced, or .<name>.<number>.replaced if there are earlier ones. No
// manifest has a name that begins with a dot, so Hold does not overwrite it.
func (s Store) Release(r hold.Record) (replaced string, err error) {
	if r.Moved {
		if replaced, err = s.restore(r.File); err != nil {
			return "", err
		}
	}
	if err := s.sync(); err != nil {
		return replaced, err
	}
	if err := os.Remove(s.heldPath(r.File + recordSuffix)); err != nil && !os.IsNotExist(err) {
		return replaced, errors.Wrapf(err, "removing the record of manifest %s", r.File)
	}
	return replaced, s.sync()
}

// restore uses a hard link, because a rename would replace an existing file. After a power cut in between, both names refer to one file.
func (s Store) restore(file string) (replaced string, err error) {
	held, place := s.heldPath(file), filepath.Join(s.Dir, file)
	switch err := os.Link(held, place); {
	case err == nil:
	case !os.IsExist(err):
		return "", errors.Wrapf(err, "releasing the manifest %s", file)
	default:
		heldInfo, heldErr := os.Lstat(held)
		placeInfo, placeErr := os.Lstat(place)
		if heldErr == nil && placeErr == nil && os.SameFile(heldInfo, placeInfo) {
			break
		}
		replaced = "." + file + ".replaced"
		for i := 2; exists(s.heldPath(replaced)); i++ {
			replaced = fmt.Sprintf(".%s.%d.replaced", file, i)
		}
		return replaced, errors.Wrapf(os.Rename(held, s.heldPath(replaced)), "renaming the replaced manifest %s", file)
	}
	return "", errors.Wrapf(os.Remove(held), "releasing the manifest %s", file)
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// sync flushes both directories to disk.
func (s Store) sync() error {
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, heldDir)} {
		d, err := os.Open(dir) //nolint:gosec // one of the two directories
		if err != nil {
			return errors.Wrap(err, "flushing the directories of manifests to disk")
		}
		err = d.Sync()
		_ = d.Close()
		if err != nil {
			return errors.Wrap(err, "flushing the directories of manifests to disk")
		}
	}
	return nil
}
