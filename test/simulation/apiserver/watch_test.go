package apiserver_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
)

func TestCache(t *testing.T) {
	run(t, func(w *world) {
		w.add(newPod("before"))
		w.SetWatchDelay(func(r apiserver.Request) time.Duration {
			if r.Resource == "pods" {
				return 5 * time.Second
			}
			return 0
		})
		cache, err := ctrlcache.New(w.config(), ctrlcache.Options{Scheme: scheme})
		w.Expect(err).NotTo(HaveOccurred())
		go func() { _ = cache.Start(w.ctx) }()
		w.Expect(cache.WaitForCacheSync(w.ctx)).To(BeTrue())
		names := func(list client.ObjectList, options ...client.ListOption) []string {
			w.Expect(cache.List(w.ctx, list, options...)).To(Succeed())
			var found []string
			items, _ := list.(*corev1.PodList)
			partial, _ := list.(*metav1.PartialObjectMetadataList)
			if items != nil {
				for _, item := range items.Items {
					found = append(found, item.Name)
				}
			} else {
				for _, item := range partial.Items {
					found = append(found, item.Name)
				}
			}
			return found
		}
		metadata := &metav1.PartialObjectMetadataList{}
		metadata.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DeploymentList"})
		w.Expect(names(&corev1.PodList{})).To(ConsistOf("before"))
		w.Expect(names(metadata)).To(BeEmpty())

		pod := w.add(newPod("a"))
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "d"}}
		w.Expect(w.http.Create(w.ctx, deployment)).To(Succeed())
		synctest.Wait()
		w.Expect(names(metadata)).To(ConsistOf("d"))
		w.Expect(names(&corev1.PodList{})).To(ConsistOf("before"), "its event is delayed")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.Expect(names(&corev1.PodList{})).To(ConsistOf("before", "a"))

		w.SetWatchDelay(func(apiserver.Request) time.Duration { return 0 })
		w.BreakWatches(true)
		w.Expect(w.http.Delete(w.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		w.add(newPod("b"))
		time.Sleep(5 * time.Second)
		w.Expect(names(&corev1.PodList{})).To(ConsistOf("before", "b"))
		time.Sleep(30 * time.Minute) // watches time out
		w.add(newPod("c"))
		synctest.Wait()
		w.Expect(names(&corev1.PodList{})).To(ConsistOf("before", "b", "c"))
	})
}

func TestWatch(t *testing.T) {
	both(t, func(w *world, c client.WithWatch) {
		first := w.add(newPod("a"))
		w.add(newPod("b"))
		var stops []func()
		defer func() {
			for _, stop := range stops {
				stop()
			}
		}()
		watched := func(resourceVersion string, options ...client.ListOption) <-chan watch.Event {
			options = append(options, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: resourceVersion}})
			events, err := c.Watch(w.ctx, &corev1.PodList{}, options...)
			w.Expect(err).NotTo(HaveOccurred())
			stops = append(stops, events.Stop)
			return events.ResultChan()
		}
		expect := func(events <-chan watch.Event, expected ...string) {
			for _, each := range expected {
				event := <-events
				description := string(event.Type)
				if object, ok := event.Object.(client.Object); ok {
					description += " " + object.GetName()
				}
				w.Expect(description).To(Equal(each))
			}
		}
		resumed := watched(first.ResourceVersion)
		expect(resumed, "ADDED b", "MODIFIED b")
		selected := watched("", client.MatchingLabels{"x": "y"})
		onNode := watched("", client.MatchingFields{"spec.nodeName": "n1", "metadata.name": "a"})
		expect(onNode, "ADDED a")
		w.Expect(c.Patch(w.ctx, first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`)))).To(Succeed())
		expect(selected, "ADDED a")
		expect(onNode, "MODIFIED a")
		w.Expect(c.Patch(w.ctx, first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"z"}}}`)))).To(Succeed())
		expect(selected, "DELETED a")
		w.Expect(c.Delete(w.ctx, first, client.GracePeriodSeconds(0))).To(Succeed())
		expect(onNode, "MODIFIED a", "MODIFIED a", "DELETED a")

		w.BreakWatches(true)
		expired := <-watched(first.ResourceVersion)
		w.Expect(apierrors.IsResourceExpired(apierrors.FromObject(expired.Object))).To(BeTrue(), "%v", expired)
	})
}
