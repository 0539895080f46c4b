// Package logind holds a delay inhibitor lock on the shutdown of the node, and reports when a shutdown begins.
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html
package logind

import (
	"context"
	"math"
	"os"
	"slices"
	"sync"
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
	// inProgress is the error with which logind refuses a lock once a shutdown has begun.
	inProgress = loginName + ".OperationInProgress"

	retryAfter = 500 * time.Millisecond
	// askTimeout limits how long systemd may take to answer a question, stopTimeout how long it may take to accept that it stops or starts the
	// kubelet. The latter is short, because the time is missing for the Pods.
	askTimeout, stopTimeout = 3 * time.Second, 2 * time.Second
	// answerTimeout is the time after which a request for a lock that has no answer is a problem.
	answerTimeout = 10 * time.Second
)

// State is the observed state of logind and of the lock.
type State struct {
	// Held is true if the Keeper holds a lock and is connected to the bus, so that it delays a shutdown and is notified of it.
	Held bool
	// Preparing is true while a shutdown is in progress. It is false, too, before logind has answered for the first time.
	Preparing bool
	// Known is true once logind has answered whether a shutdown is in progress, and false again while it does not answer.
	Known bool
	// Pending is true while a lock is wanted that logind has neither granted nor refused. It is not set again when a lock is lost.
	Pending bool
	// DelayMax is the maximum delay that logind allows (InhibitDelayMaxSec). It may change just after a shutdown has begun.
	DelayMax time.Duration
	// Problem explains why there is no lock, or why the delay is shorter than configured. Empty if there is no problem.
	Problem string
}

// Delays reports whether a shutdown would be delayed: logind grants locks also if it allows no delay.
func (s State) Delays() bool { return s.Held && s.DelayMax > 0 }

// Answered reports whether logind has granted or refused the lock, or it is known why it cannot be asked.
func (s State) Answered() bool { return s.Held || s.Known && !s.Pending || s.Problem != "" }

// Keeper holds a lock, and takes a new one when the lock is lost because the bus or logind has restarted.
type Keeper struct {
	// Socket is the path of the system bus's socket.
	Socket string
	// Who and Why describe the lock, for example in the output of systemd-inhibit.
	Who, Why string

	mu sync.Mutex
	// want is the requested delay, dropInDir the directory for a drop-in that has logind allow it.
	want         time.Duration
	dropInDir    string
	delayChanged chan struct{}

	// dropIns is the directory of the drop-in, locked as described in useDropIn, or nil. Only Run uses it.
	dropIns *os.File
	// isLeft is true if the drop-in is not requested, but another Keeper uses it. Only Run uses it.
	isLeft bool

	lock         *os.File
	state        State
	conn         *dbus.Conn
	stateChanged chan struct{}
}

// Changed returns a channel that receives a value when the State has changed. Several changes may result in one value.
func (k *Keeper) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stateChanged == nil {
		k.stateChanged = make(chan struct{}, 1)
	}
	return k.stateChanged
}

// DelayFor sets how long a shutdown is to be delayed, and the directory for a drop-in that has logind allow it. If the time is 0, the
// Keeper holds no lock. If the directory is empty, the Keeper writes no drop-in.
func (k *Keeper) DelayFor(want time.Duration, dropInDir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.want == want && k.dropInDir == dropInDir {
		return
	}
	if k.want == 0 && want > 0 {
		k.state.Pending = true
		time.AfterFunc(answerTimeout, k.observeSilence)
	}
	k.want, k.dropInDir = want, dropInDir
	notify(k.delayChanged)
}

// observeSilence records that the system bus or logind hangs: a connection or a request then waits for ever.
func (k *Keeper) observeSilence() {
	k.update(func(s *State) {
		if s.Pending && k.want > 0 && !s.Answered() {
			s.Problem = "the system bus or logind does not answer"
		}
	})
}

// notify sends to a channel with a buffer of one, unless the receiver has not handled the last notification. A nil channel has no receiver
// yet.
func notify(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// wantedDelay returns the last arguments of DelayFor, and a channel that receives a value when they change.
func (k *Keeper) wantedDelay() (want time.Duration, dropInDir string, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.delayChanged == nil {
		k.delayChanged = make(chan struct{}, 1)
	}
	return k.want, k.dropInDir, k.delayChanged
}

func (k *Keeper) wantsLock() bool {
	want, _, _ := k.wantedDelay()
	return want > 0
}

// State returns the current state.
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
	if k.state != before {
		notify(k.stateChanged)
	}
}

// Release releases the lock, so that the shutdown continues. The Keeper takes a new lock if the shutdown is cancelled.
func (k *Keeper) Release() {
	k.replaceLock(nil)
	k.update(func(*State) {})
}

func (k *Keeper) replaceLock(lock *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lock != nil {
		_ = k.lock.Close()
	}
	k.lock = lock
}

// Run holds the lock until ctx is done. It then removes the drop-in, unless the node shuts down or another Keeper uses the drop-in.
func (k *Keeper) Run(ctx context.Context) {
	defer k.leave(ctx)
	for ctx.Err() == nil {
		err := k.session(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Lost the connection to the system bus, reconnecting", "err", err)
		k.update(func(s *State) { s.Problem, s.Known = "cannot use the system bus: "+err.Error(), false })
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// leave releases the lock, and removes the drop-in if no other Keeper uses it. During a shutdown it does neither: logind allows what it
// allowed at the start.
func (k *Keeper) leave(ctx context.Context) {
	if k.State().Preparing {
		return
	}
	k.Release()
	ctx = context.WithoutCancel(ctx)
	conn, err := dbus.Connect("unix:path=" + k.Socket)
	if err != nil {
		k.stopUsing()
		klog.FromContext(ctx).Error(err, "Failed to connect to the system bus. The drop-in of logind stays, if there is one")
		return
	}
	defer func() { _ = conn.Close() }()
	k.removeDropIn(ctx, conn)
}

// session connects to the bus and holds the lock until the connection is lost or ctx is done.
func (k *Keeper) session(ctx context.Context) error {
	// By default, signals that the Keeper does not receive at once have no order: a shutdown that was cancelled could seem to be in progress.
	conn, err := dbus.Connect("unix:path="+k.Socket, dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		return errors.Wrap(err, "connecting")
	}
	defer func() {
		k.setConn(nil)
		_ = conn.Close()
	}()
	k.setConn(conn)
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
	_, _, asked := k.wantedDelay()
	k.takeLock(ctx, conn)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-asked:
			k.applyDelay(ctx, conn)
		case <-conn.Context().Done():
			return errors.New("disconnected")
		case signal, open := <-signals:
			if !open {
				return errors.New("disconnected")
			}
			k.handle(ctx, conn, signal)
		case <-time.After(retryAfter):
			k.retry(ctx, conn)
		}
	}
}

// retry takes the lock or applies the delay, if that has failed before.
func (k *Keeper) retry(ctx context.Context, conn *dbus.Conn) {
	switch s := k.State(); {
	case !s.Known || !s.Preparing && !s.Held && k.wantsLock(): // logind may start after the bus
		k.takeLock(ctx, conn)
	case k.isExtended(conn), k.usesDropInAtLast(), k.isLeftToMe():
		k.applyDelay(ctx, conn)
	}
}

// applyDelay applies the delay that is now wanted.
func (k *Keeper) applyDelay(ctx context.Context, conn *dbus.Conn) {
	switch s := k.State(); {
	case s.Held && k.wantsLock():
		problem := k.ensureDelay(ctx, conn, conn.Object(loginName, loginPath))
		k.update(func(s *State) { s.Problem, s.Pending = problem, false })
	case !s.Preparing:
		k.takeLock(ctx, conn)
	case !k.wantsLock(): // the shutdown began just before, and nothing else releases the lock
		k.Release()
	}
}

// isExtended reports whether logind allows more time than the Keeper knows: logind has read a drop-in after the Keeper has stopped waiting
// for that, has not answered before, or has allowed no delay. It reports false during a shutdown, which logind delays for the time that it
// allowed when the shutdown began.
func (k *Keeper) isExtended(conn *dbus.Conn) bool {
	s := k.State()
	want, dropInDir, _ := k.wantedDelay()
	if dropInDir == "" && s.DelayMax > 0 || !s.Held || s.Preparing || s.DelayMax >= want {
		return false
	}
	delay, err := delayMax(conn.Object(loginName, loginPath))
	return err == nil && delay > s.DelayMax
}

func (k *Keeper) setConn(conn *dbus.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = conn
}

// Locked reports whether the Keeper holds a lock, also while it is disconnected from the bus.
func (k *Keeper) Locked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lock != nil
}

func (k *Keeper) handle(ctx context.Context, conn *dbus.Conn, signal *dbus.Signal) {
	switch signal.Name {
	case manager + ".PrepareForShutdown":
		switch owner, err := ownerOf(ctx, conn, loginName); {
		case err != nil:
			klog.FromContext(ctx).Error(err, "The bus does not say who has sent a signal about a shutdown, asking logind", "sender", signal.Sender)
			k.takeLock(ctx, conn)
			return
		case owner != signal.Sender:
			klog.FromContext(ctx).Info("Ignoring a signal about a shutdown that logind has not sent", "sender", signal.Sender)
			return
		}
	case "org.freedesktop.DBus.NameOwnerChanged":
		k.takeLock(ctx, conn) // logind has started or stopped, and may have lost the lock
		return
	default:
		return
	}
	preparing, ok := false, len(signal.Body) == 1
	if ok {
		preparing, ok = signal.Body[0].(bool)
	}
	if !ok {
		return // not a signal of logind
	}
	k.update(func(s *State) { s.Preparing, s.Known = preparing, true }) // first: the time that logind takes to answer counts
	if preparing {
		if delay, err := delayMax(conn.Object(loginName, loginPath)); err == nil { // it may have read its configuration since the lock was taken
			k.update(func(s *State) { s.DelayMax = delay })
		}
	}
	if !preparing && !k.State().Held {
		k.takeLock(ctx, conn)
	}
}

// ownerOf returns the client of the bus that has a name. Every user of the node may send signals, also to all clients.
func ownerOf(ctx context.Context, conn *dbus.Conn, name string) (client string, _ error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, name).Store(&client)
	return client, errors.Wrapf(err, "reading the owner of %s", name)
}

// takeLock takes a lock and closes the previous one, or only closes it if no delay is wanted.
func (k *Keeper) takeLock(ctx context.Context, conn *dbus.Conn) {
	logind, problem, wanted := conn.Object(loginName, loginPath), "", k.wantsLock()
	if wanted {
		problem = k.inhibit(ctx, conn, logind)
	} else {
		k.removeDropIn(ctx, conn)
		k.replaceLock(nil)
	}
	preparing, err := property[bool](logind, "PreparingForShutdown")
	k.update(func(s *State) {
		s.Problem, s.Known, s.Pending = problem, err == nil, s.Pending && !wanted
		if s.Known {
			s.Preparing = preparing
		}
	})
}

// inhibit takes a lock and closes the previous one. During a shutdown logind grants no locks; inhibit then keeps the previous one.
func (k *Keeper) inhibit(ctx context.Context, conn *dbus.Conn, logind dbus.BusObject) (problem string) {
	problem = k.ensureDelay(ctx, conn, logind)
	var fd dbus.UnixFD
	err := logind.CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", k.Who, k.Why, "delay").Store(&fd)
	var refused dbus.Error
	switch {
	case err == nil:
		k.replaceLock(os.NewFile(uintptr(fd), "inhibitor")) //nolint:gosec // a file descriptor isn't negative
		klog.FromContext(ctx).Info("Took the lock that delays a shutdown", "delayMax", k.State().DelayMax)
	case errors.As(err, &refused) && refused.Name == inProgress:
	default:
		problem = "logind refused the lock: " + err.Error()
	}
	return problem
}

// delayMax returns the maximum delay that logind allows. For "infinity", logind reports the highest number.
func delayMax(logind dbus.BusObject) (time.Duration, error) {
	micros, err := property[uint64](logind, "InhibitDelayMaxUSec")
	return time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond, err
}

func property[T any](object dbus.BusObject, name string) (T, error) {
	var zero T
	var variant dbus.Variant
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout) // a logind that hangs must not keep the Keeper from its signals
	defer cancel()
	err := object.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name).Store(&variant)
	if err != nil {
		return zero, errors.Wrapf(err, "reading %s", name)
	}
	value, ok := variant.Value().(T)
	if !ok {
		return zero, errors.Errorf("%s is not a %T", name, zero)
	}
	return value, nil
}

// ErrDisconnected means that the Keeper is not connected to the system bus.
var ErrDisconnected = errors.New("not connected to the system bus")

// RunsKubelet reports whether systemd runs the kubelet as kubelet.service, also while it starts or stops it.
func (k *Keeper) RunsKubelet(ctx context.Context) (bool, error) {
	k.mu.Lock()
	conn := k.conn
	k.mu.Unlock()
	if conn == nil {
		return false, ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var unit dbus.ObjectPath
	err := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdName+".Manager.GetUnit", 0, kubeletUnit).Store(&unit)
	if isNoSuchUnit(err) {
		return false, nil
	}
	if err != nil {
		return false, errors.Wrapf(err, "getting %s from systemd", kubeletUnit)
	}
	var variant dbus.Variant
	err = conn.Object(systemdName, unit).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, systemdName+".Unit", "ActiveState").Store(&variant)
	if err != nil {
		return false, errors.Wrapf(err, "reading the state of %s from systemd", kubeletUnit)
	}
	state, _ := variant.Value().(string)
	return slices.Contains([]string{"active", "activating", "deactivating", "reloading", "refreshing"}, state), nil
}

// StopKubelet has systemd stop the kubelet. It does not wait until the kubelet has ended, see RunsKubelet.
func (k *Keeper) StopKubelet(ctx context.Context) error { return k.systemd(ctx, "StopUnit") }

// StartKubelet has systemd start the kubelet. It does nothing if there is no kubelet.service, which StopKubelet cannot have stopped then.
func (k *Keeper) StartKubelet(ctx context.Context) error {
	if err := k.systemd(ctx, "StartUnit"); !isNoSuchUnit(err) {
		return err
	}
	return nil
}

func isNoSuchUnit(err error) bool {
	var refused dbus.Error
	return errors.As(err, &refused) && refused.Name == systemdName+".NoSuchUnit"
}

func (k *Keeper) systemd(ctx context.Context, method string) error {
	k.mu.Lock()
	conn := k.conn
	k.mu.Unlock()
	if conn == nil {
		return ErrDisconnected
	}
	// It waits for the answer also if the shutdown is cancelled meanwhile: the request to start the kubelet must come after that to stop it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	call := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdName+".Manager."+method, 0, kubeletUnit, "replace")
	return errors.Wrapf(call.Err, "%s %s", method, kubeletUnit)
}
