package apiserver

import (
	"context"
	"io"
	"net"
	"slices"
	"sort"
	"strconv"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watchOptions are those of a watch request.
type watchOptions struct {
	selector        selector
	resourceVersion string
	initial         bool // sendInitialEvents: it ends with a bookmark
	direct          bool // without delays, and BreakWatches does not end it
	timeout         time.Duration
}

// delivery is an event of a watch at the time when it is delivered.
type delivery struct {
	due    time.Time
	event  watch.EventType
	object *version // nil for an error
	status *metav1.Status
}

// watcher is a watch, with the events that its client has not read yet. The server's lock protects it.
type watcher struct {
	server   *Server
	request  Request
	resource *resource
	options  watchOptions

	queue  []delivery
	err    error         // it has ended
	signal chan struct{} // something has changed
	timer  *time.Timer   // of its timeout, or nil
}

// watch starts a watch.
func (s *Server) watch(r Request, k *resource, options watchOptions) *watcher {
	w := &watcher{server: s, request: r, resource: k, options: options, signal: make(chan struct{}, 1)}
	if options.timeout > 0 {
		w.timer = time.NewTimer(options.timeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.ParseInt(options.resourceVersion, 10, 64)
	switch {
	case k.gone:
		w.err = io.EOF
	case from == 0 || options.initial:
		for _, v := range k.objects {
			if options.selector.matches(v) {
				w.queue = append(w.queue, delivery{event: watch.Added, object: v})
			}
		}
		if options.initial {
			w.queue = append(w.queue, delivery{event: watch.Bookmark, object: s.bookmark(k)})
		}
	case from < s.expired:
		status := apierrors.NewResourceExpired("too old resource version: " + options.resourceVersion +
			" (" + strconv.FormatInt(s.expired, 10) + ")").Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.queue, w.err = []delivery{{event: watch.Error, status: &status}}, io.EOF
	default:
		now := time.Now()
		for _, entry := range k.log[sort.Search(len(k.log), func(i int) bool { return k.log[i].revision > from }):] {
			w.offer(entry, now)
		}
	}
	if w.err == nil {
		k.watchers = append(k.watchers, w)
	}
	return w
}

// bookmark returns the object of the event that ends the initial events.
func (s *Server) bookmark(k *resource) *version {
	object := s.newObject(k)
	object.GetObjectKind().SetGroupVersionKind(k.gvk())
	object.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	object.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return &version{resource: k, object: object}
}

// offer queues the event that the watch delivers for a write, if there is one. The caller holds the server's lock.
func (w *watcher) offer(entry *logged, now time.Time) {
	matched := entry.old != nil && w.options.selector.matches(entry.old)
	matches := entry.new != nil && w.options.selector.matches(entry.new)
	next := delivery{due: now, object: entry.new}
	switch {
	case matched && matches:
		next.event = watch.Modified
	case matches:
		next.event = watch.Added
	case matched:
		next.event, next.object = watch.Deleted, entry.removed()
	default:
		return
	}
	if !w.options.direct {
		next.due = now.Add(w.server.watchDelay(w.request))
	}
	if n := len(w.queue); n > 0 && next.due.Before(w.queue[n-1].due) {
		next.due = w.queue[n-1].due
	}
	w.queue = append(w.queue, next)
	w.wake()
}

func (w *watcher) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// end ends the watch, with an error or io.EOF. The caller holds the server's lock.
func (w *watcher) end(err error) {
	if w.err == nil {
		w.err = err
	}
	w.resource.watchers = slices.DeleteFunc(w.resource.watchers, func(other *watcher) bool { return other == w })
	w.wake()
}

// stop ends the watch for its client.
func (w *watcher) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.end(io.EOF)
	w.queue = nil
}

// take waits for events, and returns those that are due. It fails if the watch has ended; io.EOF says that it has delivered all its events.
func (w *watcher) take(ctx context.Context) ([]delivery, error) {
	for {
		due, next, err := w.takeDue()
		if err != nil || len(due) > 0 {
			return due, err
		}
		if err := w.waitForChange(ctx, next); err != nil {
			return nil, err
		}
	}
}

// takeDue returns the events that are due. If there are none, it returns a timer for the next event, or nil if there is none in the queue.
func (w *watcher) takeDue() (due []delivery, next *time.Timer, err error) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	now, n := time.Now(), 0
	for n < len(w.queue) && !w.queue[n].due.After(now) {
		n++
	}
	due, w.queue = w.queue[:n:n], w.queue[n:]
	switch {
	case w.err != nil && w.err != io.EOF: //nolint:errorlint // as set by end
		return nil, nil, w.err
	case n > 0:
		return due, nil, nil
	case len(w.queue) > 0:
		return nil, time.NewTimer(w.queue[0].due.Sub(now)), nil
	}
	return nil, nil, w.err
}

// waitForChange waits until something has changed, or the next event is due. It fails with io.EOF at the timeout of the watch.
func (w *watcher) waitForChange(ctx context.Context, next *time.Timer) error {
	var later, timeout <-chan time.Time
	if next != nil {
		defer next.Stop()
		later = next.C
	}
	if w.timer != nil {
		timeout = w.timer.C
	}
	select {
	case <-w.signal:
		return nil
	case <-later:
		return nil
	case <-timeout:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// BreakWatches ends all watches over HTTP and lets them fail as if the network had reset the connections. With expire, watches that resume
// from older revisions fail with 410 Gone (Expired).
func (s *Server) BreakWatches(expire bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if expire {
		s.expired = s.revision
	}
	for _, k := range s.sorted() {
		for _, w := range slices.Clone(k.watchers) {
			if !w.options.direct {
				w.end(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET})
			}
		}
	}
}

// watchBody is the body of the response to a watch.
type watchBody struct {
	ctx     context.Context //nolint:containedctx // of the request
	watcher *watcher
	format  format
	buffer  []byte
}

func (b *watchBody) Read(p []byte) (int, error) {
	for len(b.buffer) == 0 {
		events, err := b.watcher.take(b.ctx)
		if err != nil && b.ctx.Err() != nil {
			err = io.EOF // not the error of the context: client-go would block forever to pass it on
		}
		if err != nil {
			return 0, err
		}
		for _, event := range events {
			if b.buffer, err = b.format.appendEvent(b.buffer, event); err != nil {
				return 0, err
			}
		}
	}
	n := copy(p, b.buffer)
	b.buffer = b.buffer[n:]
	return n, nil
}

func (b *watchBody) Close() error {
	b.watcher.stop()
	return nil
}
