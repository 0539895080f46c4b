package workload

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

var clusterA, clusterB = types.NamespacedName{Namespace: "fleet", Name: "a"}, types.NamespacedName{Namespace: "fleet", Name: "b"}

// changesTo counts the Changes of a type that subscribers receive.
func changesTo(clusters *Clusters, of ChangeType) *atomic.Int32 {
	count := &atomic.Int32{}
	clusters.Subscribe(func(change Change) {
		if change.Type == of {
			count.Add(1)
		}
	})
	return count
}

func TestFirstLists(t *testing.T) {
	t.Run("E61: the start of a drain watch affects all Pods once for each first list, however many Namespaces and DaemonSets there are", func(t *testing.T) {
		g := NewWithT(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("watch") {
				if r.URL.Query().Has("sendInitialEvents") {
					http.Error(w, "the client falls back to a list", http.StatusBadRequest)
					return
				}
				w.WriteHeader(http.StatusOK)
				<-r.Context().Done()
				return
			}
			list := &metav1.PartialObjectMetadataList{
				TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			}
			for i := range 500 {
				list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("object-", i)}})
			}
			if r.URL.Path == "/apis/policy/v1/poddisruptionbudgets" {
				list.TypeMeta, list.Items = metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudgetList"}, nil
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		}))
		var affected atomic.Int32
		w, err := newDrainWatch(clusterA, &rest.Config{Host: server.URL}, func(change Change) {
			if change.Type == AllPodsAffected {
				affected.Add(1)
			}
		}, clock.RealClock{}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		defer server.CloseClientConnections()
		defer w.stop()
		synced := func() bool { return w.budgets.HasSynced() && w.namespaces.HasSynced() && w.daemonSets.HasSynced() }
		g.Eventually(synced).WithTimeout(time.Minute).Should(BeTrue())
		g.Expect(w.namespaces.GetStore().ListKeys()).To(HaveLen(500))
		g.Eventually(affected.Load).WithTimeout(time.Minute).Should(BeNumerically(">=", 3))
		g.Consistently(affected.Load).WithTimeout(100 * time.Millisecond).Should(BeEquivalentTo(3))
	})
}

func TestBursts(t *testing.T) {
	t.Run("E61: a tenant that creates and deletes DaemonSets in a loop reconciles all evacuations once in five seconds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, clusters := NewWithT(t), NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
			affected := changesTo(clusters, AllPodsAffected)
			for range 60 * 50 { // a minute
				clusters.notify(Change{Cluster: clusterA, Type: AllPodsAffected})
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			g.Expect(affected.Load()).To(And(BeNumerically(">=", 12), BeNumerically("<=", 25)))
		})
	})

	t.Run("E61: a change after a quiet time affects all Pods at once, and the last one of a burst is never lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, clusters := NewWithT(t), NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
			affected := changesTo(clusters, AllPodsAffected)
			for burst := int32(1); burst <= 3; burst++ {
				before := affected.Load()
				clusters.notify(Change{Cluster: clusterA, Type: AllPodsAffected})
				time.Sleep(20 * time.Millisecond)
				g.Expect(affected.Load()).To(Equal(before + 1))
				for range 10 {
					clusters.notify(Change{Cluster: clusterA, Type: AllPodsAffected})
				}
				time.Sleep(20 * time.Millisecond)
				g.Expect(affected.Load()).To(Equal(before + 2))
				time.Sleep(time.Minute)
				g.Expect(affected.Load()).To(Equal(before + 2))
			}
			synctest.Wait()
			g.Expect(clusters.affected.pending).To(BeEmpty())
		})
	})

	t.Run("E61: Machines that are resumed together restart the watches of their workload cluster a few times", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, clusters := NewWithT(t), NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
			affected := changesTo(clusters, AllPodsAffected)
			for i := range 200 {
				paused := &clusterv1.Machine{
					ObjectMeta: metav1.ObjectMeta{Namespace: clusterA.Namespace, Name: fmt.Sprint("m", i), Annotations: map[string]string{clusterv1.PausedAnnotation: ""}},
					Spec:       clusterv1.MachineSpec{ClusterName: clusterA.Name},
				}
				resumed := paused.DeepCopy()
				resumed.Annotations = nil
				clusters.ResumeAfterPause().Update(t.Context(), event.UpdateEvent{ObjectOld: paused, ObjectNew: resumed}, nil)
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			g.Expect(affected.Load()).To(And(BeNumerically(">=", 1), BeNumerically("<=", 5)))
		})
	})

	t.Run("M40: a workload cluster whose subscribers block delays neither the handler of Machines nor the resumption of others", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, clusters := NewWithT(t), NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
			hang := make(chan struct{})
			clusters.Subscribe(func(change Change) {
				if change.Cluster == clusterA {
					<-hang
				}
			})
			affected := changesTo(clusters, AllPodsAffected)
			began := time.Now()
			for range 10 {
				clusters.Resume(clusterA)
			}
			clusters.Resume(clusterB)
			g.Expect(time.Since(began)).To(BeZero())
			time.Sleep(time.Second)
			g.Expect(affected.Load()).To(BeEquivalentTo(1), "that of the other workload cluster")
			close(hang)
			time.Sleep(time.Minute)
		})
	})
}
