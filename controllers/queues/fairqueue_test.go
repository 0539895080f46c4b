package queues

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

// workloads is a reconciler whose requests hang in some clusters until they are released.
type workloads struct {
	hanging  sets.Set[string]
	released chan struct{}

	mu      sync.Mutex
	begun   map[string]int // requests, by cluster
	ended   map[string]int
	running map[workload.Request]bool
	twice   []workload.Request // reconciled by two workers at the same time
}

func (w *workloads) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	name := request.Cluster.Name
	w.mu.Lock()
	if w.running[request] {
		w.twice = append(w.twice, request)
	}
	w.running[request] = true
	w.begun[name]++
	w.mu.Unlock()
	if w.hanging.Has(name) {
		select {
		case <-w.released:
		case <-ctx.Done():
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, request)
	w.ended[name]++
	return reconcile.Result{}, nil
}

func (w *workloads) counts(name string) (begun, ended int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun[name], w.ended[name]
}

// fataler is a test, or a property of one.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// startFair runs a controller with a fair queue until the test ends. enqueue adds requests to its queue.
func startFair(t fataler, workers int, hanging ...string) (served *workloads, enqueue func(cluster string, objects ...int), stop func()) {
	t.Helper()
	served = &workloads{
		hanging: sets.New(hanging...), released: make(chan struct{}), begun: map[string]int{}, ended: map[string]int{}, running: map[workload.Request]bool{},
	}
	options := FairOptions(workers, workload.ClusterOf)
	options.Reconciler, options.SkipNameValidation = served, ptr.To(true)
	fair, err := controller.NewTypedUnmanaged("fair", options)
	if err != nil {
		t.Fatal(err)
	}
	queues := make(chan workload.Queue, 1)
	if err := fair.Watch(source.TypedFunc[workload.Request](func(_ context.Context, queue workload.Queue) error { queues <- queue; return nil })); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fair.Start(ctx) }()
	queue := <-queues
	enqueue = func(cluster string, objects ...int) {
		for _, object := range objects {
			queue.Add(workload.Request{Cluster: types.NamespacedName{Name: cluster}, Object: types.NamespacedName{Name: fmt.Sprint(object)}})
		}
	}
	return served, enqueue, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

func upTo(n int) []int {
	objects := make([]int, n)
	for i := range objects {
		objects[i] = i
	}
	return objects
}

const soon, pace = 20 * time.Second, time.Millisecond

func TestFairQueueLeavesWorkersToOtherClusters(t *testing.T) {
	for _, test := range []struct {
		name    string
		workers int
		hanging []string
		share   int // of the workers, that each hanging cluster gets
	}{
		{"one hanging cluster gets half of the workers", 10, []string{"a"}, 5},
		{"two hanging clusters get a third each", 9, []string{"a", "b"}, 3},
		{"of two workers a hanging cluster gets one", 2, []string{"a"}, 1},
	} {
		t.Run("M40: "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			served, enqueue, stop := startFair(t, test.workers, test.hanging...)
			defer stop()
			for i := range 100 { // alternating, as when clusters become slow at the same time
				for _, name := range test.hanging {
					enqueue(name, i)
				}
			}
			enqueue("healthy", upTo(100)...)
			g.Eventually(func() int { _, ended := served.counts("healthy"); return ended }, soon, pace).Should(Equal(100))
			begun := func() (total int) {
				for _, name := range test.hanging {
					begun, ended := served.counts(name)
					g.Expect(ended).To(BeZero())
					total += begun
				}
				return total
			}
			g.Expect(begun()).To(BeNumerically("<", test.workers))
			if len(test.hanging) == 1 { // the worker of the last healthy request may not have taken its next one yet
				g.Eventually(begun, soon, pace).Should(Equal(test.share))
			}
			close(served.released)
			for _, name := range test.hanging {
				g.Eventually(func() int { _, ended := served.counts(name); return ended }, soon, pace).Should(Equal(100))
			}
		})
	}
}

func TestFairQueueHandsOutEveryRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		workers := rapid.IntRange(1, 8).Draw(t, "workers")
		served, enqueue, stop := startFair(t, workers, "a", "b")
		defer stop()
		added := map[string]sets.Set[int]{}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			cluster := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "cluster")
			object := rapid.IntRange(0, 12).Draw(t, "object")
			if added[cluster] == nil {
				added[cluster] = sets.New[int]()
			}
			added[cluster].Insert(object)
			enqueue(cluster, object)
		}
		close(served.released)
		for cluster, objects := range added {
			g.Eventually(func() int { _, ended := served.counts(cluster); return ended }, soon, pace).Should(BeNumerically(">=", objects.Len()))
		}
		served.mu.Lock()
		defer served.mu.Unlock()
		g.Expect(served.twice).To(BeEmpty())
	})
}

func TestFairQueueShutsDown(t *testing.T) {
	t.Run("M91: no worker blocks when the queue shuts down while requests are ready", func(t *testing.T) {
		const rounds, workers = 50, 20
		for round := range rounds {
			queue := FairOptions(workers, workload.ClusterOf).NewQueue(fmt.Sprintf("shutdown-%d", round), nil)
			var running sync.WaitGroup
			var begun atomic.Int64
			for worker := range workers {
				running.Go(func() {
					for i := 0; ; i++ {
						queue.Add(workload.Request{Cluster: types.NamespacedName{Name: fmt.Sprint(worker)}, Object: types.NamespacedName{Name: fmt.Sprint(i)}})
						request, shutdown := queue.Get()
						if shutdown {
							return
						}
						begun.Add(1)
						queue.Done(request)
					}
				})
			}
			g, ended := NewWithT(t), make(chan struct{})
			g.Eventually(begun.Load).WithTimeout(time.Minute).Should(BeNumerically(">", workers))
			queue.ShutDown()
			go func() {
				running.Wait()
				close(ended)
			}()
			g.Eventually(ended, time.Minute).Should(BeClosed(), "round %d", round)
		}
	})
}
