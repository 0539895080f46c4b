package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// Recording records a workload cluster, and the management clusters that its Cluster is in, one after the other, from a moment on.
type Recording struct {
	workload   *recordedSide
	management []*recordedSide
}

type recordedSide struct {
	controlPlane *controlplane.ControlPlane
	client       client.Client
	mark         controlplane.Mark
	begin        int64
	clock        Clock
	cancel       context.CancelFunc
	ended        sync.WaitGroup
}

// Record records the management cluster of a fleet and a workload cluster from now on.
func Record(ctx context.Context, f *fleet.Fleet, workload *fleet.Workload) (*Recording, error) {
	recorded := &Recording{}
	var err error
	if recorded.workload, err = startSide(ctx, workload.ControlPlane, workload.Client); err != nil {
		return nil, err
	}
	return recorded, recorded.addManagement(ctx, f)
}

// addManagement records another management cluster.
func (r *Recording) addManagement(ctx context.Context, f *fleet.Fleet) error {
	side, err := startSide(ctx, f.Management, f.Client)
	r.management = append(r.management, side)
	return err
}

func startSide(ctx context.Context, c *controlplane.ControlPlane, admin client.Client) (_ *recordedSide, err error) {
	side := &recordedSide{controlPlane: c, client: admin}
	if side.begin, err = c.StoredRevision(ctx); err == nil {
		side.clock = Clock{{Revision: side.begin}}
		side.mark, err = c.Audit().Mark()
	}
	if err != nil {
		return nil, errors.Wrap(err, "starting to record")
	}
	ticking, cancel := context.WithCancel(ctx)
	side.cancel = cancel
	side.ended.Go(func() { side.tick(ticking) })
	return side, nil
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

// Stop returns what the clusters have recorded, as the history of one manager without faults.
func (r *Recording) Stop(ctx context.Context) (*History, error) {
	h := &History{Replicas: 1, Namespace: metav1.NamespaceDefault}
	var err error
	if h.Workload, err = r.workload.stop(ctx); err != nil {
		return nil, err
	}
	for _, each := range r.management {
		side, err := each.stop(ctx)
		if err != nil {
			return nil, err
		}
		h.Management = h.Management.Then(side)
	}
	return h, nil
}

// recorder records both clusters.
type recorder interface {
	Stop(ctx context.Context) (*History, error)
}

// record records both clusters from now on.
func (w *world) record(ctx context.Context) (recorder, error) {
	if w.simulated != nil {
		return simulatedRecording{w}, nil
	}
	return Record(ctx, w.fleet, w.workload)
}

// stopRecording returns the history of the run.
func (r *run) stopRecording(ctx context.Context, record recorder) (*History, error) {
	h, err := record.Stop(ctx)
	if err != nil {
		return nil, err
	}
	h.Namespace, h.Replicas = r.home(), len(r.allManagers())
	h.Unhooked, h.ClockOff, h.ClusterDeleted = maps.Clone(r.unhooked), max(h.ClockOff, r.clockOff), r.clusterDeleted
	h.Faults = slices.Concat(h.Faults, r.faults)
	h.DaemonSetPods, h.DeletesOnTimeout = r.schedule.Policy.DaemonSetPods == v1alpha1.DaemonSetPodsDrain, r.schedule.Policy.OnTimeout == v1alpha1.OnTimeoutDelete
	if limit := r.schedule.Policy.MaxParallelDrains; limit != nil {
		h.MaxParallelDrains = limit.IntValue()
	}
	for _, m := range r.allManagers() {
		h.Managers, h.Down = append(h.Managers, m.starts...), append(h.Down, m.downs)
	}
	return h, nil
}

func (s *recordedSide) stop(ctx context.Context) (side Side, err error) {
	s.cancel()
	s.ended.Wait()
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
	for _, prefix := range []string{
		podKeys, nodeKeys, budgetKeys, deploymentKeys, attachmentKeys, maintenanceKeys, evacuationKeys, clusterKeys, machineKeys, ruleKeys,
	} {
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
