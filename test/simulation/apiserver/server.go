// Package apiserver stands for the kube-apiserver and etcd of a cluster in a simulation. It serves the Kubernetes API from memory, over an
// http.RoundTripper or to a direct client, with the semantics that controllers depend on: resourceVersions and conflicts, generations,
// subresources, finalizers, graceful deletion, evictions and their budgets, patches and applies, watches that resume or expire, and
// CustomResourceDefinitions with defaults. It also collects garbage, as kube-controller-manager does. TestSameAsAPIServer compares it with
// a real API server.
//
// All of it works inside a bubble of testing/synctest: it blocks only on channels and timers that it creates when it is called.
//
// It approximates or omits what this project does not depend on:
//
//   - There is no authentication, authorization or flow control. The user is the one of the request's headers.
//   - Webhooks and admission policies are stored, but not called.
//   - Little is validated: names, UIDs, resourceVersions and finalizers. Neither schemas nor immutable fields are checked, and unknown
//     fields are not pruned from custom resources that have no Go type.
//   - There is no ownership of fields: an apply never conflicts. Only from custom resources, it removes what the same manager applied
//     before and does not apply any more.
//   - A CustomResourceDefinition is served in one version, without conversion. Built-in kinds get only the defaults that controllers need.
//   - A list returns all present objects: limit, continue and resourceVersion are ignored. Watches send a bookmark only after their initial
//     events, and the history is compacted only by BreakWatches.
//   - Garbage collection is always in the background: propagation policies are ignored.
//   - A namespaced object needs no Namespace, and the deletion of a Namespace deletes nothing in it.
//   - There is no OpenAPI document, no aggregated discovery, and no table format.
package apiserver

import (
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// Options are the options of New.
type Options struct {
	// Name is the host name in URLs.
	Name string
	// Scheme has the kinds that are stored as Go types. Objects of other kinds are stored as unstructured.
	Scheme *runtime.Scheme
	// Random is the source of UIDs and of the names that are generated.
	Random *rand.Rand
}

// Request describes one HTTP request. Verb is that of the audit log (get, list, watch, create, update, patch, delete,
// deletecollection). Name is empty for a creation, also if the object has a name.
type Request struct {
	User, UserAgent, Verb, Group, Version, Resource, Subresource, Namespace, Name string
}

// Change is one stored write. Old is nil for a creation, New is nil for a removal. The objects are shared: read only.
type Change struct {
	Revision int64
	// Key of the object as in etcd, such as /registry/pods/default/web.
	Key      string
	Old, New client.Object
}

// Server is an API server with its store.
type Server struct {
	name     string
	scheme   *runtime.Scheme
	clockOff atomic.Int64 // see SetClock

	// mu is never held while anything blocks, and no hook but watchDelay is called with it. It protects all that follows.
	mu sync.Mutex

	refuse     func(Request) error
	watchDelay func(Request) time.Duration
	onChange   []func(Change)

	random    *rand.Rand
	revision  int64
	expired   int64 // watches cannot resume from older revisions
	resources map[schema.GroupVersionResource]*resource
	owners    map[types.UID]bool // of all objects
	applied   map[appliedKey]map[string]any
	pending   []Change // not yet passed to onChange
	notifying bool
	audit     controlplane.Events
	decoded   int         // how many events of audit have their body as JSON, instead of as it was sent
	collector *time.Timer // runs if garbage collection is due
}

// New returns a server that stores nothing.
func New(options Options) *Server {
	s := &Server{
		name:       options.Name,
		scheme:     options.Scheme,
		random:     options.Random,
		refuse:     func(Request) error { return nil },
		watchDelay: func(Request) time.Duration { return 0 },
		resources:  map[schema.GroupVersionResource]*resource{},
		owners:     map[types.UID]bool{},
		applied:    map[appliedKey]map[string]any{},
	}
	s.addBuiltIns()
	return s
}

// SetRefusal sets the function that is called with each HTTP request. If it returns an error with a status (apierrors.APIStatus), the
// request is not carried out, and the error is its response.
func (s *Server) SetRefusal(refuse func(Request) error) { set(s, &s.refuse, refuse) }

// SetWatchDelay sets how late each event of a watch over HTTP is delivered; the order within one watch is kept. The function is called
// while the server is locked: it must not call the server.
func (s *Server) SetWatchDelay(delay func(Request) time.Duration) { set(s, &s.watchDelay, delay) }

// set and get access a hook, which may be exchanged while the server is in use.
func set[T any](s *Server, hook *T, value T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*hook = value
}

func get[T any](s *Server, hook *T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *hook
}

// SetClock steps the clock of the server, which is ahead by an offset then, or behind if it is negative. It sets times in objects by this
// clock.
func (s *Server) SetClock(offset time.Duration) { s.clockOff.Store(int64(offset)) }

// OnChange adds a function that is called after each write, outside of the server's lock, in the order of revisions. A write that the
// function causes itself, or that happens meanwhile on another goroutine, returns before the functions have been called for it.
func (s *Server) OnChange(f func(Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = append(s.onChange, f)
}

// notify passes the pending changes to the functions of OnChange.
func (s *Server) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notifying {
		return
	}
	s.notifying = true
	for len(s.pending) > 0 {
		changes, functions := s.pending, s.onChange
		s.pending = nil
		s.mu.Unlock()
		for _, change := range changes {
			for _, f := range functions {
				f(change)
			}
		}
		s.mu.Lock()
	}
	s.notifying = false
}

// Transport serves HTTP requests, as the kube-apiserver does.
func (s *Server) Transport() http.RoundTripper { return transport{s} }

// Client returns a client that reads and writes the store directly: no HTTP, no faults, no JSON for typed Get, List, Create and Update. Its
// objects are deep copies.
func (s *Server) Client(user string) client.WithWatch { return &directClient{s, user} }

// Audit returns the requests that were served over HTTP, in the order of their responses. A lost response has its real code, and a request
// that was lost is not included. The events are shared: read only.
func (s *Server) Audit() controlplane.Events {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s.decoded < len(s.audit); s.decoded++ {
		event := &s.audit[s.decoded]
		event.RequestObject = s.bodyJSON(event.RequestObject)
	}
	return slices.Clip(s.audit)
}

// newUID returns a random UID.
func (s *Server) newUID() types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var id uuid.UUID
	binary.LittleEndian.PutUint64(id[:], s.random.Uint64())
	binary.LittleEndian.PutUint64(id[8:], s.random.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return types.UID(id.String())
}

// generateName returns a name with a random suffix.
func (s *Server) generateName(prefix string) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	s.mu.Lock()
	defer s.mu.Unlock()
	suffix := make([]byte, 5)
	for i := range suffix {
		suffix[i] = alphabet[s.random.IntN(len(alphabet))]
	}
	return prefix + string(suffix)
}
