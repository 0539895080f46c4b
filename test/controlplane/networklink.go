package controlplane

import (
	"io"
	"net"
	"sync"

	"github.com/pkg/errors"
)

// CutNetwork loses the network between the API server and those who use ProxiedHost: open
// connections go silent and new ones get no answer. Nobody sees a reset or an end of stream,
// so clients notice only by their own timeouts, as with a real network.
//
// One difference remains: a new connection is established (the kernel does that) and only
// then goes silent, so a client runs into its TLS handshake timeout, not its dial timeout.
func (c *ControlPlane) CutNetwork() { c.link.Cut() }

// RestoreNetwork ends CutNetwork. What was on its way is delivered, as TCP would by sending
// it again.
func (c *ControlPlane) RestoreNetwork() { c.link.Restore() }

// NetworkLink is a TCP proxy whose traffic can be held up. A control plane has one; those who serve something else can have more.
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
}

// NewNetworkLink listens on a port of its own, and passes on what comes there to an address.
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

// Port is where the link listens, on loopback.
func (l *NetworkLink) Port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// Cut makes connections go silent, as ControlPlane.CutNetwork says.
func (l *NetworkLink) Cut() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if !l.isCut {
		l.isCut, l.up = true, make(chan struct{})
	}
}

// Restore ends Cut.
func (l *NetworkLink) Restore() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.isCut {
		l.isCut = false
		close(l.up)
	}
}

// Close ends all connections and returns when nothing of the link is left.
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

// passable blocks while the link is cut. It is false when the link has been closed.
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
		// Cut again in the meantime?
		l.lock.Lock()
		same := l.up == up
		l.lock.Unlock()
		if same {
			return true
		}
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
			return // Closed: nothing else makes a loopback listener fail for good.
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
		return // The API server is down; the client sees its connection closed.
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

// forward copies one direction. Everything that arrives, the end of the stream included, is
// passed on only while the link is up.
func (l *NetworkLink) forward(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buffer)
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
