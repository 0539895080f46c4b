package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

const (
	loginName   = "org.freedesktop.login1"
	loginPath   = dbus.ObjectPath("/org/freedesktop/login1")
	managerOf   = ".Manager"
	systemdName = "org.freedesktop.systemd1"
	systemdPath = dbus.ObjectPath("/org/freedesktop/systemd1")
)

// logind implements the part of systemd-logind that a shutdown needs: delay inhibitors, PrepareForShutdown and PowerOff.
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html
//
// Unlike systemd-logind, it loses its locks when it restarts, so tests cover clients that have to take a lock again.
type logind struct {
	node *node

	lock      sync.Mutex
	conn      *dbus.Conn
	props     *prop.Properties
	delayMax  time.Duration
	locks     map[*os.File]string // values are the holders
	preparing bool
	timer     *time.Timer
}

func newLogind(n *node) *logind {
	l := &logind{node: n, locks: map[*os.File]string{}}
	l.readConfig()
	return l
}

// serve connects logind to the bus, and reconnects it when the bus has restarted.
func (l *logind) serve() {
	for {
		if err := l.connect(); err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		log.Print("logind is on the bus")
		<-l.conn.Context().Done()
	}
}

func (l *logind) connect() error {
	conn, err := dbus.Connect("unix:path=" + spec.DBusSocket)
	if err != nil {
		return errors.Wrap(err, "connecting to the bus")
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	l.conn = conn
	if l.props, err = prop.Export(conn, loginPath, prop.Map{loginName + managerOf: {
		"InhibitDelayMaxUSec":  {Value: uint64(l.delayMax.Microseconds()), Emit: prop.EmitTrue},
		"PreparingForShutdown": {Value: l.preparing, Emit: prop.EmitFalse},
	}}); err != nil {
		return errors.Wrap(err, "exporting logind's properties")
	}
	if err := conn.Export(manager{l}, loginPath, loginName+managerOf); err != nil {
		return errors.Wrap(err, "exporting logind")
	}
	if err := conn.Export(systemd{l.node}, systemdPath, systemdName+managerOf); err != nil {
		return errors.Wrap(err, "exporting systemd")
	}
	for _, u := range l.node.units {
		if err := conn.Export(unitProperties{u}, unitPath(u.name), "org.freedesktop.DBus.Properties"); err != nil {
			return errors.Wrap(err, "exporting a unit")
		}
	}
	for _, name := range []string{systemdName, loginName} {
		if _, err := conn.RequestName(name, dbus.NameFlagReplaceExisting); err != nil {
			return errors.Wrapf(err, "requesting the bus name %s", name)
		}
	}
	return nil
}

// restart drops the connection and the locks.
func (l *logind) restart() {
	l.lock.Lock()
	defer l.lock.Unlock()
	for file, who := range l.locks {
		journal(spec.LockReleased + who)
		delete(l.locks, file)
		_ = file.Close()
	}
	_ = l.conn.Close()
}

// readConfig reads InhibitDelayMaxSec. The last drop-in by name takes precedence.
func (l *logind) readConfig() {
	l.delayMax = l.node.InhibitDelayMax
	files, _ := filepath.Glob(filepath.Join(spec.LogindDropIns, "*.conf"))
	slices.Sort(files)
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			log.Print(err)
			continue
		}
		for scanner := bufio.NewScanner(strings.NewReader(string(content))); scanner.Scan(); {
			if value, found := strings.CutPrefix(strings.TrimSpace(scanner.Text()), "InhibitDelayMaxSec="); found {
				if seconds, err := strconv.Atoi(value); err == nil {
					l.delayMax = time.Duration(seconds) * time.Second
				}
			}
		}
	}
}

func (l *logind) reload() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.readConfig()
	journal(spec.Allows + l.delayMax.String())
	if l.props != nil {
		l.props.SetMust(loginName+managerOf, "InhibitDelayMaxUSec", uint64(l.delayMax.Microseconds()))
	}
}

// prepare signals the start or the cancellation of a shutdown. The caller must hold l.lock.
func (l *logind) prepare(preparing bool) {
	l.preparing = preparing
	l.props.SetMust(loginName+managerOf, "PreparingForShutdown", preparing)
	if err := l.conn.Emit(loginPath, loginName+managerOf+".PrepareForShutdown", preparing); err != nil {
		log.Print(err)
	}
}

// finish powers the node off. The caller must hold l.lock.
func (l *logind) finish(why string) {
	journal(why)
	l.node.powerOff()
}

// manager exports logind's methods on the bus.
type manager struct{ *logind }

// Inhibit returns one end of a pipe. The lock is released when the last copy of it is closed.
func (m manager) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(errors.Errorf("only delay locks on shutdown are supported, not %s on %s", mode, what))
	}
	if m.preparing {
		return 0, dbus.NewError(loginName+".OperationInProgress", []any{"The operation inhibition has been requested for is already running"})
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	m.locks[ours] = who
	journal(spec.LockTaken + who)
	go m.watch(ours)
	// D-Bus writes the reply after Inhibit returns, so this copy of the client's end must stay open until then.
	time.AfterFunc(300*time.Millisecond, func() { _ = theirs.Close() })
	return dbus.UnixFD(theirs.Fd()), nil
}

func (l *logind) watch(lock *os.File) {
	_, _ = lock.Read(make([]byte, 1))
	l.lock.Lock()
	defer l.lock.Unlock()
	who, held := l.locks[lock]
	if !held {
		return // restart has dropped it
	}
	delete(l.locks, lock)
	_ = lock.Close()
	journal(spec.LockReleased + who)
	if l.preparing && len(l.locks) == 0 {
		l.finish(spec.PowerOff)
	}
}

// PowerOff powers the node off when all locks are released, or when the maximum delay is exceeded.
func (m manager) PowerOff(bool) *dbus.Error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.preparing {
		return dbus.MakeFailedError(errors.New("a shutdown is already in progress"))
	}
	journal(spec.Preparing)
	m.prepare(true)
	if len(m.locks) == 0 {
		m.finish(spec.PowerOff)
		return nil
	}
	m.timer = time.AfterFunc(m.delayMax, func() {
		m.lock.Lock()
		defer m.lock.Unlock()
		if m.preparing {
			m.finish(spec.PowerOffLate)
		}
	})
	return nil
}

// CancelScheduledShutdown cancels the shutdown. It returns false if there was none.
func (m manager) CancelScheduledShutdown() (bool, *dbus.Error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if !m.preparing {
		return false, nil
	}
	m.timer.Stop()
	journal(spec.Cancelled)
	m.prepare(false)
	return true, nil
}

// systemd implements the part of systemd that starts and stops the services of a node.
type systemd struct{ node *node }

// GetUnit implements org.freedesktop.systemd1.Manager.
func (s systemd) GetUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	if s.node.units[name] == nil {
		return "/", noSuchUnit(name)
	}
	return unitPath(name), nil
}

func unitPath(name string) dbus.ObjectPath {
	return systemdPath + "/unit/" + dbus.ObjectPath(strings.NewReplacer(".", "_2e", "-", "_2d").Replace(name))
}

// unitProperties implements org.freedesktop.DBus.Properties for a unit, which has the property ActiveState only.
type unitProperties struct{ unit *unit }

// Get implements org.freedesktop.DBus.Properties.
func (p unitProperties) Get(_, property string) (dbus.Variant, *dbus.Error) {
	if property != "ActiveState" {
		return dbus.Variant{}, prop.ErrPropNotFound
	}
	if p.unit.isWanted() {
		return dbus.MakeVariant("active"), nil
	}
	return dbus.MakeVariant("inactive"), nil
}

// StopUnit implements org.freedesktop.systemd1.Manager.
func (s systemd) StopUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	u := s.node.units[name]
	if u == nil {
		return "/", noSuchUnit(name)
	}
	u.stop()
	journal("stopped " + name)
	return "/org/freedesktop/systemd1/job/1", nil
}

// StartUnit implements org.freedesktop.systemd1.Manager.
func (s systemd) StartUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	u := s.node.units[name]
	if u == nil {
		return "/", noSuchUnit(name)
	}
	if err := u.start(); err != nil {
		return "/", dbus.MakeFailedError(err)
	}
	journal("started " + name)
	return "/org/freedesktop/systemd1/job/1", nil
}

// KillUnit implements org.freedesktop.systemd1.Manager. It supports only SIGHUP to logind, which makes logind read its configuration.
func (s systemd) KillUnit(name, _ string, signal int32) *dbus.Error {
	if name != spec.Logind || syscall.Signal(signal) != syscall.SIGHUP {
		return noSuchUnit(name)
	}
	s.node.logind.reload()
	return nil
}

func noSuchUnit(name string) *dbus.Error {
	return dbus.NewError(systemdName+".NoSuchUnit", []any{"Unit " + name + " not loaded."})
}

// journal appends an entry of logind to the journal.
func journal(what string) {
	file, err := os.OpenFile(spec.Journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = file.Close() }()
	if _, err := fmt.Fprintf(file, "%d %s %s\n", time.Now().UnixNano(), spec.Who, what); err != nil {
		log.Print(err)
	}
}
