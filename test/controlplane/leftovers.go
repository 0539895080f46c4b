package controlplane

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// A killed test process cannot remove the directories of its control planes, and each has tens of
// megabytes. So every directory in use has a file on which its owner holds a lock, which the
// kernel releases when the owner dies. Directories that are kept on purpose have no such file.

const (
	dirPrefix = "controlplane-"
	ownerFile = "owner.lock"
	// keepLeftovers is how long the logs of a killed test are kept.
	keepLeftovers = time.Hour
)

// own marks a directory as in use until the file is closed.
func own(dir string) (*os.File, error) {
	owner, err := os.OpenFile(filepath.Join(dir, ownerFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Wrap(err, "marking the control plane's directory")
	}
	if err := syscall.Flock(int(owner.Fd()), syscall.LOCK_EX); err != nil {
		_ = owner.Close()
		return nil, errors.Wrap(err, "locking the control plane's directory")
	}
	return owner, nil
}

// disown reverts own, so that the directory is kept.
func disown(owner *os.File) error {
	err := os.Remove(owner.Name())
	_ = owner.Close()
	return errors.Wrap(err, "unmarking the control plane's directory")
}

// removeLeftovers removes the directories under parent whose owners have died more than
// keepLeftovers ago. It ignores errors.
func removeLeftovers(parent string, now time.Time) {
	owners, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*", ownerFile))
	for _, name := range owners {
		info, err := os.Stat(name)
		if err != nil || now.Sub(info.ModTime()) < keepLeftovers {
			continue
		}
		owner, err := os.Open(name)
		if err != nil {
			continue
		}
		if syscall.Flock(int(owner.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = owner.Close()
	}
}
