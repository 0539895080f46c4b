package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pkg/errors"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// burstLoad is a workload cluster whose Machines are all deleted at once. There are no budgets: the burst measures the rate of
// evictions.
var burstLoad = load{nodes: 500, podsPerNode: 15, drained: 500, apps: 15, landings: 10, readyDelay: time.Second, deletionDelay: time.Second}

// givenBack is when memory is measured after the burst. The garbage collector runs at least every two minutes and returns free memory
// to the system gradually.
const givenBack = 3 * time.Minute

func measureBurst(ctx context.Context, a *arena, f *figures, o options) error {
	f.add("manager_flags", o.managerFlags, "in addition to the defaults")
	f.add("nodes", a.load.drained, "whose Machines are deleted at once")
	f.add("pods", a.load.drained*a.load.podsPerNode, "on them")
	limit, err := a.burstOfLoops(ctx, f)
	if err != nil {
		return errors.Wrap(err, "running the bare loops")
	}
	f.add("limit_evictions_per_second", limit, "by 20 parallel bare loops")
	ours, err := a.burstOfOurs(ctx, f)
	if err != nil {
		return errors.Wrap(err, "deleting the Machines")
	}
	f.add("capnm_evictions_per_second", ours, "from the first eviction to the last")
	if limit > 0 {
		f.add("rate_over_limit", ours/limit, "")
	}
	return nil
}

// burstOfLoops returns the rate of the limit.
func (a *arena) burstOfLoops(ctx context.Context, f *figures) (float64, error) {
	t, err := a.reset(ctx)
	if err != nil {
		return 0, err
	}
	progress("starting the bare loops")
	mark, err := a.workload.Audit().Mark()
	if err != nil {
		return 0, err
	}
	leases, err := a.renewLease(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := drainByBareLoops(ctx, a, t); err != nil {
		return 0, err
	}
	leases.record(f, "limit")
	events, err := a.workload.Audit().Since(mark)
	if err != nil {
		return 0, err
	}
	rate := evictionRate(limitCandidate.requests(events))
	progress("the bare loops evicted %.1f Pods a second", rate)
	return rate, nil
}

// burstOfOurs returns our rate.
func (a *arena) burstOfOurs(ctx context.Context, f *figures) (float64, error) {
	t, err := a.reset(ctx)
	if err != nil {
		return 0, err
	}
	if err := a.manage(ctx, t.nodes); err != nil {
		return 0, err
	}
	ours := programOf(a.Manager)
	before, err := ours.memory(ctx)
	if err != nil {
		return 0, err
	}
	progress("starting our burst")
	mark, err := a.workload.Audit().Mark()
	if err != nil {
		return 0, err
	}
	begun, err := ours.cpu()
	if err != nil {
		return 0, err
	}
	peak := ours.watchPeak(ctx)
	leases, err := a.renewLease(ctx)
	if err != nil {
		return 0, err
	}
	taken, released, err := a.deleteMachines(ctx, t.nodes, &clusterv1.MachineList{}, isReleased)
	if err != nil {
		return 0, err
	}
	f.add("peak_rss_mb", peak.stop(), "of our manager")
	if err := a.addCosts(ctx, f, begun, len(t.pods)); err != nil {
		return 0, err
	}
	leases.record(f, capnmCandidate.name)
	events, err := a.workload.Audit().Since(mark)
	if err != nil {
		return 0, err
	}
	var seconds []float64
	for _, at := range released {
		seconds = append(seconds, at.Sub(taken.started).Seconds())
	}
	f.add("seconds", taken.ended.Sub(taken.started).Seconds(), "from the first deletion to the last release")
	f.add("median_node_seconds", median(seconds), "from the first deletion to the release of a node's hook")
	f.add("slowest_over_median", slices.Max(seconds)/median(seconds), "")
	addBurst(f, events, len(t.pods))
	if err := ours.awaitRelease(ctx, f, before); err != nil {
		return 0, err
	}
	return evictionRate(capnmCandidate.requests(events)), nil
}

// awaitRelease adds the memory of a manager before a burst and some time after it.
func (p program) awaitRelease(ctx context.Context, f *figures, before memory) error {
	progress("waiting for memory to be released")
	if err := pause(ctx, givenBack); err != nil {
		return err
	}
	after, err := p.memory(ctx)
	if err != nil {
		return err
	}
	f.add("rss_mb_before", before.rss, "")
	f.add("rss_mb_after", after.rss, "three minutes later")
	f.add("live_mb_before", before.live, "heap and stacks after a garbage collection")
	f.add("live_mb_after", after.live, "")
	return nil
}

// addCosts adds the CPU time of our manager since begun, and the decisions of its evictor.
func (a *arena) addCosts(ctx context.Context, f *figures, begun time.Duration, pods int) error {
	used, err := programOf(a.Manager).cpu()
	if err != nil {
		return err
	}
	f.add("manager_cpu_milliseconds_per_pod", float64((used-begun).Milliseconds())/float64(pods), "")
	metrics, err := a.Manager.Metrics(ctx)
	if err != nil {
		return err
	}
	addDecisions(f, metrics)
	return nil
}

// addDecisions adds how often our evictor decides for each of its evictions.
func addDecisions(f *figures, metrics fleet.Metrics) {
	f.add("decisions_per_eviction", metrics.Sum("capnm_evictor_decisions_total", nil)/metrics.Sum("capnm_evictions_total", nil),
		"of our evictor, which decides about all Evacuations of a cluster at once")
}

// addBurst adds what the audit log says about our burst.
func addBurst(f *figures, events controlplane.Events, pods int) {
	requests := capnmCandidate.requests(events)
	evictions := requests.Verb("create").Resource("pods", "eviction")
	f.add("evictions", len(evictions), "")
	f.add("refused", len(evictions.Failed()), "")
	f.add("calls_per_pod", float64(len(requests))/float64(pods), "to the workload cluster")
	f.add("writes_per_pod", float64(len(requests.Writes()))/float64(pods), "to the workload cluster")
	lost := events.By("system:serviceaccount:kube-system:node-controller").Verb("patch", "update").Resource("nodes", "status")
	f.add("nodes_not_ready", len(lost), "writes of the node lifecycle controller, which reports Nodes without a heartbeat")
	f.promise(len(lost) == 0, "Nodes missed their heartbeats:\n%s", lost)
	f.promise(len(evictions.Failed()) == 0, "%d evictions were refused:\n%s", len(evictions.Failed()), shown(evictions.Failed()))
}

// renewals measures how long the kubelet of a Node without Pods waits for the API server while it renews its Lease each second. API
// Priority and Fairness serves kubelets before others, but does not limit the manager, whose user is in the group system:masters.
type renewals struct {
	cancel  context.CancelFunc
	done    sync.WaitGroup
	seconds []float64
	failed  int
}

func (a *arena) renewLease(ctx context.Context) (*renewals, error) {
	const node = "renews"
	config, err := a.workload.ConfigFor("system:node:"+node, "system:nodes")
	if err != nil {
		return nil, err
	}
	kubelet, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "building the client of a kubelet")
	}
	leases := kubelet.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new(node)}}
	if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, errors.Wrap(err, "creating the Lease of a kubelet")
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &renewals{cancel: cancel}
	r.done.Go(func() {
		for pause(ctx, time.Second) == nil {
			began := time.Now()
			renewal := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, began.UTC().Format(metav1.RFC3339Micro))
			_, err := leases.Patch(ctx, node, types.MergePatchType, renewal, metav1.PatchOptions{})
			switch {
			case ctx.Err() != nil:
			case err != nil:
				r.failed++
			default:
				r.seconds = append(r.seconds, time.Since(began).Seconds())
			}
		}
	})
	return r, nil
}

// record ends the measurement.
func (r *renewals) record(f *figures, candidate string) {
	r.cancel()
	r.done.Wait()
	f.add(candidate+"_lease_seconds_median", median(r.seconds), "response time of a kubelet's renewal of its Lease during the burst")
	f.add(candidate+"_lease_seconds_max", quantile(r.seconds, 1), "the longest of them: a Node is not ready without a renewal for 40 s")
	f.add(candidate+"_lease_failures", r.failed, "of "+strconv.Itoa(len(r.seconds)+r.failed)+" renewals")
}

// evictionRate returns the evictions a second, from the first to the last.
func evictionRate(requests controlplane.Events) float64 {
	evictions := requests.Verb("create").Resource("pods", "eviction").Succeeded()
	if len(evictions) < 2 {
		return 0
	}
	end := slices.MaxFunc(evictions, func(a, b controlplane.Event) int { return a.Answered.Compare(b.Answered) }).Answered
	return float64(len(evictions)) / end.Sub(slices.MinFunc(evictions, byRequest).Requested).Seconds()
}

func byRequest(a, b controlplane.Event) int { return a.Requested.Compare(b.Requested) }
