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
	run(t, func(f *fixture) {
		f.add(newPod("before"))
		f.SetWatchDelay(func(r apiserver.Request) time.Duration {
			if r.Resource == "pods" {
				return 5 * time.Second
			}
			return 0
		})
		cache, err := ctrlcache.New(f.config(), ctrlcache.Options{Scheme: scheme})
		f.Expect(err).NotTo(HaveOccurred())
		go func() { _ = cache.Start(f.ctx) }()
		f.Expect(cache.WaitForCacheSync(f.ctx)).To(BeTrue())
		names := func(list client.ObjectList, options ...client.ListOption) []string {
			f.Expect(cache.List(f.ctx, list, options...)).To(Succeed())
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
		f.Expect(names(&corev1.PodList{})).To(ConsistOf("before"))
		f.Expect(names(metadata)).To(BeEmpty())

		pod := f.add(newPod("a"))
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "d"}}
		f.Expect(f.http.Create(f.ctx, deployment)).To(Succeed())
		synctest.Wait()
		f.Expect(names(metadata)).To(ConsistOf("d"))
		f.Expect(names(&corev1.PodList{})).To(ConsistOf("before"), "its event is delayed")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		f.Expect(names(&corev1.PodList{})).To(ConsistOf("before", "a"))

		f.SetWatchDelay(func(apiserver.Request) time.Duration { return 0 })
		f.BreakWatches(true)
		f.Expect(f.http.Delete(f.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		f.add(newPod("b"))
		time.Sleep(5 * time.Second)
		f.Expect(names(&corev1.PodList{})).To(ConsistOf("before", "b"))
		time.Sleep(30 * time.Minute) // watches time out
		f.add(newPod("c"))
		synctest.Wait()
		f.Expect(names(&corev1.PodList{})).To(ConsistOf("before", "b", "c"))
	})
}

func TestWatch(t *testing.T) {
	both(t, func(f *fixture, c client.WithWatch) {
		first := f.add(newPod("a"))
		f.add(newPod("b"))
		var stops []func()
		defer func() {
			for _, stop := range stops {
				stop()
			}
		}()
		watched := func(resourceVersion string, options ...client.ListOption) <-chan watch.Event {
			options = append(options, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: resourceVersion}})
			events, err := c.Watch(f.ctx, &corev1.PodList{}, options...)
			f.Expect(err).NotTo(HaveOccurred())
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
				f.Expect(description).To(Equal(each))
			}
		}
		resumed := watched(first.ResourceVersion)
		expect(resumed, "ADDED b", "MODIFIED b")
		selected := watched("", client.MatchingLabels{"x": "y"})
		onNode := watched("", client.MatchingFields{"spec.nodeName": "n1", "metadata.name": "a"})
		expect(onNode, "ADDED a")
		f.Expect(c.Patch(f.ctx, first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`)))).To(Succeed())
		expect(selected, "ADDED a")
		expect(onNode, "MODIFIED a")
		f.Expect(c.Patch(f.ctx, first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"z"}}}`)))).To(Succeed())
		expect(selected, "DELETED a")
		f.Expect(c.Delete(f.ctx, first, client.GracePeriodSeconds(0))).To(Succeed())
		expect(onNode, "MODIFIED a", "MODIFIED a", "DELETED a")

		f.BreakWatches(true)
		expired := <-watched(first.ResourceVersion)
		f.Expect(apierrors.IsResourceExpired(apierrors.FromObject(expired.Object))).To(BeTrue(), "%v", expired)
	})
}
