package chaos

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// recording records both clusters from a moment on.
type recording struct {
	*run
	sides map[string]*recordedSide
	stopC context.CancelFunc
	ended sync.WaitGroup
}

type recordedSide struct {
	controlPlane *controlplane.ControlPlane
	client       client.Client
	mark         controlplane.Mark
	begin        int64
	clock        Clock
}

func (r *run) startRecording(ctx context.Context) (*recording, error) {
	recorded := &recording{run: r, sides: map[string]*recordedSide{
		"workload":   {controlPlane: r.workload.ControlPlane, client: r.workload.Client},
		"management": {controlPlane: r.fleet.Management, client: r.fleet.Client},
	}}
	ticking, stop := context.WithCancel(ctx)
	recorded.stopC = stop
	for _, side := range recorded.sides {
		var err error
		if side.begin, err = side.controlPlane.StoredRevision(ctx); err == nil {
			side.clock = Clock{{Revision: side.begin}}
			side.mark, err = side.controlPlane.Audit().Mark()
		}
		if err != nil {
			stop()
			return nil, errors.Wrap(err, "starting to record")
		}
		recorded.ended.Go(func() { side.tick(ticking) })
	}
	return recorded, nil
}

// tick relates times to revisions. Nothing is stored while etcd does not respond.
func (s *recordedSide) tick(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		from := time.Now()
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		if revision, err := s.controlPlane.StoredRevision(asking); err == nil {
			s.clock = append(s.clock, Sample{from, time.Now(), revision})
		}
		cancel()
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// stop returns the history.
func (r *recording) stop(ctx context.Context) (*History, error) {
	r.stopC()
	r.ended.Wait()
	h := &History{
		Replicas: len(r.managers), Unhooked: maps.Clone(r.unhooked), ClockAhead: r.clockAhead, ClusterDeleted: r.clusterDeleted,
		DaemonSetPods: r.schedule.Policy.DaemonSetPods == v1alpha1.DaemonSetPodsDrain, DeletesOnTimeout: r.schedule.Policy.OnTimeout == v1alpha1.OnTimeoutDelete,
	}
	for _, m := range r.managers {
		h.Managers = append(h.Managers, m.starts...)
	}
	var err error
	if h.Workload, err = r.sides["workload"].stop(ctx); err == nil {
		h.Management, err = r.sides["management"].stop(ctx)
	}
	return h, errors.Wrap(err, "reading the history")
}

func (s *recordedSide) stop(ctx context.Context) (side Side, err error) {
	side.Clock = s.clock
	if side.Audit, err = s.controlPlane.Audit().Since(s.mark); err != nil {
		return side, err
	}
	end := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "end-"}}
	if err := s.client.Create(ctx, end); err != nil {
		return side, errors.Wrap(err, "marking the end of the history")
	}
	var until int64
	if _, err := fmt.Sscan(end.ResourceVersion, &until); err != nil {
		return side, errors.Wrap(err, "reading a resourceVersion")
	}
	before, err := s.controlPlane.StoredAt(ctx, s.begin, isRecorded)
	if err != nil {
		return side, err
	}
	during, err := s.controlPlane.StoredBetween(ctx, s.begin, until, isRecorded)
	if err != nil {
		return side, err
	}
	side.Versions, err = decode(append(before, during...))
	return side, err
}

// isRecorded selects the kinds of objects that histories have.
func isRecorded(key string) bool {
	for _, prefix := range []string{podKeys, nodeKeys, budgetKeys, deploymentKeys, attachmentKeys, maintenanceKeys, evacuationKeys, machineKeys, ruleKeys} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

var decoder = sync.OnceValue(func() runtime.Decoder {
	return serializer.NewCodecFactory(clusterapi.Scheme()).UniversalDeserializer()
})

func decode(stored []controlplane.Stored) ([]Version, error) {
	var versions []Version
	for _, each := range stored {
		version := Version{Revision: each.Revision, Key: each.Key}
		if each.Value != nil {
			object, _, err := decoder().Decode(each.Value, nil, nil)
			if err != nil {
				return nil, errors.Wrapf(err, "decoding %s", each.Key)
			}
			version.Object = object.(client.Object)
		}
		versions = append(versions, version)
	}
	return versions, nil
}

// objectsOf returns the objects of a list.
func objectsOf(list client.ObjectList) ([]client.Object, error) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, errors.Wrap(err, "reading a list")
	}
	var objects []client.Object
	for _, item := range items {
		objects = append(objects, item.(client.Object))
	}
	return objects, nil
}
