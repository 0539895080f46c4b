package workload

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
)

// seen is a handler that counts what it is told.
type seen struct {
	mu    sync.Mutex
	adds  map[string]bool // by name: in the initial list?
	gone  map[string]bool
	times int
}

func newSeen() *seen { return &seen{adds: map[string]bool{}, gone: map[string]bool{}} }

func (s *seen) OnAdd(object any, isInInitialList bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adds[object.(*corev1.Node).Name] = isInInitialList
}

func (s *seen) OnUpdate(_, _ any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times++
}

func (s *seen) OnDelete(object any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[object.(*corev1.Node).Name] = true
}

func (s *seen) updates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}

func (s *seen) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	for name := range s.adds {
		if !s.gone[name] {
			names = append(names, name)
		}
	}
	return names
}

// counting counts the handlers that the informer itself has.
type counting struct {
	toolscache.SharedIndexInformer
	handlers int
}

func (c *counting) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	c.handlers++
	return c.SharedIndexInformer.AddEventHandlerWithOptions(handler, options)
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Early and late handlers get all present objects and all later changes, and the informer has one handler.
func TestHandlersShareAnInformer(t *testing.T) {
	g := NewWithT(t)
	source := fcache.NewFakeControllerSource()
	source.Add(nodeNamed("a"))
	informer := &counting{SharedIndexInformer: toolscache.NewSharedIndexInformer(source, &corev1.Node{}, 0, toolscache.Indexers{})}
	shared := &sharedInformer{listableInformer: informer}
	go informer.RunWithContext(t.Context())

	early, late := newSeen(), newSeen()
	registration, err := shared.AddEventHandlerWithOptions(early, toolscache.HandlerOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(registration.HasSynced).WithTimeout(time.Minute).Should(BeTrue())
	source.Add(nodeNamed("b"))
	g.Eventually(early.names).WithTimeout(time.Minute).Should(ConsistOf("a", "b"))

	again, err := shared.AddEventHandlerWithOptions(late, toolscache.HandlerOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.HasSynced()).To(BeTrue())
	g.Expect(late.names()).To(ConsistOf("a", "b"), "the handler gets present objects before the call returns")
	g.Expect(late.adds).To(HaveEach(BeTrue()), "as an initial list")

	source.Add(nodeNamed("c"))
	source.Delete(nodeNamed("a"))
	for _, handler := range []*seen{early, late} {
		g.Eventually(handler.names).WithTimeout(time.Minute).Should(ConsistOf("b", "c"))
	}
	g.Expect(informer.handlers).To(Equal(1))
}

// Handlers that are added while objects are created miss none of them.
func TestLateHandlersMissNothing(t *testing.T) {
	g := NewWithT(t)
	source := fcache.NewFakeControllerSource()
	informer := toolscache.NewSharedIndexInformer(source, &corev1.Node{}, 0, toolscache.Indexers{})
	shared := &sharedInformer{listableInformer: informer}
	go informer.RunWithContext(t.Context())
	var handlers []*seen
	for i := range 20 {
		source.Add(nodeNamed(fmt.Sprintf("n%d", i)))
		handler := newSeen()
		_, err := shared.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		handlers = append(handlers, handler)
	}
	source.Add(nodeNamed("last"))
	for _, handler := range handlers {
		g.Eventually(handler.names).WithTimeout(time.Minute).Should(ContainElement("last"))
	}
	for _, handler := range handlers {
		g.Expect(handler.names()).To(HaveLen(21))
	}
}

// waiting is a handler that waits, as one does that reads from an informer without a first list.
type waiting struct {
	*seen
	begun chan<- struct{}
	until <-chan struct{}
}

func (w waiting) OnAdd(object any, isInInitialList bool) {
	close(w.begun)
	<-w.until
	w.seen.OnAdd(object, isInInitialList)
}

func TestHandlerThatWaits(t *testing.T) {
	t.Run("R80: a handler that waits while it is added delays no event of the others", func(t *testing.T) {
		g := NewWithT(t)
		source := fcache.NewFakeControllerSource()
		source.Add(nodeNamed("a"))
		informer := toolscache.NewSharedIndexInformer(source, &corev1.Node{}, 0, toolscache.Indexers{})
		shared := &sharedInformer{listableInformer: informer}
		go informer.RunWithContext(t.Context())
		early, begun, until := newSeen(), make(chan struct{}), make(chan struct{})
		_, err := shared.AddEventHandlerWithOptions(early, toolscache.HandlerOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(early.names).WithTimeout(time.Minute).Should(ConsistOf("a"))
		late, added := waiting{newSeen(), begun, until}, make(chan error)
		go func() {
			_, err := shared.AddEventHandlerWithOptions(late, toolscache.HandlerOptions{})
			added <- err
		}()
		<-begun
		source.Modify(nodeNamed("a"))
		g.Eventually(early.updates).WithTimeout(time.Minute).Should(Equal(1))
		close(until)
		g.Expect(<-added).To(Succeed())
		g.Expect(late.names()).To(ConsistOf("a"))
	})
}

// A new connection does not share informers with the previous one.
func TestConnectionsShareNothing(t *testing.T) {
	g := NewWithT(t)
	informers := newSharedInformers()
	cluster := Request{}.Cluster
	first, second := ctrlcache.Cache(&sharingCache{}), ctrlcache.Cache(&sharingCache{})
	before := informers.cacheOf(cluster, first)
	g.Expect(informers.cacheOf(cluster, first)).To(BeIdenticalTo(before))
	g.Expect(informers.cacheOf(cluster, second)).NotTo(BeIdenticalTo(before))
	informers.remove(cluster)
	g.Expect(informers.caches).To(BeEmpty())
}
