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

// CutResponses cuts the network in one direction: the API server receives and carries out requests, and clients receive nothing. As with
// CutNetwork, connections stay open.
func (c *ControlPlane) CutResponses() { c.link.CutResponses() }

// RestoreNetwork reverts CutNetwork and CutResponses. Data that was sent meanwhile is delivered, as by TCP
// retransmission.
func (c *ControlPlane) RestoreNetwork() { c.link.Restore() }

// SlowNetwork delays all data between the API server and the clients of ProxiedHost, in each direction. Zero reverts it.
func (c *ControlPlane) SlowNetwork(delay time.Duration) { c.link.Slow(delay) }

// ResetNetwork closes all connections between the API server and the clients of ProxiedHost, and so their watches. Clients may connect
// again at once.
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

	lock                sync.Mutex
	requests, responses gate
	conns               map[net.Conn]struct{}
	closed              chan struct{}
	active              sync.WaitGroup

	// delay is a time.Duration.
	delay atomic.Int64
}

// gate is one direction of a link.
type gate struct {
	// up is closed while traffic may pass.
	up    chan struct{}
	isCut bool
}

func newGate() gate {
	up := make(chan struct{})
	close(up)
	return gate{up: up}
}

func (g *gate) cut() {
	if !g.isCut {
		g.isCut, g.up = true, make(chan struct{})
	}
}

func (g *gate) restore() {
	if g.isCut {
		g.isCut = false
		close(g.up)
	}
}

// NewNetworkLink listens on a new port and forwards connections to an address.
func NewNetworkLink(target string) (*NetworkLink, error) {
	listener, err := net.Listen("tcp", loopback(0))
	if err != nil {
		return nil, errors.Wrap(err, "listening as the network link of a control plane")
	}
	l := &NetworkLink{
		listener:  listener,
		target:    target,
		requests:  newGate(),
		responses: newGate(),
		conns:     map[net.Conn]struct{}{},
		closed:    make(chan struct{}),
	}
	l.active.Go(l.accept)
	return l, nil
}

// Port returns the port of the link on loopback.
func (l *NetworkLink) Port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// Cut stops the traffic: see ControlPlane.CutNetwork.
func (l *NetworkLink) Cut() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.requests.cut()
	l.responses.cut()
}

// CutResponses stops what the API server sends: see ControlPlane.CutResponses.
func (l *NetworkLink) CutResponses() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.responses.cut()
}

// Restore reverts Cut and CutResponses.
func (l *NetworkLink) Restore() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.requests.restore()
	l.responses.restore()
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

// passable blocks while a direction of the link is cut. It returns false when the link has been closed.
func (l *NetworkLink) passable(direction *gate) bool {
	for {
		l.lock.Lock()
		up := direction.up
		l.lock.Unlock()
		select {
		case <-l.closed:
			return false
		case <-up:
		}
		// The link may have been cut again.
		l.lock.Lock()
		same := direction.up == up
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
	if !l.passable(&l.requests) {
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
	directions.Go(func() { l.forward(server, client, &l.requests) })
	directions.Go(func() { l.forward(client, server, &l.responses) })
	directions.Wait()
}

// forward copies one direction. Data and the end of the stream are forwarded only while the direction is
// not cut.
func (l *NetworkLink) forward(to, from net.Conn, direction *gate) {
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buffer)
		l.wait(time.Duration(l.delay.Load()))
		if !l.passable(direction) {
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
