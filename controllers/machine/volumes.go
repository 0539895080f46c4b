package machine

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// parallelReads is the maximum number of concurrent reads of PersistentVolumes and claims.
const parallelReads = 8

// awaitVolumesDetached waits until the volumes that must detach from the Node have detached, or the wait times out. The API server is asked
// before the wait ends otherwise: the watch of Nodes may lag.
func (r *Reconciler) awaitVolumesDetached(ctx context.Context, s *scope) (outcome, error) {
	result, err := r.awaitVolumes(ctx, s)
	if err != nil || result.action != proceed || s.volumesTimeoutMessage != "" || machinedrain.DaemonSetRuleLifted(s.maintenance) {
		return result, err
	}
	return r.confirmVolumes(ctx, s)
}

// confirmVolumes reads the Node from the API server, and waits for its volumes if the cached Node had others, or was unreachable. It does
// not list the VolumeAttachments, of which a cluster may have tens of thousands: a volume is mounted only while status.volumesAttached has
// it.
func (r *Reconciler) confirmVolumes(ctx context.Context, s *scope) (outcome, error) {
	s.confirming = s.drainTimeoutMessage == ""
	node, waiting, err := r.readNode(ctx, s)
	if err != nil || waiting.action == wait {
		return waiting, err
	}
	known := s.node
	s.confirming, s.node = false, node
	if machinedrain.WaitsForVolumes(s.machine, known) && apiequality.Semantic.DeepEqual(known.Status.VolumesAttached, node.Status.VolumesAttached) {
		return outcome{}, nil
	}
	return r.awaitVolumes(ctx, s)
}

// readNode reads the Node from the API server, once in a reconciliation. It waits while that has another Node than the cache.
func (r *Reconciler) readNode(ctx context.Context, s *scope) (*corev1.Node, outcome, error) {
	if s.liveNode != nil {
		return s.liveNode, outcome{}, nil
	}
	live, err := r.Clusters.UncachedClient(ctx, s.clusterKey())
	if err != nil {
		waiting, err := r.unreachable(ctx, s, err)
		return nil, waiting, err
	}
	node := &corev1.Node{}
	found, err := readOne(ctx, live, client.ObjectKeyFromObject(s.node), node)
	switch {
	case err != nil:
		waiting, err := r.unreachable(ctx, s, err)
		return nil, waiting, err
	case !found, node.UID != s.node.UID:
		return nil, waitForNode(s, "observed"), nil
	}
	s.liveNode = node
	return node, outcome{}, nil
}

func waitForNode(s *scope, until string) outcome {
	message := "Waiting for Node " + s.node.Name + " to be " + until
	return outcome{action: wait, reason: v1alpha1.ReasonMachineDraining, message: message, at: s.now.Add(observeRetry)}
}

// reportUnobservedAfter is for how long the condition does not say that the first lists of the volumes of a Node are missing. They usually
// arrive within a second. After a restart, the condition stays meanwhile.
const reportUnobservedAfter = 10 * time.Second

func unobservedVolumesMessage(node *corev1.Node, since time.Time) string {
	return fmt.Sprintf("Waiting for the first list of VolumeAttachments and Pods, to find the volumes of Node %s (started at %s)", node.Name,
		since.UTC().Format(time.RFC3339))
}

// awaitVolumes waits for the volumes of the Node in scope. The time of the wait also counts while the Node is unreachable, unless the drain
// has timed out: before the Machine is released, the Node may be reachable again, or the manager may lose contact.
func (r *Reconciler) awaitVolumes(ctx context.Context, s *scope) (outcome, error) {
	waits, start := machinedrain.WaitsForVolumes(s.machine, s.node), s.clock().VolumeWaitStart(s.machine, s.maintenance, s.now)
	switch {
	case machinedrain.DaemonSetRuleLifted(s.maintenance): // the wait for volumes precedes the drain of the Pods of DaemonSets
		s.volumesOver = waits
		return outcome{}, nil
	case waits, rules.Unreachable(s.node) && s.drainTimeoutMessage == "":
		s.VolumeWaitStart = &start
	}
	if !waits {
		return outcome{}, nil
	}
	decision, known, err := r.volumes(ctx, s)
	if err != nil {
		return r.unreachable(ctx, s, err)
	}
	observeVolumes(s, decision)
	if known {
		r.volumeFacts.count(client.ObjectKeyFromObject(s.machine), decision.Count(), s.now)
	}
	if known && decision.Detached() {
		s.volumesOver = true
		return outcome{}, nil
	}
	waiting := outcome{action: wait}
	if known {
		waiting.reason, waiting.message = v1alpha1.ReasonWaitingForVolumeDetach, decision.Message(start)
	} else if failure := r.maintenanceFailure(ctx, s); failure != nil {
		waiting.reason, waiting.message = v1alpha1.ReasonReconcileFailed, machinedrain.FailureMessage(failure)
	}
	if waiting.reason == "" { // volumes do not time out before they were observed
		reportAt := r.volumeFacts.unobservedSince(client.ObjectKeyFromObject(s.machine), s.now).Add(reportUnobservedAfter)
		if s.now.Before(reportAt) {
			return s.requeueBy(&reportAt, waiting), nil
		}
		waiting.reason, waiting.message = v1alpha1.ReasonWaitingForVolumeDetach, unobservedVolumesMessage(s.node, start)
		return s.requeueBy(nil, waiting), nil
	}
	deadline := s.clock().VolumeDeadline(s.machine)
	if s.exceeds(deadline) {
		s.volumesTimedOut(waiting.message)
		return outcome{}, nil
	}
	return s.requeueBy(deadline, waiting), nil
}

// volumes returns which volumes of the Node must still detach. known is false until the first lists of the watches have arrived.
//
// VolumeAttachments and Pods come from watches. PersistentVolumes and claims are read by name, see volumeFacts.
func (r *Reconciler) volumes(ctx context.Context, s *scope) (_ volumes.Decision, known bool, _ error) {
	observation, err := r.Clusters.ObserveVolumes(ctx, s.clusterKey(), watchOwner(client.ObjectKeyFromObject(s.machine)), s.node.Name)
	if err != nil || observation == nil {
		return volumes.Decision{}, false, err
	}
	seen, known := observeNode(observation, s.node, s.maintenance)
	if !known {
		return volumes.Decision{}, false, nil
	}
	live, err := r.Clusters.UncachedClient(ctx, s.clusterKey())
	if err != nil {
		return volumes.Decision{}, false, err
	}
	seen.Facts = r.volumeFacts.of(client.ObjectKeyFromObject(s.machine))
	for {
		decision := volumes.Decide(seen)
		if decision.Missing.None() {
			r.volumeFacts.keep(client.ObjectKeyFromObject(s.machine), seen, decision)
			return decision, true, nil
		}
		if err := read(ctx, live, decision.Missing, seen.Facts); err != nil {
			return volumes.Decision{}, false, err
		}
	}
}

// observeNode returns the volumes that are attached to a Node, and the Pods on it that use volumes.
func observeNode(observation workload.Observation, node *corev1.Node, m *v1alpha1.NodeMaintenance) (seen volumes.Observation, known bool) {
	pods, podsKnown := observation.PodsOn(node.Name)
	attachments, attachmentsKnown := observation.AttachmentsTo(node.Name)
	if !podsKnown || !attachmentsKnown {
		return seen, false
	}
	for _, attached := range node.Status.VolumesAttached {
		seen.Attached = append(seen.Attached, string(attached.Name))
	}
	for _, attachment := range attachments {
		if attachment.Status.Attached { // as Cluster API v1.14.2, getVolumeAttachmentForNode
			volume := attachment.Spec.Source.PersistentVolumeName
			seen.Attachments = append(seen.Attachments, volumes.NewAttachment(attachment.Name, volume))
		}
	}
	matcher := rules.NewMatcher(rules.InEffect(&m.Spec))
	for _, pod := range pods {
		stays := matcher.Skips(planinput.RulePod(observation, pod))
		if stays || !rules.Finished(pod) { // the kubelet unmounts the volumes of a Pod that has finished
			seen.Pods = append(seen.Pods, volumes.Pod{Claims: volumes.ClaimsOf(pod), Skipped: stays})
		}
	}
	return seen, true
}

// read reads the missing objects into facts. An object that does not exist becomes a zero value.
func read(ctx context.Context, live client.Reader, missing volumes.Missing, facts volumes.Facts) error {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	for _, name := range missing.Volumes {
		group.Go(func() error {
			volume := &corev1.PersistentVolume{}
			found, err := readOne(ctx, live, types.NamespacedName{Name: name}, volume)
			fact := volumes.Volume{}
			if found {
				var problem error
				if fact, problem = volumes.VolumeOf(volume); problem != nil {
					ctrl.LoggerFrom(ctx).Error(problem, "Waiting for the volume by its name in the Node's status.volumesAttached", "PersistentVolume", klog.KObj(volume))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			facts.Volumes[name] = fact
			return err
		})
	}
	for _, key := range missing.Claims {
		group.Go(func() error {
			claim := &corev1.PersistentVolumeClaim{}
			_, err := readOne(ctx, live, key, claim)
			mu.Lock()
			defer mu.Unlock()
			facts.Claims[key] = volumes.Claim{Volume: claim.Spec.VolumeName}
			return err
		})
	}
	return group.Wait()
}

func readOne(ctx context.Context, live client.Reader, key types.NamespacedName, object client.Object) (found bool, _ error) {
	err := live.Get(ctx, key, object)
	if answers.DoesNotExist(err) {
		return false, nil
	}
	return err == nil, errors.Wrapf(err, "getting %T %s", object, key)
}

// volumeFacts caches what has been read for a Machine until its hook is released. It only saves reads. It does not keep objects that do not
// exist or are not bound, because they may change, and those of volumes that are no longer attached and Pods that no longer exist. While an
// attached volume is unmatched, it keeps no claims: one may have been recreated with its name.
type volumeFacts struct {
	mu         sync.Mutex
	byMachine  map[types.NamespacedName]volumes.Facts
	attached   map[types.NamespacedName]attachedVolumes
	unobserved map[types.NamespacedName]time.Time // since when Machines have waited for the first lists
}

// attachedVolumes is how many volumes a Machine waits for, and since when that has not become less: the time of the first observation, or
// of the last detach.
type attachedVolumes struct {
	count int
	since time.Time
}

func (f *volumeFacts) count(machine types.NamespacedName, count int, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.attached == nil {
		f.attached = map[types.NamespacedName]attachedVolumes{}
	}
	present := attachedVolumes{count: count, since: now}
	if before, known := f.attached[machine]; known && count >= before.count {
		present.since = before.since
	}
	f.attached[machine] = present
	delete(f.unobserved, machine)
}

// unobservedSince returns since when a Machine has waited for the first lists of its volumes.
func (f *volumeFacts) unobservedSince(machine types.NamespacedName, now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unobserved == nil {
		f.unobserved = map[types.NamespacedName]time.Time{}
	}
	if _, found := f.unobserved[machine]; !found {
		f.unobserved[machine] = now
	}
	return f.unobserved[machine]
}

// lastDetached returns when the last volume of a Machine was detached as far as this process knows, zero if it has not observed the
// volumes.
func (f *volumeFacts) lastDetached(machine types.NamespacedName) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attached[machine].since
}

func (f *volumeFacts) of(machine types.NamespacedName) volumes.Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	facts := volumes.Facts{Claims: map[types.NamespacedName]volumes.Claim{}, Volumes: map[string]volumes.Volume{}}
	maps.Copy(facts.Claims, f.byMachine[machine].Claims)
	maps.Copy(facts.Volumes, f.byMachine[machine].Volumes)
	return facts
}

func (f *volumeFacts) keep(machine types.NamespacedName, seen volumes.Observation, decision volumes.Decision) {
	facts, claims, names := seen.Facts, sets.New[types.NamespacedName](), sets.New[string]()
	for _, attachment := range seen.Attachments {
		names.Insert(attachment.PersistentVolume)
	}
	for _, pod := range seen.Pods {
		for _, key := range pod.Claims {
			claims.Insert(key)
			names.Insert(facts.Claims[key].Volume)
		}
	}
	maps.DeleteFunc(facts.Claims, func(key types.NamespacedName, claim volumes.Claim) bool {
		return claim.Volume == "" || !claims.Has(key) || len(decision.Waiting[volumes.Unmatched]) > 0
	})
	maps.DeleteFunc(facts.Volumes, func(name string, volume volumes.Volume) bool { return volume.Claim == nil || !names.Has(name) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byMachine == nil {
		f.byMachine = map[types.NamespacedName]volumes.Facts{}
	}
	f.byMachine[machine] = facts
}

func (f *volumeFacts) forget(machine types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byMachine, machine)
	delete(f.attached, machine)
	delete(f.unobserved, machine)
}

// watchOwner returns the name of a Machine as an owner of drain watches.
func watchOwner(machine types.NamespacedName) string { return "Machine/" + machine.String() }
