package remote

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// eventSource names this provider in the events that it writes to workload clusters.
const eventSource = "capnm"

// eventRecorder writes events to one workload cluster. The correlator behind it drops what repeats: at most 25 events for
// an object at once, then one every five minutes.
type eventRecorder struct {
	record.EventRecorder
	config *rest.Config // of the connection that it was made for
	stop   context.CancelFunc
}

func newEventRecorder(config *rest.Config, scheme *runtime.Scheme) (*eventRecorder, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for events")
	}
	ctx, stop := context.WithCancel(context.Background())
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &eventRecorder{EventRecorder: broadcaster.NewRecorder(scheme, corev1.EventSource{Component: eventSource}), config: config, stop: stop}, nil
}

// Event writes an event about an object in a workload cluster. Events inform and hold nothing up: where there is no
// connection, they are dropped.
func (c *Clusters) Event(cluster types.NamespacedName, object runtime.Object, eventType, reason, message string) {
	c.mu.Lock()
	recorder := c.recorders[cluster]
	c.mu.Unlock()
	if recorder != nil {
		recorder.Event(object, eventType, reason, message)
	}
}
