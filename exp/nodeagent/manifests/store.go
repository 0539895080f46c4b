// Package manifests moves the manifests of static Pods out of the kubelet's sight, and back.
//
// What is held is in a directory inside the kubelet's, whose name begins with a dot: the kubelet overlooks it, and a file moves
// there in one step, since it is the same file system and the same mount.
package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
)

const (
	heldDir      = ".held-by-node-maintenance"
	recordSuffix = ".record"
	// maxSize of a manifest. The kubelet takes 10 MB, which nobody writes.
	maxSize = 1 << 20
)

// Store is the directory of static Pods.
type Store struct{ Dir string }

func (s Store) held(name string) string { return filepath.Join(s.Dir, heldDir, name) }

// Manifests returns the static Pods that the kubelet sees. A file that can't be parsed is none.
func (s Store) Manifests() ([]hold.Manifest, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, errors.Wrap(err, "listing the manifests of static Pods")
	}
	var found []hold.Manifest
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(entry.Name(), ".") || info.Size() > maxSize {
			continue
		}
		content, err := os.ReadFile(filepath.Join(s.Dir, entry.Name()))
		if err != nil {
			continue // it has just gone
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
	m.GracePeriod = corev1.DefaultTerminationGracePeriodSeconds * time.Second
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		m.GracePeriod = time.Duration(*seconds) * time.Second
	}
	return m, true
}

// Priority of a static Pod: the API server resolves the class for its mirror, and knows of classes that the node doesn't. Such
// a Pod counts as the highest that users can have, so that it goes rather too late than too early.
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

// Records returns what is held, or about to be.
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
		if !strings.HasSuffix(entry.Name(), recordSuffix) {
			continue
		}
		content, err := os.ReadFile(s.held(entry.Name()))
		if err != nil {
			return nil, errors.Wrap(err, "reading the record of a held manifest")
		}
		record := hold.Record{}
		if err := json.Unmarshal(content, &record); err != nil || record.File != filepath.Base(record.File) {
			return nil, errors.Errorf("the record %s of a held manifest is damaged", entry.Name())
		}
		_, err = os.Lstat(s.held(record.File))
		record.Moved = err == nil
		records = append(records, record)
	}
	return records, nil
}

// Hold puts a manifest away: the record is on the disk before the manifest moves.
func (s Store) Hold(m hold.Manifest) error {
	if err := os.MkdirAll(filepath.Join(s.Dir, heldDir), 0o700); err != nil {
		return errors.Wrap(err, "making the directory of held manifests")
	}
	record := hold.Record{File: m.File, Namespace: m.Namespace, Name: m.Name}
	content, err := json.Marshal(record)
	if err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	if err := s.write(s.held(m.File+recordSuffix), content); err != nil {
		return err
	}
	return s.Finish(record)
}

func (s Store) write(file string, content []byte) error {
	temporary := file + ".tmp"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) //nolint:gosec // in the directory of held manifests
	if err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Write(content); err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	if err := f.Sync(); err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	if err := os.Rename(temporary, file); err != nil {
		return errors.Wrap(err, "writing the record of a held manifest")
	}
	return s.sync()
}

// Finish moves the manifest of a record.
func (s Store) Finish(r hold.Record) error {
	if err := os.Rename(filepath.Join(s.Dir, r.File), s.held(r.File)); err != nil && !os.IsNotExist(err) {
		return errors.Wrapf(err, "holding the manifest %s", r.File)
	}
	return s.sync()
}

// Release moves a manifest back, if it has been moved, and forgets it. Where there is another one of its name now, that one
// stays, and ours beside the record's place. False: so it is.
func (s Store) Release(r hold.Record) (restored bool, err error) {
	restored = true
	if r.Moved {
		if restored, err = s.putBack(r.File); err != nil {
			return false, err
		}
	}
	if err := s.sync(); err != nil {
		return restored, err
	}
	if err := os.Remove(s.held(r.File + recordSuffix)); err != nil && !os.IsNotExist(err) {
		return restored, errors.Wrapf(err, "forgetting the manifest %s", r.File)
	}
	return restored, s.sync()
}

// putBack doesn't replace a file, as a rename would. Where the power was cut in between, both names are of one file.
func (s Store) putBack(file string) (restored bool, err error) {
	held, place := s.held(file), filepath.Join(s.Dir, file)
	switch err := os.Link(held, place); {
	case err == nil:
	case !os.IsExist(err):
		return false, errors.Wrapf(err, "releasing the manifest %s", file)
	default:
		ours, oursErr := os.Lstat(held)
		theirs, theirsErr := os.Lstat(place)
		if oursErr == nil && theirsErr == nil && os.SameFile(ours, theirs) {
			break
		}
		return false, errors.Wrapf(os.Rename(held, s.held(file+".replaced")), "putting the replaced manifest %s aside", file)
	}
	return true, errors.Wrapf(os.Remove(held), "releasing the manifest %s", file)
}

// sync has the disk know what moved.
func (s Store) sync() error {
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, heldDir)} {
		d, err := os.Open(dir) //nolint:gosec // one of the two directories
		if err != nil {
			return errors.Wrap(err, "writing to the disk")
		}
		err = d.Sync()
		_ = d.Close()
		if err != nil {
			return errors.Wrap(err, "writing to the disk")
		}
	}
	return nil
}
