package workload

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

const (
	// readTimeout limits one reading of a workload cluster. What has not been read by then is unknown until the next one.
	readTimeout = 10 * time.Second
	// podsPage is the number of Pods in one answer, and maxPages the number of answers for one namespace. Pods of a larger one are unknown.
	podsPage, maxPages = 500, 40
)

// ReadControllers reads what the decisions of drain/outcome need to know of controllers in a workload cluster, without a watch. It takes
// ten seconds at most.
func (c *Clusters) ReadControllers(ctx context.Context, cluster types.NamespacedName, controllers []outcome.Controller) outcome.World {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errors.Errorf("no answer for %s", readTimeout))
	defer cancel()
	world := outcome.World{Wanted: map[outcome.Controller]int32{}, Unread: map[outcome.Controller]error{}}
	live, err := c.UncachedClient(ctx, cluster)
	wanted := sets.New(controllers...)
	for _, controller := range controllers {
		namespace := outcome.Controller{Namespace: controller.Namespace}
		if _, read := world.Unread[namespace]; !read {
			if err == nil {
				world.Unread[namespace] = readPods(ctx, live, &world, controller.Namespace, wanted)
			} else {
				world.Unread[namespace] = err
			}
		}
		if world.Unread[namespace] == nil {
			world.Unread[controller] = readWanted(ctx, live, &world, controller)
		}
	}
	return world
}

// readPods adds the Pods of the controllers in a namespace. If it fails, it adds none.
func readPods(ctx context.Context, live client.Reader, world *outcome.World, namespace string, controllers sets.Set[outcome.Controller]) error {
	page, found := &corev1.PodList{}, []*corev1.Pod(nil)
	for range maxPages {
		if err := live.List(ctx, page, client.InNamespace(namespace), client.Limit(podsPage), client.Continue(page.Continue)); err != nil {
			return errors.Wrapf(err, "listing the Pods of namespace %s", namespace)
		}
		for i := range page.Items {
			if pod := &page.Items[i]; controllers.Has(outcome.ControllerOf(pod)) {
				pod.Spec, pod.ManagedFields, pod.Annotations = corev1.PodSpec{NodeName: pod.Spec.NodeName}, nil, nil
				if rules.Ready(pod) { // no reason is needed
					pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = nil, nil
				}
				found = append(found, pod.DeepCopy()) // the page is not kept
			}
		}
		if page.Continue == "" {
			world.Pods = append(world.Pods, found...)
			return nil
		}
		page = &corev1.PodList{ListMeta: page.ListMeta}
	}
	return errors.Errorf("namespace %s has more than %d Pods", namespace, podsPage*maxPages)
}

// readWanted reads how many Pods a controller wants. One that does not exist wants none.
func readWanted(ctx context.Context, live client.Reader, world *outcome.World, controller outcome.Controller) error {
	object := outcome.NewObject(controller.Kind)
	if object == nil {
		return nil
	}
	switch err := live.Get(ctx, types.NamespacedName{Namespace: controller.Namespace, Name: controller.Name}, object); {
	case answers.DoesNotExist(err):
		world.Wanted[controller] = 0
	case err != nil:
		return errors.Wrapf(err, "getting %s", controller)
	default:
		if pods, known := outcome.Wanted(object); known {
			world.Wanted[controller] = pods
		}
	}
	return nil
}
