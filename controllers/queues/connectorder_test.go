package queues

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func requestOf(i int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("c%d", i)}}
}

// added is a queue that keeps the options of what is added to it.
type added struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	options map[reconcile.Request]priorityqueue.AddOpts
}

func (a *added) AddWithOpts(options priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, request := range requests {
		a.options[request] = options
	}
}

func TestConnectOrder(t *testing.T) {
	firstList := priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}
	t.Run("M64: connects to Clusters with deleted Machines at once, and spreads the others", func(t *testing.T) {
		g := NewWithT(t)
		inner := &added{options: map[reconcile.Request]priorityqueue.AddOpts{}}
		queue := newConnectQueue(inner, clock.RealClock{}, func() (sets.Set[types.NamespacedName], error) {
			return sets.New(requestOf(7).NamespacedName, requestOf(42).NamespacedName), nil
		})
		for i := range 100 {
			queue.AddWithOpts(firstList, requestOf(i))
		}
		var latest time.Duration
		for request, options := range inner.options {
			if request == requestOf(7) || request == requestOf(42) {
				g.Expect(options).To(Equal(priorityqueue.AddOpts{Priority: ptr.To(urgentPriority)}))
				continue
			}
			g.Expect(options.Priority).To(HaveValue(Equal(handler.LowPriority)))
			latest = max(latest, options.After)
		}
		g.Expect(latest).To(Equal(97 * time.Second / idleConnections))
		queue.AddWithOpts(priorityqueue.AddOpts{}, requestOf(99))
		g.Expect(inner.options[requestOf(99)]).To(BeZero(), "later events are not delayed")
	})
	t.Run("M64: connects in any order while Machines cannot be listed", func(t *testing.T) {
		g := NewWithT(t)
		inner := &added{options: map[reconcile.Request]priorityqueue.AddOpts{}}
		queue := newConnectQueue(inner, clock.RealClock{}, func() (sets.Set[types.NamespacedName], error) { return nil, errors.New("no answer") })
		queue.AddWithOpts(firstList, requestOf(1), requestOf(2))
		g.Expect(inner.options).To(HaveLen(2))
	})
	t.Run("M64: connects without delay where a Machine is deleted meanwhile", func(t *testing.T) {
		g := NewWithT(t)
		inner := &added{options: map[reconcile.Request]priorityqueue.AddOpts{}}
		order := &ConnectOrder{}
		order.ConnectNow(requestOf(1).NamespacedName) // the controller has not started: its survey finds the Machine
		order.queue = newConnectQueue(inner, clock.RealClock{}, nil)
		order.ConnectNow(requestOf(1).NamespacedName)
		g.Expect(inner.options).To(HaveKeyWithValue(requestOf(1), priorityqueue.AddOpts{Priority: ptr.To(urgentPriority)}))
	})
}
