package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestLateEventsOfAStoppedWatch(t *testing.T) {
	g := NewWithT(t)
	informer := func() cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	}
	former, present := informer(), informer()
	w := &drainWatch{
		notify: func(Change) {}, nodes: map[string]*nodePods{"one": {informer: present, known: sets.New[types.UID]()}}, byUID: map[types.UID]*corev1.Pod{},
	}
	deleted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "deleted", UID: "deleted"}}
	w.podChanged(PodChanged, "one", former, deleted)
	g.Expect(w.byUID).To(BeEmpty(), "no event of the present watch would remove the Pod")
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "running", UID: "running"}}
	w.podChanged(PodChanged, "one", present, running)
	w.podChanged(PodDeleted, "one", former, running)
	g.Expect(w.byUID).To(HaveKey(running.UID))
}

// newWatchOf returns a drain watch of many Nodes, each with the same number of Pods.
func newWatchOf(nodes, podsOnEach int) *drainWatch {
	w := &drainWatch{
		notify: func(Change) {}, nodes: map[string]*nodePods{}, byUID: map[types.UID]*corev1.Pod{},
		needs: map[string]sets.Set[string]{"owner": sets.New[string]()}, neededBy: map[string]sets.Set[string]{}, settled: sets.New[string](),
	}
	for i := range nodes {
		node, informer := fmt.Sprint("node-", i), cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
		w.nodes[node] = &nodePods{informer: informer, stop: func() {}, known: sets.New[types.UID]()}
		w.neededBy[node] = sets.New("owner")
		w.needs["owner"].Insert(node)
		for j := range podsOnEach {
			uid := types.UID(fmt.Sprint(i, "-", j))
			w.podChanged(PodChanged, node, informer, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}, Spec: corev1.PodSpec{NodeName: node}})
		}
	}
	return w
}

func TestReleasedNodes(t *testing.T) {
	t.Run("E37: the Pods of a Node that no owner needs are forgotten, and no others", func(t *testing.T) {
		g, w := NewWithT(t), newWatchOf(3, 2)
		g.Expect(w.byUID).To(HaveLen(6))
		w.podChanged(PodDeleted, "node-2", w.nodes["node-2"].informer, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "2-1"}})
		w.mu.Lock()
		w.releaseNodes("owner", sets.New("node-0"))
		w.mu.Unlock()
		g.Expect(slices.Collect(maps.Keys(w.byUID))).To(ConsistOf(types.UID("1-0"), types.UID("1-1"), types.UID("2-0")))
		g.Expect(w.release("owner")).To(BeTrue())
		g.Expect(w.byUID).To(BeEmpty())
	})
}

func TestPodsInAnOutage(t *testing.T) {
	t.Run("M139: when contact is lost, the Pods that were observed are unknown until they are listed again", func(t *testing.T) {
		g, w := NewWithT(t), newWatchOf(1, 2)
		w.settled.Insert("node-0")
		cluster, c := types.NamespacedName{Namespace: "default", Name: "c"}, NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
		c.watches[cluster] = &connectedWatch{drainWatch: w}
		_, known := w.PodsOn("node-0")
		g.Expect(known).To(BeTrue())
		c.ContactLost(cluster)
		_, known = w.PodsOn("node-0")
		g.Expect(known).To(BeFalse())
		_, found := w.PodByUID("0-1")
		g.Expect(found).To(BeFalse())
	})
	t.Run("E83: the Pods of a watch that was stopped are not observed", func(t *testing.T) {
		g, w := NewWithT(t), newWatchOf(1, 2)
		w.settled.Insert("node-0")
		cluster, c := types.NamespacedName{Namespace: "default", Name: "c"}, NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
		w.stop, w.observedBudgets = func() {}, newObservedBudgets(nil, clock.RealClock{})
		c.watches[cluster] = &connectedWatch{drainWatch: w}
		informer, late := w.nodes["node-0"].informer, w.byUID["0-1"]
		c.Disconnect(cluster)
		w.podChanged(PodChanged, "node-0", informer, late)
		_, known := w.PodsOn("node-0")
		g.Expect(known).To(BeFalse())
		_, found := w.PodByUID("0-1")
		g.Expect(found).To(BeFalse())
	})
	t.Run("M139: lost contact is found, and the Pods are listed again when health probes are answered, also without a drain of a Machine", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			remote := &connections{config: unanswered()}
			c := NewClusters(fakes.Client(), remote, fakes.Scheme(), Limits{}, clock.RealClock{})
			before, err := c.Observe(t.Context(), clusterA, "user", "one")
			g.Expect(err).NotTo(HaveOccurred())
			remote.failures.Store(1)
			time.Sleep(time.Minute)
			synctest.Wait()
			g.Expect(c.CurrentObservation(clusterA)).To(BeIdenticalTo(before))
			remote.failures.Store(0)
			time.Sleep(2 * lostInterval)
			g.Expect(c.CurrentObservation(clusterA)).To(BeNil(), "the owner is told to call Observe again")
			time.Sleep(2 * budgetsKept)
		})
	})
}

func TestDaemonSetsThatAreNotInTheCache(t *testing.T) {
	g := NewWithT(t)
	changed := make(chan any, 10)
	answers := map[string]chan types.UID{"agent": make(chan types.UID), "deleted": make(chan types.UID), "recreated": make(chan types.UID)}
	source := cachetesting.NewFakeControllerSource()
	w := &drainWatch{daemonSets: cache.NewSharedIndexInformer(source, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})}
	w.absences = newAbsences(t.Context(), func(_ context.Context, daemonSet types.NamespacedName) (types.UID, error) {
		if uid := <-answers[daemonSet.Name]; uid != "unreadable" {
			return uid, nil
		}
		return "", errors.New("overloaded")
	}, func() { changed <- nil })
	go w.daemonSets.RunWithContext(t.Context())
	state := func(name string) string {
		exists, known := w.DaemonSetExists("ns", name, types.UID("uid-of-"+name))
		return fmt.Sprintf("exists: %t, known: %t", exists, known)
	}
	const unknown, absent, present = "exists: false, known: false", "exists: false, known: true", "exists: true, known: true"
	g.Expect(state("agent")).To(Equal(unknown), "before the first list")
	g.Eventually(w.daemonSets.HasSynced).WithTimeout(time.Minute).Should(BeTrue())

	g.Expect(state("agent")).To(Equal(unknown), "E66: the watch may not have delivered it yet")
	answers["agent"] <- "uid-of-agent"
	g.Eventually(changed).WithTimeout(time.Minute).Should(Receive(), "to ask again")
	g.Expect(state("agent")).To(Equal(unknown), "E66: it exists")
	answers["agent"] <- "unreadable"
	g.Eventually(changed).WithTimeout(time.Minute).Should(Receive(), "to ask again")
	g.Expect(state("agent")).To(Equal(unknown), "E66: it could not be read")
	source.Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", UID: "uid-of-agent"}})
	g.Eventually(func() string { return state("agent") }).WithTimeout(time.Minute).Should(Equal(present))

	for former, answer := range map[string]types.UID{"deleted": "", "recreated": "another"} {
		g.Expect(state(former)).To(Equal(unknown))
		answers[former] <- answer
		g.Eventually(changed).WithTimeout(time.Minute).Should(Receive())
		g.Expect(state(former)).To(Equal(absent), "M8: the API server says that it no longer exists: %s", former)
	}
}

func TestTrimBudget(t *testing.T) {
	t.Run("E37: keeps of a PodDisruptionBudget what decisions need", func(t *testing.T) {
		g := NewWithT(t)
		identity := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", ResourceVersion: "10", Generation: 2}
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: identity, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}
		budget.Status.DisruptedPods = map[string]metav1.Time{"pod": metav1.Now()}
		budget.Status.Conditions = []metav1.Condition{{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Message: strings.Repeat("x", 511) + "…",
		}}
		kept := budget.DeepCopy()
		budget.Status.Conditions[0].Message = strings.Repeat("x", 32_000)
		budget.Annotations, budget.Labels = map[string]string{"large": strings.Repeat("x", 200_000)}, map[string]string{"l": "1"}
		budget.OwnerReferences, budget.Finalizers = make([]metav1.OwnerReference, 1000), make([]string, 1000)
		budget.Status.Conditions = append(make([]metav1.Condition, 1000), budget.Status.Conditions...)
		trimmed, err := trimBudget(budget)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(trimmed).To(Equal(kept))
	})
}

func TestUpdatesThatAffectDecisions(t *testing.T) {
	object := func(change func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: "one", UID: "uid", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
		}}
		change(m)
		return m
	}
	annotated := object(func(m *metav1.PartialObjectMetadata) { m.Annotations["a"] = "2" })
	labelled := object(func(m *metav1.PartialObjectMetadata) { m.Labels["l"] = "2" })
	recreated := object(func(m *metav1.PartialObjectMetadata) { m.UID = "another" })
	for name, tc := range map[string]struct {
		watch   sharedWatch
		updates []*metav1.PartialObjectMetadata
		changes int
		labels  map[string]string
	}{
		"E51: an annotation of a Namespace does not": {
			sharedWatch{trim: trimNamespace, affects: labelsChanged}, []*metav1.PartialObjectMetadata{annotated}, 0, annotated.Labels,
		},
		"E51: a label of a Namespace does": {
			sharedWatch{trim: trimNamespace, affects: labelsChanged}, []*metav1.PartialObjectMetadata{annotated, labelled}, 1, labelled.Labels,
		},
		"E51: labels and annotations of a DaemonSet do not": {
			sharedWatch{trim: trimDaemonSet, affects: identityChanged}, []*metav1.PartialObjectMetadata{annotated, labelled}, 0, nil,
		},
		"E51: a DaemonSet that was recreated with its name does": {
			sharedWatch{trim: trimDaemonSet, affects: identityChanged}, []*metav1.PartialObjectMetadata{annotated, recreated}, 1, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, source, changes := NewWithT(t), cachetesting.NewFakeControllerSource(), make(chan any, 10)
			source.Add(object(func(*metav1.PartialObjectMetadata) {}))
			tc.watch.informer = cache.NewSharedIndexInformer(source, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
			listed := make(chan any, 10)
			tc.watch.listed, tc.watch.changed = func(object any) { listed <- object }, func(object any) { changes <- object }
			_, err := tc.watch.addHandler()
			g.Expect(err).NotTo(HaveOccurred())
			go tc.watch.informer.RunWithContext(t.Context())
			g.Eventually(listed).WithTimeout(time.Minute).Should(Receive(), "the first list")
			for _, update := range tc.updates {
				source.Modify(update.DeepCopy())
			}
			last := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "last"}}
			source.Add(last)
			for range tc.changes {
				g.Eventually(changes).WithTimeout(time.Minute).Should(Receive(HaveField("Name", "one")))
			}
			g.Eventually(changes).WithTimeout(time.Minute).Should(Receive(HaveField("Name", "last")))
			kept, _, err := tc.watch.informer.GetStore().GetByKey("one")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kept.(*metav1.PartialObjectMetadata).Annotations).To(BeEmpty())
			g.Expect(maps.Equal(kept.(*metav1.PartialObjectMetadata).Labels, tc.labels)).To(BeTrue())
		})
	}
}

// A Pod of a StatefulSet whose volume is local, or a mirror Pod, is recreated on the same Node with the same name. If the watch was
// interrupted meanwhile, the informer delivers that as an update of one object.
func TestPodRecreatedWhileTheWatchWasInterrupted(t *testing.T) {
	t.Run("E35: a Pod that was replaced by one of the same name does not exist any more", func(t *testing.T) {
		g := NewWithT(t)
		var lists, watches atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			switch {
			case query.Has("sendInitialEvents"):
				http.Error(w, "the client falls back to a list", http.StatusBadRequest)
			case r.URL.Path != "/api/v1/pods", query.Has("watch") && watches.Add(1) > 1:
				<-r.Context().Done()
			case query.Has("watch"): // the API server has restarted
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`)
			default:
				n := lists.Add(1)
				pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0", UID: "former", ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "one"}}
				if n > 1 {
					pod.UID, pod.ResourceVersion = "present", "3"
				}
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(&corev1.PodList{
					TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: pod.ResourceVersion}, Items: []corev1.Pod{pod},
				})
			}
		}))
		t.Cleanup(server.Close)
		var mu sync.Mutex
		var deleted []types.UID
		w, err := newDrainWatch(types.NamespacedName{Namespace: "fleet", Name: "c"},
			&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}, func(change Change) {
				mu.Lock()
				defer mu.Unlock()
				if change.Type == PodDeleted {
					deleted = append(deleted, change.Pod.UID)
				}
			}, clock.RealClock{}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(w.stop)
		g.Expect(w.observe("owner", []string{"one"})).To(Succeed())
		g.Eventually(func() bool {
			_, found := w.PodByUID("present")
			return found
		}).WithTimeout(time.Minute).Should(BeTrue())
		pods, _ := w.PodsOn("one")
		g.Expect(pods).To(HaveLen(1))
		_, found := w.PodByUID("former")
		g.Expect(found).To(BeFalse(), "its Evacuation never ends, and it is evicted again every 30 s")
		mu.Lock()
		defer mu.Unlock()
		g.Expect(deleted).To(ConsistOf(types.UID("former")), "no other event reconciles its Evacuation")
	})
}

// roundTrip answers requests without a server.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func TestRequestsOfADrainWatchEnd(t *testing.T) {
	t.Run("M57: a list or watch that gets no answer, while health probes do, ends and is repeated", func(t *testing.T) {
		g := NewWithT(t)
		var mu sync.Mutex
		unlimited, limited := sets.New[string](), sets.New[string]()
		config := &rest.Config{Host: "https://c.example.com", Timeout: 10 * time.Second}
		config.Wrap(func(http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				if _, ends := r.Context().Deadline(); ends {
					limited.Insert(r.URL.Path)
				} else {
					unlimited.Insert(r.URL.Path)
				}
				return nil, errors.New("not served")
			})
		})
		w, err := newDrainWatch(types.NamespacedName{Namespace: "fleet", Name: "c"}, config, func(Change) {}, clock.RealClock{}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(w.stop)
		g.Expect(w.observe("owner", []string{"one"})).To(Succeed())
		g.Expect(w.ensureAttachments("owner", "one")).To(Succeed())
		g.Eventually(func() int {
			mu.Lock()
			defer mu.Unlock()
			return unlimited.Union(limited).Len()
		}).WithTimeout(time.Minute).Should(Equal(5))
		mu.Lock()
		defer mu.Unlock()
		g.Expect(unlimited).To(BeEmpty(), "the drain waits for ever for the Pods, budgets or volumes")
	})
}
