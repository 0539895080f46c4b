package apiserver

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// garbageDelay is the time between the removal of an owner and the garbage collection.
const garbageDelay = time.Second

// isGarbage returns whether an object has owners, all of which are gone. The caller holds the lock.
func (s *Server) isGarbage(object client.Object) bool {
	owners := object.GetOwnerReferences()
	for _, owner := range owners {
		if s.owners[owner.UID] {
			return false
		}
	}
	return len(owners) > 0
}

// scheduleCollection collects garbage after garbageDelay. The caller holds the lock.
func (s *Server) scheduleCollection() {
	if s.collector != nil {
		return
	}
	s.collector = time.AfterFunc(garbageDelay, func() {
		s.mu.Lock()
		s.collector = nil
		s.mu.Unlock()
		s.collectGarbage()
	})
}

// collectGarbage deletes the objects whose owners are all gone, in the order of their keys, and those that they own in turn.
func (s *Server) collectGarbage() {
	for {
		var garbage []*version
		s.mu.Lock()
		for _, k := range s.sorted() {
			for _, v := range k.objects {
				if s.isGarbage(v.object) && v.object.GetDeletionTimestamp() == nil {
					garbage = append(garbage, v)
				}
			}
		}
		s.mu.Unlock()
		deleted := false
		for _, v := range garbage {
			k := v.resource
			r := operation{Request: Request{
				User: "system:serviceaccount:kube-system:generic-garbage-collector", Verb: "delete", Group: k.gvr.Group, Version: k.gvr.Version,
				Resource: k.gvr.Resource, Namespace: v.object.GetNamespace(), Name: v.object.GetName(),
			}}
			_, err := s.delete(r, k, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(v.object.GetUID())}})
			deleted = deleted || err == nil
		}
		if !deleted {
			return
		}
	}
}
