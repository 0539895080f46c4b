package workload

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

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
