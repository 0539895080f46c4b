package expectations

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

func TestMemory(t *testing.T) {
	cluster := types.NamespacedName{Namespace: "fleet", Name: "a"}
	node := func(uid int, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: types.UID(fmt.Sprint(uid)), ResourceVersion: version}}
	}

	t.Run("M101: removes what the watch never delivers, also if it is not looked up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, nodes := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels)
			for uid := range 1000 {
				nodes.RecordWritten(cluster, node(uid, "10"))
			}
			g.Expect(nodes.entries.Len()).To(Equal(1000))
			time.Sleep(TTL + time.Minute)
			g.Expect(nodes.entries.Len()).To(BeZero())
		})
	})

	t.Run("M101: keeps a written object only until the watch delivers its version, a later one or its deletion", func(t *testing.T) {
		for name, tc := range map[string]struct {
			deliver func(nodes *Objects[*corev1.Node])
			kept    bool
		}{
			"an older version":    {func(nodes *Objects[*corev1.Node]) { nodes.Observe(cluster, node(1, "9")) }, true},
			"another object":      {func(nodes *Objects[*corev1.Node]) { nodes.Observe(cluster, node(2, "10")) }, true},
			"the written version": {func(nodes *Objects[*corev1.Node]) { nodes.Observe(cluster, node(1, "10")) }, false},
			"a later version":     {func(nodes *Objects[*corev1.Node]) { nodes.Observe(cluster, node(1, "11")) }, false},
			"the deletion":        {func(nodes *Objects[*corev1.Node]) { nodes.ObserveDeleted(cluster, node(1, "9")) }, false},
			"a later version and then an older one": {func(nodes *Objects[*corev1.Node]) {
				nodes.Observe(cluster, node(1, "11"))
				nodes.Observe(cluster, node(1, "9"))
			}, false},
		} {
			for _, order := range []string{"after the response to the write", "before the response"} {
				t.Run(name+" "+order, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						g, nodes := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels)
						write := func() { nodes.RecordWritten(cluster, node(1, "10")) }
						if order == "before the response" {
							tc.deliver(nodes)
							write()
						} else {
							write()
							tc.deliver(nodes)
						}
						latest, _ := nodes.Latest(cluster, node(1, "9"))
						g.Expect(latest.ResourceVersion).To(Equal("10"), "a reconciliation may have read the object before the event")
						time.Sleep(time.Minute)
						latest, _ = nodes.Latest(cluster, node(1, "9"))
						if tc.kept {
							g.Expect(latest.ResourceVersion).To(Equal("10"))
						} else {
							g.Expect(latest.ResourceVersion).To(Equal("9"))
							g.Expect(nodes.entries.Len()).To(BeZero())
						}
					})
				})
			}
		}
	})

	t.Run("M101: keeps a deletion until the watch delivers it, not until it delivers the version that was deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, nodes := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels)
			nodes.RecordDeleted(cluster, node(1, "8"))
			nodes.Observe(cluster, node(1, "8"))
			time.Sleep(time.Minute)
			_, deleted := nodes.Latest(cluster, node(1, "8"))
			g.Expect(deleted).To(BeTrue())
			nodes.ObserveDeleted(cluster, node(1, "8"))
			time.Sleep(time.Minute)
			g.Expect(nodes.entries.Len()).To(BeZero())
		})
	})

	t.Run("E37: does not keep an object that a tenant has made large", func(t *testing.T) {
		g, nodes := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels)
		nodes.RecordWritten(cluster, node(1, "9"))
		large := node(1, "10")
		for i := range 1000 {
			large.Finalizers = append(large.Finalizers, fmt.Sprintf("example.com/%0100d", i))
		}
		nodes.RecordWritten(cluster, large)
		kept, _ := nodes.entries.Get(cluster, "1")
		g.Expect(kept.object).To(BeNil())
		latest, _ := nodes.Latest(cluster, node(1, "8"))
		g.Expect(latest.ResourceVersion).To(Equal("8"))
	})

	t.Run("E37: the number of objects that a tenant creates and deletes does not matter", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, nodes := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels)
			most := 0
			for uid := range 10 * 60 * 10 { // ten a second, for ten minutes
				nodes.RecordWritten(cluster, node(uid, "10"))
				nodes.ObserveDeleted(cluster, node(uid, "11"))
				most = max(most, nodes.entries.Len())
				time.Sleep(100 * time.Millisecond)
			}
			g.Expect(most).To(BeNumerically("<=", 300))
		})
	})

	t.Run("R73: drops what was written to an object when its versions go back, because the API server was restored from a backup", func(t *testing.T) {
		g, nodes := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels)
		nodes.RecordWritten(cluster, node(1, "12"))
		observing := Observing(nodes, cluster, handler.TypedEventHandler[*corev1.Node, string](handler.TypedFuncs[*corev1.Node, string]{}))
		observing.Update(t.Context(), event.TypedUpdateEvent[*corev1.Node]{ObjectOld: node(1, "10"), ObjectNew: node(1, "11")}, nil)
		latest, _ := nodes.Latest(cluster, node(1, "11"))
		g.Expect(latest.ResourceVersion).To(Equal("12"))
		observing.Update(t.Context(), event.TypedUpdateEvent[*corev1.Node]{ObjectOld: node(1, "11"), ObjectNew: node(1, "5")}, nil)
		latest, _ = nodes.Latest(cluster, node(1, "5"))
		g.Expect(latest.ResourceVersion).To(Equal("5"))
		nodes.RecordWritten(cluster, node(1, "6"))
		latest, _ = nodes.Latest(cluster, node(1, "5"))
		g.Expect(latest.ResourceVersion).To(Equal("6"))
	})

	t.Run("M101: observes the events of a watch, and passes them on", func(t *testing.T) {
		g, nodes, passed := NewWithT(t), New[*corev1.Node](t.Context(), withoutLabels), 0
		next := handler.TypedFuncs[*corev1.Node, string]{
			CreateFunc: func(context.Context, event.TypedCreateEvent[*corev1.Node], workqueue.TypedRateLimitingInterface[string]) {
				passed++
			},
			UpdateFunc: func(context.Context, event.TypedUpdateEvent[*corev1.Node], workqueue.TypedRateLimitingInterface[string]) {
				passed++
			},
			DeleteFunc: func(context.Context, event.TypedDeleteEvent[*corev1.Node], workqueue.TypedRateLimitingInterface[string]) {
				passed++
			},
		}
		observing := Observing(nodes, cluster, handler.TypedEventHandler[*corev1.Node, string](next))
		observing.Create(t.Context(), event.TypedCreateEvent[*corev1.Node]{Object: node(1, "1")}, nil)
		observing.Update(t.Context(), event.TypedUpdateEvent[*corev1.Node]{ObjectOld: node(2, "1"), ObjectNew: node(2, "2")}, nil)
		observing.Delete(t.Context(), event.TypedDeleteEvent[*corev1.Node]{Object: node(3, "3")}, nil)
		g.Expect(passed).To(Equal(3))
		for uid, version := range map[types.UID]string{"1": "1", "2": "2"} {
			known, _ := nodes.entries.Get(cluster, uid)
			g.Expect(known.delivered).To(Equal(version))
		}
		deleted, _ := nodes.entries.Get(cluster, "3")
		g.Expect(deleted.gone).To(BeTrue())
	})
}
