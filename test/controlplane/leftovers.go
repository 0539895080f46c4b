package controlplane

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// A killed test process can't remove its control planes' directories, and each has tens of
// megabytes. So every directory in use has a file that its owner holds a lock on, which the
// kernel drops when the owner dies. Directories that are kept on purpose have no such file.

const (
	dirPrefix = "controlplane-"
	ownerFile = "owner.lock"
	// keepLeftovers is the time to look at the logs of a test that was killed.
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

// disown ends own. What is left in the directory then stays.
func disown(owner *os.File) error {
	err := os.Remove(owner.Name())
	_ = owner.Close()
	return errors.Wrap(err, "unmarking the control plane's directory")
}

// removeLeftovers removes the directories under parent whose owners died a while ago. It is a
// courtesy, so whatever can't be removed stays.
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
