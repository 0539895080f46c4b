package nodemaintenance

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

// createdGrace is how long the watch may take to deliver a created Evacuation before it is created again. Normally the watch takes
// milliseconds; during a burst of drains it takes up to half a minute.
const createdGrace = time.Minute

const (
	// minRefusedRetry and maxRefusedRetry limit the backoff after which the creation of a refused Evacuation is retried, and refused writes at
	// the end of a maintenance. After a request without an answer, it is always minRefusedRetry.
	minRefusedRetry = 5 * time.Second
	maxRefusedRetry = time.Minute
)

// creations remembers the Evacuations that were created but not yet observed, and those that the API server has refused. Each observed
// Evacuation triggers a reconciliation, which would otherwise create all the others again while the API server is busiest. Nothing else
// depends on it: after a restart of the manager, these calls are made a second time, and refused. The first list of Evacuations after a
// restart contains those that were not observed before.
type creations struct {
	mu   sync.Mutex
	last map[workload.Request]map[types.UID]creation // by NodeMaintenance and Pod
}

// creation is the result of the last attempt to create the Evacuation of a Pod.
type creation struct {
	sent     *v1alpha1.Evacuation // identifies an Evacuation that has been requested and not been observed since; nil: there is none
	observed bool                 // the Evacuation was observed
	at       time.Time            // time of a refused attempt
	until    time.Time            // time of the next attempt
	backoff  time.Duration
	refused  error // nil: the Evacuation was not refused, and the request was answered
}

// awaited returns the time of the next attempt to create the Evacuation of a Pod. It returns false if there was no attempt or the next one
// is due. The backoff of a refused attempt ends at the final eviction attempt of the Pod, whose time is zero if there is none.
func (c *creations) awaited(request workload.Request, pod types.UID, finalAttempt, now time.Time) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.last[request][pod]
	until := last.until
	if last.refused != nil && last.at.Before(finalAttempt) && finalAttempt.Before(until) {
		until = finalAttempt
	}
	return until, known && now.Before(until)
}

// recordCreated records that an Evacuation was created.
func (c *creations) recordCreated(request workload.Request, e *v1alpha1.Evacuation, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(request, types.UID(e.Spec.PodRef.UID), creation{sent: identityOf(e), until: now.Add(createdGrace)})
}

// recordUnanswered records that an Evacuation may have been created, or have NodeMaintenances as an instigator, because the request got no
// answer. Until the next attempt, that counts as a refusal.
func (c *creations) recordUnanswered(request workload.Request, e *v1alpha1.Evacuation, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod := types.UID(e.Spec.PodRef.UID)
	c.set(request, pod, creation{
		sent: identityOf(e), observed: c.last[request][pod].observed, at: now, until: now.Add(minRefusedRetry), refused: err,
	})
}

// identityOf returns an Evacuation with what identifies it and its Pod.
func identityOf(e *v1alpha1.Evacuation) *v1alpha1.Evacuation {
	identity := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	identity.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: e.Annotations[v1alpha1.EvacuationNodeAnnotation]}
	identity.Spec.PodRef = e.Spec.PodRef
	return identity
}

// unobserved returns the identities of the Evacuations on a Node that may exist but were not observed.
func (c *creations) unobserved(request workload.Request, node string) []*v1alpha1.Evacuation {
	c.mu.Lock()
	defer c.mu.Unlock()
	var unobserved []*v1alpha1.Evacuation
	for _, last := range c.last[request] {
		if last.sent != nil && last.sent.Annotations[v1alpha1.EvacuationNodeAnnotation] == node {
			unobserved = append(unobserved, last.sent)
		}
	}
	return unobserved
}

// forget deletes the record of a Pod.
func (c *creations) forget(request workload.Request, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last[request], pod)
}

// recordRefused records that the API server has refused to create the Evacuation of a Pod, or to add NodeMaintenances as an instigator.
func (c *creations) recordRefused(request workload.Request, pod types.UID, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	backoff := min(max(2*c.last[request][pod].backoff, minRefusedRetry), maxRefusedRetry)
	c.set(request, pod, creation{observed: c.last[request][pod].observed, at: now, until: now.Add(backoff), backoff: backoff, refused: err})
}

func (c *creations) set(request workload.Request, pod types.UID, last creation) {
	if c.last == nil {
		c.last = map[workload.Request]map[types.UID]creation{}
	}
	if c.last[request] == nil {
		c.last[request] = map[types.UID]creation{}
	}
	c.last[request][pod] = last
}

// refusals returns the errors of refused Evacuations, by Pod, and the time of the first retry. pods are those that exist, with whether
// their Evacuations are to be created. refusals deletes the records of Pods that no longer exist, and the refusals that are not retried.
func (c *creations) refusals(request workload.Request, pods map[types.UID]bool) (refused map[types.UID]error, retryAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused = map[types.UID]error{}
	for pod, last := range c.last[request] {
		wanted, exists := pods[pod]
		switch {
		case !exists, last.refused != nil && last.sent == nil && !wanted:
			delete(c.last[request], pod)
		case last.refused != nil && wanted:
			refused[pod] = last.refused
			if retryAt.IsZero() || last.until.Before(retryAt) {
				retryAt = last.until
			}
		}
	}
	return refused, retryAt
}

// recordObserved records that the Evacuation of a Pod has been observed. If it is deleted later, it is recreated at once. If it must be
// requested from its present instigators, recordObserved keeps the refusal of that request.
func (c *creations) recordObserved(request workload.Request, pod types.UID, requests bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !requests || !c.last[request][pod].observed {
		c.set(request, pod, creation{observed: true})
	}
}

// wasObserved reports whether the Evacuation of a Pod has been observed. If it no longer exists and the Pod is terminating, it is not
// recreated: the garbage collector deletes it after the Pod, so the watch has not delivered the deletion of the Pod yet.
func (c *creations) wasObserved(request workload.Request, pod types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[request][pod].observed
}

// removeAll deletes the records of all matching NodeMaintenances.
func (c *creations) removeAll(matches func(workload.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.last, func(request workload.Request, _ map[types.UID]creation) bool { return matches(request) })
}

// remove deletes the records of a NodeMaintenance that no longer exists.
func (c *creations) remove(request workload.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last, request)
}
