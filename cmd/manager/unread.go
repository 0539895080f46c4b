package main

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
)

// setAsideKinds are the kinds of the management cluster of which the manager sets aside the objects that it cannot decode, so that it
// starts.
var setAsideKinds = []client.Object{&v1alpha1.MachineDrainPolicy{}, &clusterv1.MachineDrainRule{}}

// unreadReport reports objects of the management cluster that cannot be decoded.
type unreadReport struct {
	recorder atomic.Pointer[record.EventRecorder]
}

// newUnread returns the objects of the management cluster that cannot be decoded, and what reports them.
func newUnread() (*setaside.Objects, *unreadReport) {
	r := &unreadReport{}
	return setaside.New(types.NamespacedName{}, r.report), r
}

// on sets the recorder of events, which exists only when the manager does. The caches start later.
func (r *unreadReport) on(recorder record.EventRecorder) { r.recorder.Store(&recorder) }

func (r *unreadReport) report(object *metav1.PartialObjectMetadata, err *setaside.Error) {
	ctrl.Log.WithName("cache").Error(err, "Set aside an object that cannot be decoded", "kind", err.Kind, "object", klog.KObj(object))
	if recorder := r.recorder.Load(); recorder != nil {
		(*recorder).Event(object, corev1.EventTypeWarning, setaside.EventReason, "The manager ignores the object: "+err.Error())
	}
}
