package chaos

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
)

// simulatedFaults is the table of the faults in a simulation: those of faults that change objects, those of processes and networks as the
// simulation has them, and some that only it can have.
func simulatedFaults() []fault {
	replaced := map[string]func(context.Context, *run, uint64) (heal, error){
		"workload-apiserver-killed":          onServers(false, refused),
		"workload-apiserver-frozen":          onServers(false, silent),
		"management-apiserver-killed":        onServers(true, refused),
		"management-apiserver-frozen":        onServers(true, silent),
		"workload-controller-manager-killed": pauseModels,
		"workload-controller-manager-frozen": pauseModels,
		"network-cut":                        onNetwork(silent),
		"network-responses-cut":              onNetwork(mute),
		networkReset:                         resetLinks,
		"network-slow":                       slowLinks,
		"node-unreachable":                   stopSimulatedNode,
		"webhook-down":                       refuseWrites,
		"manager-frozen":                     isolateManager,
		admitFailing:                         refuseInfrastructure,
		"evacuations-refused":                refuseEvacuations(quotaExceeded),
		evictionsRefused:                     refuseEvictions(failEvictions),
	}
	unsimulated := []string{"workload-etcd-killed", "workload-etcd-frozen", "management-etcd-killed", "management-etcd-frozen", clockWrong}
	var table []fault
	for _, f := range faults() {
		if slices.Contains(unsimulated, f.name) {
			continue
		}
		if inject, is := replaced[f.name]; is {
			f.inject = inject
		}
		table = append(table, f)
	}
	return append(table,
		fault{watchStale, "watches", delayWatch},
		fault{"watches-expired", "watches", expireWatches},
		fault{writesLost, "writes", loseWrites},
		fault{"manager-killed-in-a-write", "manager", killInWrite},
		fault{leaderReplaced, "manager", replaceLeader},
	)
}

// addedFaults are those that do not take the place of others in the schedule of a seed: see addFault.
func addedFaults() []fault {
	return []fault{
		{clockStepped, "clocks", stepClock},
		{drainCancelled, "cancelled", cancelDrain},
	}
}

// onNetwork changes the network between our manager and the workload cluster.
func onNetwork(to state) func(context.Context, *run, uint64) (heal, error) {
	return func(_ context.Context, r *run, _ uint64) (heal, error) {
		r.simulated.setState(r.remote, to)
		return func(context.Context) error { r.simulated.setState(r.remote, open); return nil }, nil
	}
}

// onServers makes an API server unreachable for our manager and for all other controllers.
func onServers(management bool, to state) func(context.Context, *run, uint64) (heal, error) {
	return func(_ context.Context, r *run, _ uint64) (heal, error) {
		cluster := r.remote
		if management {
			cluster = r.simulated.management
		}
		r.simulated.setState(cluster, to)
		r.simulated.setPaused(cluster, true)
		return func(context.Context) error {
			r.simulated.setPaused(cluster, false)
			r.simulated.setState(cluster, open)
			return nil
		}, nil
	}
}

// isolateManager cuts the manager off from all clusters. In contrast to a process that is stopped, it continues to decide.
func isolateManager(_ context.Context, r *run, _ uint64) (heal, error) {
	set := func(to state) {
		for _, cluster := range r.simulated.clusters() {
			r.simulated.setState(cluster, to)
		}
	}
	set(silent)
	return func(context.Context) error { set(open); return nil }, nil
}

func pauseModels(_ context.Context, r *run, _ uint64) (heal, error) {
	r.simulated.setPaused(r.remote, true)
	return func(context.Context) error { r.simulated.setPaused(r.remote, false); return nil }, nil
}

func resetLinks(_ context.Context, r *run, _ uint64) (heal, error) {
	r.simulated.mu.Lock()
	defer r.simulated.mu.Unlock()
	for _, p := range r.simulated.running {
		p.links[r.remote].Reset()
	}
	return nil, nil
}

func slowLinks(_ context.Context, r *run, pick uint64) (heal, error) {
	set := func(slow time.Duration) {
		r.simulated.mu.Lock()
		defer r.simulated.mu.Unlock()
		r.remote.slow = slow
	}
	set(time.Duration(50+pick%400) * time.Millisecond)
	return func(context.Context) error { set(0); return nil }, nil
}

const (
	watchStale = "watch-stale"
	// lateness is how late an event is at most that is stored during this fault.
	lateness = 20 * time.Second
)

// delayWatch delays the events of one kind.
func delayWatch(_ context.Context, r *run, pick uint64) (heal, error) {
	kinds := []string{
		"machines", "clusters", "machinedrainrules", "machinedrainpolicies", "nodes", "pods", "nodemaintenances", "evacuations",
		"poddisruptionbudgets", "volumeattachments", "deployments", "daemonsets",
	}
	kind := kinds[pick%uint64(len(kinds))]
	r.logf("watches of %s are late", kind)
	r.simulated.setStaleness(kind, lateness)
	return func(context.Context) error { r.simulated.setStaleness(kind, 0); return nil }, nil
}

func expireWatches(_ context.Context, r *run, pick uint64) (heal, error) {
	clusters := r.simulated.clusters()
	clusters[pick%uint64(len(clusters))].BreakWatches(true)
	return nil, nil
}

func loseWrites(_ context.Context, r *run, _ uint64) (heal, error) {
	set := func(share float64) {
		r.simulated.mu.Lock()
		defer r.simulated.mu.Unlock()
		r.simulated.lossy = share
	}
	set(0.3)
	return func(context.Context) error { set(0); return nil }, nil
}

// killInWrite kills the manager after the API server has carried out one of its next writes, whose response it does not get.
func killInWrite(_ context.Context, r *run, pick uint64) (heal, error) {
	m := r.managers[0]
	r.simulated.mu.Lock()
	r.simulated.killAfter, r.simulated.onKill = int(pick%12)+1, m.kill
	r.simulated.mu.Unlock()
	return func(ctx context.Context) error {
		r.simulated.mu.Lock()
		r.simulated.killAfter = 0
		r.simulated.mu.Unlock()
		return m.start(ctx)
	}, nil
}

// leaderReplaced is the fault in which another manager becomes the leader while requests of the one before are still in flight.
const leaderReplaced = "manager-frozen-and-replaced"

// longestOverlap is how long a leader that has lost its lease still writes at most. Its process exits when it notices.
const longestOverlap = 8 * time.Second

// replaceLeader cuts the leader off from all clusters. It continues to decide. Another manager starts meanwhile, as if the lease had
// expired. Then the requests of the old leader arrive, and it observes and writes for some seconds before it exits.
func replaceLeader(_ context.Context, r *run, pick uint64) (heal, error) {
	m := r.managers[0]
	old, err := m.resign()
	if err != nil {
		return nil, err
	}
	old.cutOff()
	return func(ctx context.Context) error {
		if err := m.start(ctx); err != nil || old == nil {
			return err
		}
		r.logf("the requests of the old leader arrive")
		old.connect()
		_ = delay(ctx, time.Duration(pick%uint64(longestOverlap)))
		old.Kill()
		old = nil
		return nil
	}, nil
}

// clockStepped is the fault during which the clock of an API server is wrong.
const clockStepped = "apiserver-clock-stepped"

// stepClock steps the clock of an API server, and steps it back at the end. The times that were stored meanwhile stay wrong. The clocks of
// the manager and of all other controllers are right.
func stepClock(_ context.Context, r *run, pick uint64) (heal, error) {
	cluster := []*simulatedCluster{r.remote, r.simulated.management}[pick%2]
	offset := []time.Duration{3 * time.Second, 45 * time.Second, 5 * time.Minute, time.Hour}[pick/4%4]
	if pick/2%2 == 0 {
		offset = -offset
	}
	r.logf("the clock of the API server of %s steps by %s", cluster.name, offset)
	r.simulated.setClockOff(offset)
	cluster.SetClock(offset)
	return func(context.Context) error { cluster.SetClock(0); return nil }, nil
}

// drainCancelled is the event that a user begins to drain the other Node that stays, and soon cancels that.
const drainCancelled = "drain-cancelled"

// cancelDrain creates and deletes a NodeMaintenance. In half of the runs, the watch of Evacuations is late, so that the manager does not
// observe what it has created before.
func cancelDrain(ctx context.Context, r *run, pick uint64) (heal, error) {
	const kind = "evacuations"
	if pick%2 == 0 {
		r.simulated.setStaleness(kind, lateness)
	}
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "cancelled-" + r.namespace},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes(keepers[1]), Stage: v1alpha1.StageDrain},
	}
	return func(ctx context.Context) error {
		if err := r.workload.Client.Delete(ctx, m.DeepCopy()); client.IgnoreNotFound(err) != nil {
			return errors.Wrap(err, "ending a drain")
		}
		r.simulated.setStaleness(kind, 0)
		return nil
	}, errors.Wrap(r.workload.Client.Create(ctx, m.DeepCopy()), "draining a Node")
}

func stopSimulatedNode(ctx context.Context, r *run, pick uint64) (heal, error) {
	node, err := choose(ctx, r.workload.Client, &corev1.NodeList{}, pick, r.isDrained)
	if err != nil {
		return nil, err
	}
	label := func(ctx context.Context, value string) error {
		return patch(ctx, r.workload.Client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.GetName()}},
			fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, controlplane.KubeletLabel, value))
	}
	set := func(ctx context.Context, status, reason string) error {
		condition := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"reason":%q,"lastTransitionTime":%q}]}}`, status, reason,
			time.Now().UTC().Format(time.RFC3339))
		return errors.Wrapf(r.workload.Client.Status().Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.GetName()}},
			client.RawPatch(types.StrategicMergePatchType, condition)), "reporting Node %s", node.GetName())
	}
	undo := func(ctx context.Context) error {
		if err := label(ctx, `"`+controlplane.KubeletLabelValue+`"`); err != nil {
			return client.IgnoreNotFound(errors.Cause(err))
		}
		return client.IgnoreNotFound(errors.Cause(set(ctx, "True", "KubeletReady")))
	}
	if err := label(ctx, "null"); err != nil {
		return undo, err
	}
	return undo, set(ctx, "Unknown", "NodeStatusUnknown")
}

// refuseWrites refuses the writes of one kind in the workload cluster, as an admission webhook does that does not answer.
func refuseWrites(_ context.Context, r *run, pick uint64) (heal, error) {
	refuses := []func(apiserver.Request) bool{
		func(q apiserver.Request) bool { return q.Resource == "nodemaintenances" && q.Subresource == "" },
		func(q apiserver.Request) bool { return q.Group == v1alpha1.GroupVersion.Group && q.Subresource != "" },
		func(q apiserver.Request) bool { return q.Resource == "pods" && q.Subresource == "eviction" },
		func(q apiserver.Request) bool { return q.Resource == "nodes" && q.Subresource == "" },
	}[pick%4]
	r.simulated.setRefusal(r.remote, func(q apiserver.Request) error {
		if !slices.Contains([]string{"create", "update", "patch"}, q.Verb) || !refuses(q) {
			return nil
		}
		return apierrors.NewInternalError(errors.New(`failed calling webhook "down.test.capnm.dev": failed to call webhook: ` +
			`Post "https://127.0.0.1:1/?timeout=10s": dial tcp 127.0.0.1:1: connect: connection refused`))
	})
	return func(context.Context) error { r.simulated.setRefusal(r.remote, nil); return nil }, nil
}

// quotaExceeded refuses to create Evacuations.
func quotaExceeded(_ context.Context, r *run) (heal, error) {
	r.simulated.setRefusal(r.remote, func(q apiserver.Request) error {
		if q.Verb != "create" || q.Resource != "evacuations" {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Group: q.Group, Resource: q.Resource}, q.Name, errors.New("exceeded quota"))
	})
	return func(context.Context) error { r.simulated.setRefusal(r.remote, nil); return nil }, nil
}

// failEvictions refuses all evictions with an error that says no reason, whose backoff grows to minutes.
func failEvictions(_ context.Context, r *run) (heal, error) {
	r.simulated.setRefusal(r.remote, func(q apiserver.Request) error {
		if q.Resource != "pods" || q.Subresource != "eviction" {
			return nil
		}
		return apierrors.NewInternalError(errors.New("evictions fail"))
	})
	return func(context.Context) error { r.simulated.setRefusal(r.remote, nil); return nil }, nil
}

func refuseInfrastructure(_ context.Context, r *run, _ uint64) (heal, error) {
	r.simulated.setRefusal(r.simulated.management, func(q apiserver.Request) error {
		if q.Verb != "get" || q.Group != infrav1.GroupVersion.Group {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Group: q.Group, Resource: q.Resource}, q.Name, errors.New("the role was edited"))
	})
	return func(context.Context) error { r.simulated.setRefusal(r.simulated.management, nil); return nil }, nil
}

// setState changes the network between our manager and an API server.
func (s *simulated) setState(c *simulatedCluster, to state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.state = to
	for _, p := range s.running {
		p.links[c].set(to)
	}
}

// setPaused pauses the models of a cluster.
func (s *simulated) setPaused(c *simulatedCluster, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.paused = paused
}

// strikes reports whether the manager is killed after a write.
func (s *simulated) strikes(request *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if request.Method == http.MethodGet || s.killAfter == 0 {
		return false
	}
	s.killAfter--
	return s.killAfter == 0
}
