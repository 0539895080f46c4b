// Package models stands for the controllers around this project in a simulation: those of kube-controller-manager, the scheduler and the
// kubelets of a workload cluster, and those of Cluster API and an infrastructure provider in a management cluster. They run on the API
// servers of package apiserver, under virtual time.
//
// A model is level-triggered. It lists objects, brings the cluster one step nearer to what the controller wants, and runs again after the
// next change. It reads the present objects, without a cache. Models do what drains observe of the real controllers. They approximate or
// omit the rest:
//
//   - A Pod is available as soon as it is ready: minReadySeconds is ignored.
//   - Deployments have no progress deadline, no proportional scaling, and keep all old ReplicaSets.
//   - StatefulSets create no ControllerRevisions, delete no PersistentVolumeClaims, and update one Pod at a time.
//   - DaemonSets update one Pod at a time: maxUnavailable and maxSurge are ignored.
//   - Jobs have no backoffLimit, deadline or index: each failed Pod is replaced.
//   - The scheduler observes taints and the node affinity of Pods and volumes. It ignores resource requests, Pod affinity, topology
//     spread constraints and priorities, and does not preempt Pods.
//   - One model is the kubelets of all Nodes with controlplane.KubeletLabel. It starts, completes and terminates Pods after delays, without
//     containers and probes. It sends no heartbeats: a kubelet stops when its Node loses the label.
//   - The node lifecycle controller sets the conditions and taints of Nodes. No Pod is deleted because of a NoExecute taint.
//   - Only CSI volumes of bound PersistentVolumeClaims are attached. The model is also the external attacher. It does not wait for the
//     kubelet to unmount a volume, and never detaches by force.
//   - HorizontalPodAutoscalers, CronJobs, ReplicationControllers and the deletion of Namespaces have no model.
//   - Clusters are provisioned at once and have no topology. Their control planes have no replicas.
//   - MachineSets have no preflight checks. Nothing remediates unhealthy Machines.
//   - Cluster API's drain evicts all Pods at once. Of MachineDrainRules, it applies behavior Skip and the label selectors of Pods only.
//   - Bootstrap data is never created: Machines need a dataSecretName.
package models

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
)

// Model is one controller.
type Model struct {
	Name string
	// User is the name of the user that makes the requests of the model.
	User string
	// Kinds are the kinds whose changes make the model run.
	Kinds []client.Object
	// Immediate models run without a delay after a change.
	Immediate bool
	// Run brings the cluster one step nearer to what the controller wants. It returns after how much time the model must run again even
	// without a change; 0 means only after a change. Run must not modify objects that it has listed.
	Run func(ctx context.Context, c client.Client) (again time.Duration, err error)
}

// Options are the options of Start.
type Options struct {
	// Random is the source of the random delays. Start draws one seed for each model from it.
	Random *rand.Rand
	// Paused returns whether a model is paused: a fault. It is polled.
	Paused func(model string) bool
	// OnError is called with each error that is not a conflict.
	OnError func(model string, err error)
}

const (
	// pausePoll is how often a paused model checks whether it is still paused.
	pausePoll = 100 * time.Millisecond
	// retryDelay is the time after which a failed model runs again.
	retryDelay = 200 * time.Millisecond
)

// Start runs models on a server until the context ends.
func Start(ctx context.Context, s *apiserver.Server, models []Model, options Options) {
	byKind := map[reflect.Type][]*runner{}
	var runners []*runner
	for _, model := range models {
		r := &runner{
			Model: model, options: options, client: s.Client(model.User), random: newRandom(options.Random), wake: make(chan struct{}, 1),
		}
		r.wake <- struct{}{}
		runners = append(runners, r)
		for _, kind := range model.Kinds {
			byKind[reflect.TypeOf(kind)] = append(byKind[reflect.TypeOf(kind)], r)
		}
	}
	s.OnChange(func(change apiserver.Change) {
		object := change.New
		if object == nil {
			object = change.Old
		}
		for _, r := range byKind[reflect.TypeOf(object)] {
			select {
			case r.wake <- struct{}{}:
			default: // it runs anyway
			}
		}
	})
	for _, r := range runners {
		go r.run(ctx)
	}
}

// newRandom returns a separate source for one goroutine.
func newRandom(random *rand.Rand) *rand.Rand {
	return rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
}

// runner runs a model.
type runner struct {
	Model
	options Options
	client  client.Client
	random  *rand.Rand
	wake    chan struct{} // has an element if there was a change
}

func (r *runner) run(ctx context.Context) {
	var again time.Duration
	for r.await(ctx, again) {
		select {
		case <-r.wake: // this run observes that change
		default:
		}
		var err error
		again, err = r.Run(ctx, r.client)
		if err != nil {
			again = sooner(again, retryDelay)
			r.report(err)
		}
	}
}

// await waits until the model must run. It returns false if the context has ended.
func (r *runner) await(ctx context.Context, again time.Duration) bool {
	if r.awaitChange(ctx, again) {
		sleep(ctx, r.delay())
	}
	for r.options.Paused != nil && r.options.Paused(r.Name) && ctx.Err() == nil {
		sleep(ctx, pausePoll)
	}
	return ctx.Err() == nil
}

// awaitChange waits for a change, for a limited time if that is not 0. It returns whether there was a change.
func (r *runner) awaitChange(ctx context.Context, limit time.Duration) bool {
	var due <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.wake:
		return true
	case <-due:
		return false
	}
}

// report calls OnError, unless the error is a conflict.
func (r *runner) report(err error) {
	if cause := errors.Cause(err); r.options.OnError != nil && !apierrors.IsConflict(cause) && !apierrors.IsAlreadyExists(cause) {
		r.options.OnError(r.Name, err)
	}
}

// delay returns how long the model waits after a change: mostly a short time.
func (r *runner) delay() time.Duration {
	switch {
	case r.Immediate:
		return 0
	case r.random.IntN(5) > 0:
		return between(r.random, 5*time.Millisecond, 50*time.Millisecond)
	default:
		return between(r.random, 50*time.Millisecond, time.Second)
	}
}

// between returns a random duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(max(most-least, 1))))
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// sooner returns the shorter one of two durations, of which 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// now returns the time in the precision of the API.
func now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

// read lists objects of all namespaces, which the server sorts. They may be shared with it: a model changes copies of them.
func read(ctx context.Context, c client.Client, lists ...client.ObjectList) error {
	for _, list := range lists {
		if err := c.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return errors.Wrapf(err, "listing %T", list)
		}
	}
	return nil
}

// pointers returns pointers to the elements of a slice.
func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// setStatus writes what change does to the status of an object, unless that is nothing.
func setStatus[T client.Object](ctx context.Context, c client.Client, present T, change func(T)) error {
	changed, _ := present.DeepCopyObject().(T)
	change(changed)
	if apiserver.Equal(present, changed) {
		return nil
	}
	return errors.Wrapf(client.IgnoreNotFound(c.Status().Update(ctx, changed)), "updating the status of %T %s", present, present.GetName())
}

// update writes what change does to an object except its status, unless that is nothing. It returns the stored object.
func update[T client.Object](ctx context.Context, c client.Client, present T, change func(T)) (T, error) {
	changed, _ := present.DeepCopyObject().(T)
	change(changed)
	if apiserver.Equal(present, changed) {
		return present, nil
	}
	return changed, errors.Wrapf(client.IgnoreNotFound(c.Update(ctx, changed)), "updating %T %s", present, present.GetName())
}

// remove deletes an object, unless another object has its name.
func remove(ctx context.Context, c client.Client, object client.Object, options ...client.DeleteOption) error {
	if object.GetDeletionTimestamp() != nil && len(options) == 0 {
		return nil
	}
	options = append(options, client.Preconditions{UID: ptr.To(object.GetUID())})
	return errors.Wrapf(client.IgnoreNotFound(c.Delete(ctx, object, options...)), "deleting %T %s", object, object.GetName())
}

// create creates an object, unless it exists.
func create(ctx context.Context, c client.Client, object client.Object) error {
	return errors.Wrapf(client.IgnoreAlreadyExists(c.Create(ctx, object)), "creating %T %s", object, object.GetName())
}

// hashes are hashes of the templates of objects. They are computed once.
type hashes map[types.UID]hashed

type hashed struct {
	template any
	hash     string
}

// of returns the hash of the template of an object.
func (h hashes) of(object client.Object, template any) string {
	if known, ok := h[object.GetUID()]; ok && apiserver.Equal(known.template, template) {
		return known.hash
	}
	hash := hashOf(dump.ForHash(template))
	h[object.GetUID()] = hashed{template, hash}
	return hash
}

func hashOf(content string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(content)) // Write of a hash never fails.
	return utilrand.SafeEncodeString(fmt.Sprint(hash.Sum32()))
}

// replicaShare is the part of the replicas that one ReplicaSet or MachineSet has during a rolling update.
type replicaShare struct {
	replicas  int32 // wanted
	present   int32 // existing
	available int32
}

// roll changes how many replicas of each set are wanted: the next step of a rolling update to the newest set.
func roll(desired, maxSurge, maxUnavailable int32, newest *replicaShare, old []*replicaShare) {
	total := int32(0)
	for _, share := range append([]*replicaShare{newest}, old...) {
		total += max(share.replicas, share.present)
	}
	if newest.replicas < desired {
		newest.replicas += max(0, min(desired+maxSurge-total, desired-newest.replicas))
	} else {
		newest.replicas = desired
	}
	least := desired - maxUnavailable
	wanted, available := newest.replicas, min(newest.available, newest.replicas)
	for _, share := range old {
		wanted += share.replicas
		available += min(share.available, share.replicas)
	}
	removable := wanted - least - max(0, newest.replicas-newest.available)
	for _, share := range old { // unhealthy replicas
		fewer := max(0, min(removable, share.replicas-share.available))
		share.replicas, removable = share.replicas-fewer, removable-fewer
	}
	removable = min(removable, available-least)
	for _, share := range old {
		fewer := max(0, min(removable, share.replicas))
		share.replicas, removable = share.replicas-fewer, removable-fewer
	}
}

// byController returns objects by the UID of their controller, without those that have none.
func byController[T client.Object](objects []T) map[types.UID][]T {
	controlled := map[types.UID][]T{}
	for _, object := range objects {
		if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
			controlled[owner.UID] = append(controlled[owner.UID], object)
		}
	}
	return controlled
}

// podsAndNodes returns all Pods and all Nodes.
func podsAndNodes(ctx context.Context, c client.Client) ([]*corev1.Pod, []*corev1.Node, error) {
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	err := read(ctx, c, pods, nodes)
	return pointers(pods.Items), pointers(nodes.Items), err
}

// podCondition returns a condition of a Pod, or nil.
func podCondition(pod *corev1.Pod, conditionType corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == conditionType {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// setPodCondition sets a condition of a Pod, unless the Pod has it with the same status.
func setPodCondition(pod *corev1.Pod, condition corev1.PodCondition) {
	condition.LastTransitionTime = now()
	if present := podCondition(pod, condition.Type); present == nil {
		pod.Status.Conditions = append(pod.Status.Conditions, condition)
	} else if present.Status != condition.Status {
		*present = condition
	}
}
