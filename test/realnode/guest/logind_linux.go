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

// logind is as much of systemd-logind as shutting down takes: delay inhibitors, PrepareForShutdown, and the power switch.
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html
//
// Unlike the real one it forgets its locks when it is restarted: clients have to be ready for that.
type logind struct {
	node *node

	lock      sync.Mutex
	conn      *dbus.Conn
	props     *prop.Properties
	delayMax  time.Duration
	locks     map[*os.File]string // by whom
	preparing bool
	timer     *time.Timer
}

func newLogind(n *node) *logind {
	l := &logind{node: n, locks: map[*os.File]string{}}
	l.readConfig()
	return l
}

// serve keeps logind on the bus, also when the bus is restarted.
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
	for _, name := range []string{systemdName, loginName} {
		if _, err := conn.RequestName(name, dbus.NameFlagReplaceExisting); err != nil {
			return errors.Wrapf(err, "becoming %s", name)
		}
	}
	return nil
}

// restart loses the connection and the locks.
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

// readConfig takes InhibitDelayMaxSec from the drop-in that comes last.
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
	if l.props != nil {
		l.props.SetMust(loginName+managerOf, "InhibitDelayMaxUSec", uint64(l.delayMax.Microseconds()))
	}
}

// prepare needs the lock. It says whether a shutdown is on its way.
func (l *logind) prepare(preparing bool) {
	l.preparing = preparing
	l.props.SetMust(loginName+managerOf, "PreparingForShutdown", preparing)
	if err := l.conn.Emit(loginPath, loginName+managerOf+".PrepareForShutdown", preparing); err != nil {
		log.Print(err)
	}
}

// finish needs the lock.
func (l *logind) finish(why string) {
	journal(why)
	l.node.powerOff()
}

// manager is logind as its clients see it.
type manager struct{ *logind }

// Inhibit hands out one end of a pipe: when its last copy is closed, the lock is gone.
func (m manager) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(errors.Errorf("only delays of a shutdown, not %s of %s", mode, what))
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
	// The reply is written after this returns; our copy of the client's end has to last until then.
	time.AfterFunc(300*time.Millisecond, func() { _ = theirs.Close() })
	return dbus.UnixFD(theirs.Fd()), nil
}

func (l *logind) watch(lock *os.File) {
	_, _ = lock.Read(make([]byte, 1))
	l.lock.Lock()
	defer l.lock.Unlock()
	who, held := l.locks[lock]
	if !held {
		return // it was forgotten
	}
	delete(l.locks, lock)
	_ = lock.Close()
	journal(spec.LockReleased + who)
	if l.preparing && len(l.locks) == 0 {
		l.finish(spec.PowerOff)
	}
}

// PowerOff shuts down: at once, or when the locks are gone or the time is up.
func (m manager) PowerOff(bool) *dbus.Error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.preparing {
		return dbus.MakeFailedError(errors.New("it is shutting down already"))
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

// CancelScheduledShutdown calls it off.
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

// systemd is as much of it as starts and stops the services of a node.
type systemd struct{ node *node }

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

// KillUnit implements org.freedesktop.systemd1.Manager, for what makes logind read its configuration again.
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

// journal writes down what has happened.
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
