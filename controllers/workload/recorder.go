package workload

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// eventSource is the component of the events that this provider writes to workload clusters.
const eventSource = "capnm"

// eventRecorder writes events to one workload cluster. The correlator of client-go limits the events of an object: a burst of 25, then one
// every five minutes. The recorder is created with the first event, so that idle workload clusters need no memory for it.
type eventRecorder struct {
	config *rest.Config // of the connection that it belongs to
	scheme *runtime.Scheme
	ctx    context.Context //nolint:containedctx // the life of the connection, in which events come at any time
	stop   context.CancelFunc

	start    sync.Once
	recorder record.EventRecorder
}

// EventInvalidEvacuator on a Pod means that one of its evacuator annotations is invalid and has no effect.
const EventInvalidEvacuator = "InvalidEvacuatorAnnotation"

func newEventRecorder(config *rest.Config, scheme *runtime.Scheme) *eventRecorder {
	r := &eventRecorder{config: config, scheme: scheme}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Event writes an event. It drops the event if the recorder cannot be created.
func (r *eventRecorder) Event(object runtime.Object, eventType, reason, message string) {
	r.start.Do(func() {
		client, err := kubernetes.NewForConfig(r.config)
		if err != nil {
			return // the connection was made with the same configuration, so this doesn't happen
		}
		broadcaster := record.NewBroadcaster(record.WithContext(r.ctx))
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		r.recorder = broadcaster.NewRecorder(r.scheme, corev1.EventSource{Component: eventSource})
	})
	if r.recorder != nil {
		r.recorder.Event(object, eventType, reason, message)
	}
}

// Event writes an event about an object in a workload cluster. It drops the event if there is no connection.
func (c *Clusters) Event(cluster types.NamespacedName, object runtime.Object, eventType, reason, message string) {
	c.mu.RLock()
	recorder := c.recorders[cluster]
	c.mu.RUnlock()
	if recorder != nil {
		recorder.Event(object, eventType, reason, message)
	}
}
