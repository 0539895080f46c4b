package workload

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// evictionTimeout limits the duration of one eviction request. An admission webhook may take 30 s, and the API server retries conflicts on
// a PodDisruptionBudget for some seconds.
const evictionTimeout = 40 * time.Second

// Limits are the rate limits of requests to one workload cluster.
type Limits struct {
	QPS   float32
	Burst int
}

func newEvictionClient(config *rest.Config, limits Limits) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.Timeout = limits.QPS, limits.Burst, evictionTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for evictions")
	}
	return client.CoreV1().RESTClient(), nil
}

// AwaitEviction waits until the rate limit allows a request of Evict or DeleteUnchanged, which do not wait. waited means that what was
// decided before may have changed since.
func (c *Clusters) AwaitEviction(ctx context.Context, cluster types.NamespacedName) (waited bool, err error) {
	requests, err := c.evictionClient(ctx, cluster)
	if err != nil {
		return false, err
	}
	limiter := requests.GetRateLimiter()
	if limiter == nil || limiter.TryAccept() {
		return false, nil
	}
	return true, errors.Wrap(limiter.Wait(ctx), "waiting for the rate limit of evictions")
}

// Evict evicts a Pod through policy/v1. The request contains the Pod's UID as a precondition, so that a replacement with the same name is
// not evicted. A nil gracePeriod keeps the Pod's own.
//
// It does not retry: the client would sleep for the Retry-After of a refusal, and block its caller.
func (c *Clusters) Evict(ctx context.Context, cluster types.NamespacedName, pod *corev1.Pod, gracePeriod *int64) error {
	requests, err := c.evictionClient(ctx, cluster)
	if err != nil {
		return err
	}
	eviction := &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{
			Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
			GracePeriodSeconds: gracePeriod,
		},
	}
	return requests.Post().Throttle(nil).
		Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{}, clientgoscheme.ParameterCodec).
		Body(eviction).MaxRetries(0).Do(ctx).Error()
}

// DeleteUnchanged deletes a Pod if it has not changed since it was observed: the decision about it applies only to that state. A nil
// gracePeriod keeps the Pod's own.
func (c *Clusters) DeleteUnchanged(ctx context.Context, cluster types.NamespacedName, pod *corev1.Pod, gracePeriod *int64) error {
	requests, err := c.evictionClient(ctx, cluster)
	if err != nil {
		return err
	}
	return requests.Delete().Throttle(nil).
		Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		Body(&metav1.DeleteOptions{
			Preconditions:      &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
			GracePeriodSeconds: gracePeriod,
		}).MaxRetries(0).Do(ctx).Error()
}

// evictionClient returns the client that is limited by the rate limits of evictions.
func (c *Clusters) evictionClient(ctx context.Context, cluster types.NamespacedName) (rest.Interface, error) {
	if err := c.refuse(ctx, cluster); err != nil {
		return nil, err
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if watch := c.watches[cluster]; watch != nil {
		return watch.evictions, nil
	}
	return nil, errors.Errorf("the Pods of workload Cluster %s are not observed", cluster)
}
