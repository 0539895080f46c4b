package logind

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/pkg/errors"
	"k8s.io/klog/v2"
)

// RuntimeDropIns is the directory of logind's drop-ins that the agent's DaemonSet mounts. It is empty after a boot.
const RuntimeDropIns = "/run/systemd/logind.conf.d"

const dropIn = "90-node-maintenance.conf"

// ensureDelay reads the maximum delay that logind allows. If it is shorter than wanted and there is a directory for drop-ins, ensureDelay
// raises it.
func (k *Keeper) ensureDelay(ctx context.Context, conn *dbus.Conn, logind dbus.BusObject) (problem string) {
	want, dropInDir, _ := k.wantedDelay()
	if dropInDir == "" {
		k.removeDropIn(ctx, conn)
	} else {
		k.useDropIn(dropInDir)
		k.isLeft = false
	}
	delay, err := delayMax(logind)
	if err != nil {
		return "cannot use logind: " + err.Error()
	}
	if delay < want && dropInDir != "" {
		if err := writeDropIn(ctx, conn, want, dropInDir); err != nil {
			problem = err.Error()
		}
		if again, err := delayMax(logind); err == nil {
			delay = again
		}
	}
	if delay < want {
		problem = fmt.Sprintf("logind delays a shutdown for at most %s, less than the configured %s: raise InhibitDelayMaxSec. %s", delay, want, problem)
	}
	k.update(func(s *State) {
		if !s.Preparing || s.DelayMax == 0 { // during a shutdown, logind allows what it allowed at the start
			s.DelayMax = delay
		}
	})
	return problem
}

// useDropIn records that this Keeper uses the drop-in in a directory. Several Keepers of a node do: those of both containers of the
// agent's Pod, and, where the DaemonSet has a maxSurge, those of the Pod that replaces it. The last one that ends removes the drop-in. The
// record is a shared lock on the directory, which the kernel releases when the process ends in whatever way. useDropIn does not wait for
// the exclusive lock of a Keeper that ends: every user of the node may take one.
func (k *Keeper) useDropIn(dir string) {
	if k.dropIns != nil && k.dropIns.Name() == dir {
		return
	}
	k.stopUsing()
	opened, err := os.Open(dir) //nolint:gosec // the directory of logind's drop-ins
	if err != nil {
		return // writeDropIn reports this
	}
	if err := syscall.Flock(int(opened.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		_ = opened.Close()
		return
	}
	k.dropIns = opened
}

// usesDropInAtLast reports whether this Keeper now uses the drop-in and did not before: another Keeper may have removed it meanwhile.
func (k *Keeper) usesDropInAtLast() bool {
	_, dropInDir, _ := k.wantedDelay()
	if s := k.State(); dropInDir == "" || k.dropIns != nil || !s.Held || s.Preparing {
		return false
	}
	k.useDropIn(dropInDir)
	return k.dropIns != nil
}

// isLastUser reports whether no other Keeper uses the drop-in, or there is no directory for it. None uses it then until stopUsing.
func (k *Keeper) isLastUser() bool {
	_, dropInDir, _ := k.wantedDelay()
	dir := cmp.Or(dropInDir, RuntimeDropIns)
	if k.useDropIn(dir); k.dropIns == nil {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}
	return syscall.Flock(int(k.dropIns.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// isLeftToMe reports whether the other Keepers for which removeDropIn has left the drop-in have ended or do not use it any more.
func (k *Keeper) isLeftToMe() bool {
	if !k.isLeft || k.State().Preparing {
		return false
	}
	defer k.stopUsing()
	return k.isLastUser()
}

func (k *Keeper) stopUsing() {
	if k.dropIns != nil {
		_ = k.dropIns.Close()
		k.dropIns = nil
	}
}

// writeDropIn writes a drop-in that raises InhibitDelayMaxSec, and sends SIGHUP to logind, which then reads its configuration.
func writeDropIn(ctx context.Context, conn *dbus.Conn, want time.Duration, dropInDir string) error {
	// One second more than wanted, because the agent's delay has to be shorter than logind's.
	content := fmt.Sprintf("# Written by the node agent of Cluster API Node Maintenance.\n[Login]\nInhibitDelayMaxSec=%.0f\n", (want + time.Second).Seconds())
	if err := os.MkdirAll(dropInDir, 0o755); err != nil { //nolint:gosec // logind's configuration is world-readable
		return errors.Wrap(err, "creating the directory of logind's drop-ins")
	}
	if err := os.WriteFile(filepath.Join(dropInDir, dropIn), []byte(content), 0o644); err != nil { //nolint:gosec // world-readable, too
		return errors.Wrap(err, "writing a drop-in of logind")
	}
	return reload(ctx, conn)
}

// removeDropIn removes the drop-in from the requested directory, and one that an earlier configuration has requested from RuntimeDropIns,
// unless another Keeper uses it: the other container applies a new configuration some seconds later, and an agent that has just started
// does not know the configuration of its Node yet. A file that an earlier configuration has requested elsewhere stays.
func (k *Keeper) removeDropIn(ctx context.Context, conn *dbus.Conn) {
	defer k.stopUsing()
	_, dropInDir, _ := k.wantedDelay()
	if k.isLeft = !k.isLastUser(); k.isLeft {
		return
	}
	for _, dir := range slices.Compact([]string{RuntimeDropIns, cmp.Or(dropInDir, RuntimeDropIns)}) {
		err := os.Remove(filepath.Join(dir, dropIn))
		if os.IsNotExist(err) {
			continue
		}
		if err == nil {
			err = reload(ctx, conn)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to remove the drop-in of logind", "directory", dir)
		}
	}
}

// reload sends SIGHUP to logind, which then reads its configuration. It does not wait long for systemd: the lock is not taken before.
func reload(ctx context.Context, conn *dbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	call := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdName+".Manager.KillUnit", 0, "systemd-logind.service", "all", int32(syscall.SIGHUP))
	return errors.Wrap(call.Err, "sending SIGHUP to logind")
}
