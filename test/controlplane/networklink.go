package controlplane

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
)

// CutNetwork cuts the network between the API server and the clients of ProxiedHost: open and new
// connections deliver no data. They are neither reset nor closed, so clients notice only by
// their own timeouts, as in a real network partition.
//
// One difference remains: the kernel establishes a new connection before it becomes silent, so a
// client hits its TLS handshake timeout and not its dial timeout.
func (c *ControlPlane) CutNetwork() { c.link.Cut() }

// RestoreNetwork reverts CutNetwork. Data that was sent meanwhile is delivered, as by TCP
// retransmission.
func (c *ControlPlane) RestoreNetwork() { c.link.Restore() }

// SlowNetwork delays all data between the API server and the clients of ProxiedHost, in each direction. Zero reverts it.
func (c *ControlPlane) SlowNetwork(delay time.Duration) { c.link.Slow(delay) }

// ResetNetwork closes all connections between the API server and the clients of ProxiedHost, and so their watches. Clients may connect again at once.
func (c *ControlPlane) ResetNetwork() { c.link.Reset() }

// LinkEtcd puts a network link between the API server and etcd, which the API server uses from its next start on.
func (c *ControlPlane) LinkEtcd() (_ *NetworkLink, err error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.etcdLink == nil {
		c.etcdLink, err = NewNetworkLink(loopback(c.ports.etcd()))
	}
	return c.etcdLink, err
}

// etcdPort returns the port at which the API server reaches etcd.
func (c *ControlPlane) etcdPort() int {
	if c.etcdLink != nil {
		return c.etcdLink.Port()
	}
	return c.ports.etcd()
}

// NetworkLink is a TCP proxy whose traffic can be cut. Each control plane has one, and tests can create more.
type NetworkLink struct {
	listener net.Listener
	target   string

	lock sync.Mutex
	// up is closed while traffic may pass.
	up     chan struct{}
	isCut  bool
	conns  map[net.Conn]struct{}
	closed chan struct{}
	active sync.WaitGroup

	// delay is a time.Duration.
	delay atomic.Int64
}

// NewNetworkLink listens on a new port and forwards connections to an address.
func NewNetworkLink(target string) (*NetworkLink, error) {
	listener, err := net.Listen("tcp", loopback(0))
	if err != nil {
		return nil, errors.Wrap(err, "listening as the network link of a control plane")
	}
	l := &NetworkLink{
		listener: listener,
		target:   target,
		up:       make(chan struct{}),
		conns:    map[net.Conn]struct{}{},
		closed:   make(chan struct{}),
	}
	close(l.up)
	l.active.Go(l.accept)
	return l, nil
}

// Port returns the port of the link on loopback.
func (l *NetworkLink) Port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// Cut stops the traffic: see ControlPlane.CutNetwork.
func (l *NetworkLink) Cut() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if !l.isCut {
		l.isCut, l.up = true, make(chan struct{})
	}
}

// Restore reverts Cut.
func (l *NetworkLink) Restore() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.isCut {
		l.isCut = false
		close(l.up)
	}
}

// Slow delays all data in each direction. Zero reverts it.
func (l *NetworkLink) Slow(delay time.Duration) { l.delay.Store(int64(delay)) }

// Reset closes all connections.
func (l *NetworkLink) Reset() {
	l.lock.Lock()
	defer l.lock.Unlock()
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// Close closes all connections and returns when the link has stopped.
func (l *NetworkLink) Close() {
	l.lock.Lock()
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	for conn := range l.conns {
		_ = conn.Close()
	}
	l.lock.Unlock()
	_ = l.listener.Close()
	l.active.Wait()
}

// passable blocks while the link is cut. It returns false when the link has been closed.
func (l *NetworkLink) passable() bool {
	for {
		l.lock.Lock()
		up := l.up
		l.lock.Unlock()
		select {
		case <-l.closed:
			return false
		case <-up:
		}
		// The link may have been cut again.
		l.lock.Lock()
		same := l.up == up
		l.lock.Unlock()
		if same {
			return true
		}
	}
}

// wait returns after a delay, or when the link has been closed.
func (l *NetworkLink) wait(delay time.Duration) {
	if delay == 0 {
		return
	}
	select {
	case <-l.closed:
	case <-time.After(delay):
	}
}

// track registers a connection to be closed with the link.
func (l *NetworkLink) track(conn net.Conn) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	select {
	case <-l.closed:
		_ = conn.Close()
		return false
	default:
		l.conns[conn] = struct{}{}
		return true
	}
}

func (l *NetworkLink) drop(conn net.Conn) {
	l.lock.Lock()
	delete(l.conns, conn)
	l.lock.Unlock()
	_ = conn.Close()
}

func (l *NetworkLink) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // The link was closed: nothing else makes a loopback listener fail permanently.
		}
		l.active.Go(func() { l.serve(client) })
	}
}

func (l *NetworkLink) serve(client net.Conn) {
	if !l.track(client) {
		return
	}
	defer l.drop(client)
	if !l.passable() {
		return
	}
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return // The API server is down: the client's connection is closed.
	}
	if !l.track(server) {
		return
	}
	defer l.drop(server)

	var directions sync.WaitGroup
	directions.Go(func() { l.forward(server, client) })
	directions.Go(func() { l.forward(client, server) })
	directions.Wait()
}

// forward copies one direction. Data and the end of the stream are forwarded only while the link is
// up.
func (l *NetworkLink) forward(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buffer)
		l.wait(time.Duration(l.delay.Load()))
		if !l.passable() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
		if readErr == nil {
			continue
		}
		if halves, ok := to.(*net.TCPConn); ok && errors.Is(readErr, io.EOF) {
			_ = halves.CloseWrite()
			return
		}
		_ = to.Close()
		return
	}
}
