// Package logind holds a delay inhibitor on the shutdown of the node, and tells when one is on its way.
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html
package logind

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/pkg/errors"
	"k8s.io/klog/v2"
)

const (
	loginName   = "org.freedesktop.login1"
	loginPath   = dbus.ObjectPath("/org/freedesktop/login1")
	manager     = loginName + ".Manager"
	systemdName = "org.freedesktop.systemd1"
	systemdPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	kubeletUnit = "kubelet.service"
	// inProgress is logind's refusal of a lock once a shutdown has begun.
	inProgress = loginName + ".OperationInProgress"

	retryAfter = 500 * time.Millisecond
	dropIn     = "90-node-maintenance.conf"
)

// State is what logind says.
type State struct {
	// Held: we delay a shutdown, and would hear of it.
	Held bool
	// Preparing: a shutdown is on its way.
	Preparing bool
	// DelayMax is for how long logind lets itself be delayed.
	DelayMax time.Duration
	// Problem is why there is no lock, or a shorter delay than is wanted. Empty: all is well.
	Problem string
}

// Keeper holds a lock, and takes it again whenever it is lost with the bus or with logind.
type Keeper struct {
	// Socket of the system bus.
	Socket string
	// Who and Why tell people whose lock it is.
	Who, Why string

	mu sync.Mutex
	// want is for how long a shutdown is to be delayed, and dropInDir where a drop-in may be written that has logind allow it.
	want      time.Duration
	dropInDir string
	asked     chan struct{}

	lock  *os.File
	state State
	conn  *dbus.Conn
	note  chan struct{}
}

// Changed is sent to, without waiting, when the State has changed.
func (k *Keeper) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.note == nil {
		k.note = make(chan struct{}, 1)
	}
	return k.note
}

// DelayFor says for how long a shutdown is to be delayed, and where a drop-in may be written that has logind allow it. Empty: nowhere.
func (k *Keeper) DelayFor(want time.Duration, dropInDir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.want == want && k.dropInDir == dropInDir {
		return
	}
	k.want, k.dropInDir = want, dropInDir
	if k.asked != nil {
		select {
		case k.asked <- struct{}{}:
		default:
		}
	}
}

// asks returns what DelayFor has been told, and a channel that is sent to when that changes.
func (k *Keeper) asks() (want time.Duration, dropInDir string, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked == nil {
		k.asked = make(chan struct{}, 1)
	}
	return k.want, k.dropInDir, k.asked
}

// State returns what is known now.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

func (k *Keeper) update(change func(*State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.state
	change(&k.state)
	k.state.Held = k.lock != nil && k.conn != nil
	if k.state != before && k.note != nil {
		select {
		case k.note <- struct{}{}:
		default:
		}
	}
}

// Release lets go of the lock: the shutdown goes on. The lock is taken again when the shutdown is called off.
func (k *Keeper) Release() {
	k.replace(nil)
	k.update(func(*State) {})
}

func (k *Keeper) replace(lock *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lock != nil {
		_ = k.lock.Close()
	}
	k.lock = lock
}

// Run holds the lock until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.session(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Lost the system bus, connecting again", "reason", err.Error())
		k.update(func(s *State) { s.Problem = "no system bus: " + err.Error() })
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// session lasts as long as a connection to the bus.
func (k *Keeper) session(ctx context.Context) error {
	conn, err := dbus.Connect("unix:path="+k.Socket, dbus.WithContext(ctx))
	if err != nil {
		return errors.Wrap(err, "connecting")
	}
	defer func() {
		k.connect(nil)
		_ = conn.Close()
	}()
	k.connect(conn)
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchInterface(manager), dbus.WithMatchMember("PrepareForShutdown"), dbus.WithMatchObjectPath(loginPath)},
		{dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, loginName)},
	} {
		if err := conn.AddMatchSignal(match...); err != nil {
			return errors.Wrap(err, "subscribing")
		}
	}
	_, _, asked := k.asks()
	k.take(ctx, conn)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-asked:
			if k.State().Held { // else it is asked for with the next lock
				problem := k.allow(ctx, conn, conn.Object(loginName, loginPath))
				k.update(func(s *State) { s.Problem = problem })
			}
		case <-conn.Context().Done():
			return errors.New("disconnected")
		case signal, open := <-signals:
			if !open {
				return errors.New("disconnected")
			}
			k.handle(ctx, conn, signal)
		case <-time.After(retryAfter):
			if s := k.State(); !s.Held && !s.Preparing { // logind comes up later than the bus
				k.take(ctx, conn)
			}
		}
	}
}

func (k *Keeper) connect(conn *dbus.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = conn
}

// Locked says whether there is a lock, also while the bus is away and nobody could tell us of a shutdown.
func (k *Keeper) Locked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lock != nil
}

func (k *Keeper) handle(ctx context.Context, conn *dbus.Conn, signal *dbus.Signal) {
	switch signal.Name {
	case manager + ".PrepareForShutdown":
	case "org.freedesktop.DBus.NameOwnerChanged":
		k.take(ctx, conn) // logind has come or gone, and our lock may have gone with it
		return
	default:
		return
	}
	preparing, ok := false, len(signal.Body) == 1
	if ok {
		preparing, ok = signal.Body[0].(bool)
	}
	if !ok {
		return // not logind's
	}
	k.update(func(s *State) { s.Preparing = preparing })
	if !preparing && !k.State().Held {
		k.take(ctx, conn)
	}
}

// take takes a lock, in the place of one that may be there. Once a shutdown has begun there are none to be had: the one that
// is there is kept.
func (k *Keeper) take(ctx context.Context, conn *dbus.Conn) {
	logind := conn.Object(loginName, loginPath)
	problem := k.allow(ctx, conn, logind)
	var fd dbus.UnixFD
	err := logind.CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", k.Who, k.Why, "delay").Store(&fd)
	var refused dbus.Error
	switch {
	case err == nil:
		k.replace(os.NewFile(uintptr(fd), "inhibitor")) //nolint:gosec // a file descriptor isn't negative
		klog.FromContext(ctx).Info("Took the lock that delays a shutdown", "delayMax", k.State().DelayMax)
	case errors.As(err, &refused) && refused.Name == inProgress:
	default:
		problem = "no lock: " + err.Error()
	}
	preparing, err := property[bool](logind, "PreparingForShutdown")
	k.update(func(s *State) {
		s.Problem = problem
		if err == nil {
			s.Preparing = preparing
		}
	})
}

// allow finds out for how long logind lets itself be delayed, and has it be longer where that is wanted and allowed.
func (k *Keeper) allow(ctx context.Context, conn *dbus.Conn, logind dbus.BusObject) (problem string) {
	want, dropInDir, _ := k.asks()
	delay, err := delayMax(logind)
	if err != nil {
		return "no logind: " + err.Error()
	}
	if delay < want && dropInDir != "" {
		if err := extend(ctx, conn, want, dropInDir); err != nil {
			problem = err.Error()
		}
		if again, err := delayMax(logind); err == nil {
			delay = again
		}
	}
	if delay < want {
		problem = fmt.Sprintf("logind waits for %s only, not %s. %s", delay, want, problem)
	}
	k.update(func(s *State) { s.DelayMax = delay })
	return problem
}

// extend has logind wait as long as is wanted. It reads its configuration again on SIGHUP.
func extend(ctx context.Context, conn *dbus.Conn, want time.Duration, dropInDir string) error {
	// A second more: what logind counts is what we have to stay below.
	content := fmt.Sprintf("# Written by the node agent of Cluster API Node Maintenance.\n[Login]\nInhibitDelayMaxSec=%.0f\n", (want + time.Second).Seconds())
	if err := os.MkdirAll(dropInDir, 0o755); err != nil { //nolint:gosec // logind's configuration is for everybody to read
		return errors.Wrap(err, "making the directory of logind's drop-ins")
	}
	if err := os.WriteFile(filepath.Join(dropInDir, dropIn), []byte(content), 0o644); err != nil { //nolint:gosec // likewise
		return errors.Wrap(err, "writing a drop-in of logind")
	}
	call := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdName+".Manager.KillUnit", 0, "systemd-logind.service", "all", int32(syscall.SIGHUP))
	return errors.Wrap(call.Err, "having logind read its configuration")
}

func delayMax(logind dbus.BusObject) (time.Duration, error) {
	micros, err := property[uint64](logind, "InhibitDelayMaxUSec")
	return time.Duration(micros) * time.Microsecond, err //nolint:gosec // 292 years
}

func property[T any](object dbus.BusObject, name string) (T, error) {
	var zero T
	variant, err := object.GetProperty(manager + "." + name)
	if err != nil {
		return zero, errors.Wrapf(err, "reading %s", name)
	}
	value, ok := variant.Value().(T)
	if !ok {
		return zero, errors.Errorf("%s is no %T", name, zero)
	}
	return value, nil
}

// StopKubelet has systemd stop the kubelet.
func (k *Keeper) StopKubelet(ctx context.Context) error { return k.systemd(ctx, "StopUnit") }

// StartKubelet has systemd start the kubelet.
func (k *Keeper) StartKubelet(ctx context.Context) error { return k.systemd(ctx, "StartUnit") }

func (k *Keeper) systemd(ctx context.Context, method string) error {
	k.mu.Lock()
	conn := k.conn
	k.mu.Unlock()
	if conn == nil {
		return errors.New("there is no system bus")
	}
	call := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdName+".Manager."+method, 0, kubeletUnit, "replace")
	return errors.Wrapf(call.Err, "%s %s", method, kubeletUnit)
}
