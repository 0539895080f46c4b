package chaos

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// state is what happens to the requests that pass a link.
type state int

const (
	open    state = iota
	silent        // nothing passes until it is open again
	mute          // requests pass, and responses wait until it is open again
	refused       // connections are refused
)

// link is the simulated network between one process of our manager and an API server.
type link struct {
	server http.RoundTripper
	// latency is drawn for each direction of a request.
	latency func() time.Duration
	// await, if not nil, is called before each request.
	await func(context.Context) error
	// lose decides whether a write loses its response, or the request itself. The manager gets an error in both cases.
	lose func(*http.Request) (request, response bool)

	mu      sync.Mutex
	begun   time.Time // when the last list or watch began, or failed
	state   state
	changed chan struct{} // closed when the state changes
	reset   chan struct{} // closed when all connections are closed
}

func newLink(server http.RoundTripper) *link {
	return &link{
		server: server, changed: make(chan struct{}), reset: make(chan struct{}),
		latency: func() time.Duration { return 0 }, lose: func(*http.Request) (bool, bool) { return false, false },
	}
}

// set changes the state. Connections are closed when the link becomes refused, and stay otherwise.
func (l *link) set(s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == s {
		return
	}
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
	if s == refused {
		l.closeConnections()
	}
}

// Reset closes all connections.
func (l *link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeConnections()
}

func (l *link) closeConnections() {
	close(l.reset)
	l.reset = make(chan struct{})
}

// connection returns the channel that is closed when a connection that begins now is closed.
func (l *link) connection() (closed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == refused {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return l.reset, nil
}

// pass waits until the link lets data through in a direction.
func (l *link) pass(ctx context.Context, closed <-chan struct{}, response bool) error {
	for {
		l.mu.Lock()
		blocked, changed := l.state == silent || response && l.state == mute, l.changed
		l.mu.Unlock()
		select {
		case <-closed:
			return errReset
		default:
		}
		if !blocked {
			return nil
		}
		select {
		case <-changed:
		case <-closed:
			return errReset
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// begin records a request that an informer may make.
func (l *link) begin(request *http.Request) {
	if request.Method == http.MethodGet {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.begun = time.Now()
	}
}

// isQuiet returns whether requests pass, and no informer has begun for a time.
func (l *link) isQuiet(quiet time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == open && time.Since(l.begun) > quiet
}

// isBlocked returns whether no response passes now.
func (l *link) isBlocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == silent || l.state == mute
}

var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

// delay waits, unless the request ends before.
func delay(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// isDiscovery returns whether a request is for the documents that a REST mapper reads. It holds a mutex meanwhile, and virtual time does
// not pass while a goroutine waits for a mutex: such a request takes no time.
func isDiscovery(request *http.Request) bool {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	return parts[0] == "api" && len(parts) <= 2 || parts[0] == "apis" && len(parts) <= 3
}

// RoundTrip implements http.RoundTripper.
func (l *link) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	l.begin(request)
	defer l.begin(request)
	closed, err := l.connection()
	if err != nil {
		return nil, err
	}
	if l.await != nil {
		if err := l.await(ctx); err != nil {
			return nil, err
		}
	}
	if isDiscovery(request) {
		if l.isBlocked() {
			return nil, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}
		return l.server.RoundTrip(request)
	}
	if err := l.pass(ctx, closed, false); err != nil {
		return nil, err
	}
	if err := delay(ctx, l.latency()); err != nil {
		return nil, err
	}
	loseRequest, loseResponse := l.lose(request)
	if loseRequest {
		return nil, errReset
	}
	response, err := l.server.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if loseResponse {
		_ = response.Body.Close()
		return nil, errReset
	}
	if err := delay(ctx, l.latency()); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	if err := l.pass(ctx, closed, true); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	response.Body = &receivedBody{ReadCloser: response.Body, link: l, ctx: ctx, closed: closed}
	return response, nil
}

// receivedBody is the body of a response behind a link. That of a watch is read for as long as the watch lasts.
type receivedBody struct {
	io.ReadCloser
	link   *link
	ctx    context.Context //nolint:containedctx // that of the request, as in net/http
	closed <-chan struct{}
	once   sync.Once
}

// Read implements io.Reader. A connection that is closed ends a read that waits.
func (b *receivedBody) Read(p []byte) (int, error) {
	b.once.Do(func() {
		go func() {
			select {
			case <-b.closed:
				_ = b.Close()
			case <-b.ctx.Done():
			}
		}()
	})
	n, err := b.ReadCloser.Read(p)
	if n == 0 {
		select {
		case <-b.closed:
			return 0, errReset
		default:
			return 0, err
		}
	}
	if waiting := b.link.pass(b.ctx, b.closed, true); waiting != nil {
		return 0, waiting
	}
	return n, err
}
