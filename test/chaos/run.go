package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

const (
	// injecting limits the requests of a fault, whose API server may be frozen.
	injecting = 4 * time.Second
	// healing limits how long it takes until a fault is healed, while other ones last.
	healing = 2 * time.Minute
	// liveness is the time in which a drain must finish after the last fault was healed. An eviction that was cut off may cost its budget a
	// disruption for two minutes.
	liveness = 3 * time.Minute
	// excused is how long a Machine must name what blocks it.
	excused = 3 * time.Second
)

// run is one run of a schedule.
type run struct {
	*world
	schedule  Schedule
	namespace string
	started   time.Time

	lock     sync.Mutex
	unhooked map[string]bool
	lines    []logLine
	// unanswered heals the faults whose requests failed. An etcd that was frozen may carry out such a request after it was healed.
	unanswered []heal
	faults     []InjectedFault
	// clockOff is how far the clock of a manager was wrong at most.
	clockOff time.Duration
	// clusterDeleted is when a fault first deleted the Cluster, zero if none did.
	clusterDeleted time.Time
}

// logf records what happens.
func (r *run) logf(format string, args ...any) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.lines = append(r.lines, logLine{time.Now(), fmt.Sprintf(format, args...)})
}

// logLine is something that happened.
type logLine struct {
	at   time.Time
	what string
}

// log returns what happened, a line for each thing, with the time since the start of the faults.
func (r *run) log() []string {
	r.lock.Lock()
	defer r.lock.Unlock()
	slices.SortStableFunc(r.lines, func(a, b logLine) int { return a.at.Compare(b.at) })
	lines := make([]string, len(r.lines))
	for i, line := range r.lines {
		lines[i] = fmt.Sprintf("%7.2f %s", line.at.Sub(r.started).Seconds(), line.what)
	}
	return lines
}

// unhook records that a fault removes the hook of a Machine.
func (r *run) unhook(machine string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.unhooked[machine] = true
}

func (r *run) isUnhooked(machine string) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.unhooked[machine]
}

// setClockOff records that the clock of a manager is ahead, or behind if the offset is negative.
func (r *run) setClockOff(offset time.Duration) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.clockOff = max(r.clockOff, offset.Abs())
}

// endCluster records that a fault deletes the Cluster.
func (r *run) endCluster() {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.clusterDeleted.IsZero() {
		r.clusterDeleted = time.Now()
	}
	r.ended = true
}

// isDrained returns whether an object is a Machine that the run deletes, or its Node.
func (r *run) isDrained(o client.Object) bool {
	return slices.ContainsFunc(r.schedule.Drains, func(d Drain) bool { return d.Machine == o.GetName() })
}

// isLoad returns whether an object belongs to the generated load.
func (r *run) isLoad(o client.Object) bool { return o.GetNamespace() == r.namespace }

// play runs a schedule. It returns what happened, what is violated, and an error if the run could not be carried out.
func (w *world) play(ctx context.Context, schedule Schedule, table []fault) (log, violations []string, err error) {
	schedule.Drains = slices.Clone(schedule.Drains) // a rollout changes the names
	r := &run{world: w, schedule: schedule, namespace: fmt.Sprintf("chaos-%d", schedule.Seed), started: time.Now(), unhooked: map[string]bool{}}
	if err := r.prepare(ctx); err != nil {
		return r.log(), nil, errors.Wrap(err, "preparing the run")
	}
	r.logf("prepared")
	record, err := r.record(ctx)
	if err != nil {
		return r.log(), nil, err
	}
	r.started = time.Now()
	if err := r.inject(ctx, table); err != nil {
		return r.log(), nil, err
	}
	if r.schedule.Move {
		if err := r.move(ctx, record.(*Recording)); err != nil { // a simulation has no move
			return r.log(), nil, errors.Wrap(err, "moving the Cluster")
		}
	}
	violations = append(violations, r.expectProgress(ctx)...)
	r.logf("drains ended or named what blocks them")
	violations = append(violations, r.expectBundle(ctx)...)
	violations = append(violations, r.unblock(ctx)...)
	r.logf("all drains ended")
	history, err := r.stopRecording(ctx, record)
	if err != nil {
		return r.log(), violations, err
	}
	evictions, cutOff := 0, 0
	for _, each := range history.removals() {
		if each.succeeded() {
			evictions++
		} else {
			cutOff++
		}
	}
	r.logf("checking %d versions, %d requests, %d removals of Pods that succeeded and %d that did not",
		len(history.Workload.Versions)+len(history.Management.Versions), len(history.Workload.Audit)+len(history.Management.Audit), evictions, cutOff)
	for _, release := range history.allReleases() {
		r.logf("%s", release)
	}
	violations = append(violations, history.Violations()...)
	for _, m := range r.allManagers() {
		violations = append(violations, m.failures()...)
	}
	if len(violations) > 0 && r.simulated != nil {
		r.tellWrites(history)
	}
	if len(violations) > 0 || r.ended {
		return r.log(), violations, nil
	}
	r.stopOthers()
	return r.log(), nil, r.clear(ctx)
}

// prepare creates the Machines and the load of the run. The Nodes that stay are cordoned meanwhile, so that the Pods are on the other ones.
func (r *run) prepare(ctx context.Context) error {
	policy := &v1alpha1.MachineDrainPolicy{}
	if err := eventually(ctx, time.Minute, "the policy is set", func(ctx context.Context) error {
		if err := r.fleet.Client.Get(ctx, client.ObjectKey{Namespace: r.home(), Name: policyName}, policy); err != nil {
			return errors.Wrap(err, "getting the policy")
		}
		policy.Spec = r.schedule.Policy
		return errors.Wrap(r.fleet.Client.Update(ctx, policy), "setting the policy")
	}); err != nil {
		return err
	}
	if err := r.cordonKeepers(ctx, true, true); err != nil {
		return err
	}
	machines, err := r.createMachines(ctx)
	if err != nil {
		return err
	}
	if err := r.createLoad(ctx, machines); err != nil {
		return err
	}
	if r.schedule.Move {
		if err := r.prepareMove(ctx); err != nil {
			return err
		}
	}
	if err := eventually(ctx, 2*time.Minute, "the load runs", func(ctx context.Context) error {
		if err := r.startExited(ctx); err != nil { // a scheduler may exit after a fault of the run before
			return err
		}
		return r.loadRuns(ctx)
	}); err != nil {
		return err
	}
	if err := r.cordonKeepers(ctx, r.schedule.CordonedBefore, false); err != nil {
		return err
	}
	return r.prepared.await(ctx)
}

// createMachines creates the Machines that are drained, and returns their names.
func (r *run) createMachines(ctx context.Context) (names []string, err error) {
	drains := r.schedule.Drains
	if r.schedule.Rollout {
		if names, err = r.addMachineDeployment(ctx, r.namespace, len(drains), drains[0].Timeout); err != nil {
			return nil, err
		}
		for i := range drains {
			drains[i].Machine = names[i]
		}
		return names, nil
	}
	for _, drain := range drains {
		names = append(names, drain.Machine)
	}
	if err := r.addMachines(ctx, names...); err != nil {
		return nil, err
	}
	for _, drain := range drains {
		if drain.Timeout == 0 {
			continue
		}
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: r.home(), Name: drain.Machine}}
		if err := patch(ctx, r.fleet.Client, machine, timeouts(drain.Timeout)); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// rollOut makes the MachineDeployment replace its Machines.
func (r *run) rollOut(ctx context.Context) error {
	deployment := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: r.home(), Name: r.namespace}}
	err := patch(ctx, r.fleet.Client, deployment, `{"spec":{"template":{"spec":{"bootstrap":{"dataSecretName":"another"}}}}}`)
	return client.IgnoreNotFound(errors.Cause(err)) // deleted with its Cluster
}

func (r *run) cordonKeepers(ctx context.Context, cordoned ...bool) error {
	for i, name := range keepers {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := patch(ctx, r.workload.Client, node, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, cordoned[i])); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) createLoad(ctx context.Context, nodes []string) error {
	if err := r.workload.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}}); client.IgnoreAlreadyExists(err) != nil {
		return errors.Wrap(err, "creating the namespace")
	}
	err := eventually(ctx, time.Minute, "the namespace has a ServiceAccount", func(ctx context.Context) error {
		return r.workload.Client.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
	if err != nil {
		return err
	}
	for _, app := range r.schedule.Apps {
		for _, object := range app.Objects(r.namespace, nodes) {
			if err := r.workload.Client.Create(ctx, object); err != nil {
				return errors.Wrapf(err, "creating %T %s", object, object.GetName())
			}
		}
		if rule := app.Rule(r.namespace); rule != nil {
			rule.Namespace = r.home()
			if err := r.fleet.Client.Create(ctx, rule); err != nil {
				return errors.Wrapf(err, "creating MachineDrainRule %s", rule.Name)
			}
		}
	}
	return nil
}

// loadRuns returns nil when all Pods run and the budgets have counted them.
func (r *run) loadRuns(ctx context.Context) error {
	pods, budgets := &corev1.PodList{}, &policyv1.PodDisruptionBudgetList{}
	for _, list := range []client.ObjectList{pods, budgets} {
		if err := r.workload.Client.List(ctx, list, client.InNamespace(r.namespace), client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
	}
	count := map[string]int32{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if rules.Ready(pod) || pod.Status.Phase == corev1.PodSucceeded || metav1.GetControllerOf(pod) != nil && metav1.GetControllerOf(pod).Kind == "Job" {
			count[pod.Labels["app"]]++
		}
	}
	for _, app := range r.schedule.Apps {
		if count[app.Name] < app.Replicas && app.Kind != "DaemonSet" {
			return errors.Errorf("%d of %d Pods of %s run", count[app.Name], app.Replicas, app.Name)
		}
	}
	return budgetsCounted(budgets.Items)
}

// budgetsCounted returns nil when the disruption controller has counted the Pods of the budgets. It counts a Pod that becomes ready for
// only one of two budgets that select it.
func budgetsCounted(budgets []policyv1.PodDisruptionBudget) error {
	for i := range budgets {
		b := &budgets[i]
		shared := slices.ContainsFunc(budgets, func(other policyv1.PodDisruptionBudget) bool {
			return other.Name != b.Name && maps.Equal(other.Labels, b.Labels)
		})
		if b.Status.ObservedGeneration != b.Generation || b.Status.CurrentHealthy < b.Status.ExpectedPods && !shared {
			return errors.Errorf("PodDisruptionBudget %s has counted %d of %d Pods", b.Name, b.Status.CurrentHealthy, b.Status.ExpectedPods)
		}
	}
	return nil
}

// inject carries out the schedule, and heals all faults.
func (r *run) inject(ctx context.Context, table []fault) error {
	var all sync.WaitGroup
	failures := make(chan error, len(r.schedule.Faults)+len(r.schedule.Drains)+1)
	at := func(offset time.Duration, do func() error) {
		all.Go(func() {
			r.waitUntil(ctx, offset)
			if err := do(); err != nil {
				failures <- err
			}
		})
	}
	if r.schedule.Rollout {
		at(r.schedule.Drains[0].At, func() error { return r.request(ctx, "roll out", r.rollOut) })
	} else {
		for _, drain := range r.schedule.Drains {
			at(drain.At, func() error { return r.request(ctx, "delete Machine "+drain.Machine, r.deleteMachine(drain.Machine)) })
		}
	}
	at(r.schedule.UserDrain, func() error { return r.request(ctx, "drain Node "+keepers[0], r.createUserMaintenance) })
	for _, step := range r.schedule.Faults {
		f := table[slices.IndexFunc(table, func(f fault) bool { return f.name == step.Fault })]
		at(step.At, func() error { return r.fail(ctx, f, step) })
	}
	all.Wait()
	close(failures)
	for err := range failures {
		return err
	}
	for _, undo := range r.unanswered {
		if err := eventually(ctx, healing, "what was not answered is healed", undo); err != nil {
			return err
		}
	}
	if err := r.healed.await(ctx); err != nil {
		return err
	}
	return eventually(ctx, healing, "the managers run", r.startManagers)
}

func (r *run) waitUntil(ctx context.Context, offset time.Duration) {
	timer := time.NewTimer(time.Until(r.started.Add(offset)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// request repeats a request of a user until it succeeds.
func (r *run) request(ctx context.Context, what string, do func(context.Context) error) error {
	err := eventually(ctx, r.patience(healing), what+" succeeds", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, injecting)
		defer cancel()
		return do(ctx)
	})
	r.logf("%s", what)
	return err
}

// patience returns a limit of the run. In a simulation, faults may last for ten times as long, and what they leave behind more often delays
// one drain after the other.
func (r *run) patience(limit time.Duration) time.Duration {
	if r.simulated != nil {
		return 10 * limit
	}
	return limit
}

func (r *run) deleteMachine(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: r.home(), Name: name}}
		return client.IgnoreNotFound(r.fleet.Client.Delete(ctx, machine))
	}
}

func (r *run) userMaintenance() *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "user-" + r.namespace},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes(keepers[0]), Stage: v1alpha1.StageDrain},
	}
}

// createUserMaintenance creates the NodeMaintenance of a user. A CRD that was deleted is not restored after the Cluster was deleted.
func (r *run) createUserMaintenance(ctx context.Context) error {
	err := r.workload.Client.Create(ctx, r.userMaintenance())
	if (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)) && r.hasEnded() {
		return nil
	}
	return client.IgnoreAlreadyExists(err)
}

// hasEnded returns whether a fault has deleted the Cluster.
func (r *run) hasEnded() bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.ended
}

// endFault records that a fault has ended.
func (r *run) endFault(name string, began time.Time) {
	r.lock.Lock()
	defer r.lock.Unlock()
	fault := InjectedFault{Period{began, time.Now()}, name}
	if r.simulated == nil || !r.simulated.addShared(fault) {
		r.faults = append(r.faults, fault)
	}
}

// fail injects a fault and heals it.
func (r *run) fail(ctx context.Context, f fault, step Step) error {
	defer r.endFault(f.name, time.Now())
	limited, cancel := context.WithTimeout(ctx, injecting)
	undo, err := f.inject(limited, r, step.Pick)
	cancel()
	if err != nil {
		r.logf("%s: not injected: %v", f.name, err)
	} else {
		r.logf("%s", f.name)
	}
	if undo == nil {
		return nil
	}
	if err != nil {
		r.lock.Lock()
		r.unanswered = append(r.unanswered, undo)
		r.lock.Unlock()
	}
	r.waitUntil(ctx, step.At+step.For)
	err = eventually(ctx, r.patience(healing), f.name+" is healed", undo)
	r.logf("%s: healed", f.name)
	return err
}

// blockers returns the names of the workloads that may block drains, as the messages of conditions have them. Pods and budgets of a
// workload have names that begin with its name.
func (r *run) blockers() []string {
	var names []string
	if r.ended { // nothing blocks Machines whose Cluster is being deleted
		return nil
	}
	for _, app := range r.schedule.Apps {
		if app.Blocks() {
			names = append(names, r.namespace+"/"+app.Name)
		}
	}
	return names
}
