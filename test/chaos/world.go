package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

const (
	clusterName  = "c1"
	policyName   = "all"
	startTimeout = 8 * time.Minute
)

// keepers are the Machines that stay. A user drains the Node of the first one; the second one takes all Pods.
var keepers = []string{"keep-0", "keep-1"}

// world is a fleet in which runs follow one another.
type world struct {
	management
	// next is where a run will move the Cluster to, former where it has moved it from. Their fleets are nil if there is no such move.
	next, former management
	workload     *fleet.Workload
	cluster      kwok.Cluster
	// simulated stands for the control planes, whose fleets have clients only. It is nil if they are real.
	simulated *simulated
	// remote is the workload cluster of a simulation.
	remote *simulatedCluster
	// prepared and healed are where runs on the two Clusters of a simulation await each other: after their preparation, and after their
	// faults. They are nil if there is one Cluster.
	prepared, healed *meeting
	// detach stops the attacher of the workload cluster.
	detach context.CancelFunc
	// ended is true when a fault has deleted the Cluster, so that no further run is possible.
	ended bool
}

// home returns the namespace of the Cluster, its Machines, rules and policy.
func (w *world) home() string { return w.cluster.Key().Namespace }

// management is a management cluster with our managers.
type management struct {
	fleet    *fleet.Fleet
	managers []*managerProcess
}

// newWorld starts a fleet with a number of managers, of which one is the leader.
func newWorld(ctx context.Context, replicas int) (_ *world, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	w := &world{detach: func() {}, cluster: kwok.NewCluster(clusterName).WithExternalControlPlane()}
	if w.fleet, err = fleet.Start(ctx, fleet.Options{WithoutManager: true}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.stop()
		}
	}()
	w.workload = w.fleet.Workloads["workload"]
	if err := w.fleet.Connect(w.cluster, "workload"); err != nil {
		return nil, err
	}
	attaching, detach := context.WithCancel(context.WithoutCancel(ctx))
	w.detach = detach
	if _, err := storage.StartAttacher(attaching, w.workload.Client, time.Second); err != nil {
		return nil, err
	}
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: policyName}}
	if err := kwok.Create(ctx, w.fleet.Client, []client.Object{policy}, w.cluster.Objects()); err != nil {
		return nil, err
	}
	if err := w.addManagers(ctx, replicas); err != nil {
		return nil, err
	}
	return w, w.addMachines(ctx, keepers...)
}

// addManagers starts our managers, of which one is the leader.
func (m *management) addManagers(ctx context.Context, replicas int) error {
	if err := kwok.Create(ctx, m.fleet.Client, leaderElection()); err != nil {
		return err
	}
	for i := range replicas {
		manager := &managerProcess{name: fmt.Sprintf("manager-%d", i), replaceable: replicas > 1, lock: make(lock, 1)}
		manager.begin = processOf(m.fleet, manager)
		if replicas > 1 {
			manager.args = []string{
				"--leader-elect", "--leader-elect-resource-namespace=" + metav1.NamespaceDefault,
				"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s",
			}
		}
		m.managers = append(m.managers, manager)
		if err := manager.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leaderElection is the role that an installation has for its lease.
func leaderElection() []client.Object {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "leader-election"}
	return []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update", "patch"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: fleet.ManagerUser}},
		},
	}
}

// addMachines creates Machines and waits until they run and have our hook.
func (w *world) addMachines(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := kwok.Create(ctx, w.fleet.Client, w.cluster.Machine(name)); err != nil {
			return err
		}
	}
	return w.machinesRun(ctx, names...)
}

// addMachineDeployment creates a MachineDeployment and waits until its Machines run. It returns their names.
func (w *world) addMachineDeployment(ctx context.Context, name string, replicas int, timeout int32) (names []string, err error) {
	limit := kwok.With(func(d *clusterv1.MachineDeployment) {
		if timeout > 0 {
			d.Spec.Template.Spec.Deletion.NodeDrainTimeoutSeconds, d.Spec.Template.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = &timeout, &timeout
		}
	})
	if err := kwok.Create(ctx, w.fleet.Client, w.cluster.MachineDeployment(name, int32(replicas), limit)); err != nil {
		return nil, err
	}
	err = eventually(ctx, time.Minute, "MachineDeployment "+name+" has Machines", func(ctx context.Context) error {
		machines, err := w.machinesOf(ctx, name)
		if err != nil || len(machines) != replicas {
			return errors.Errorf("%d Machines: %v", len(machines), err)
		}
		names = nil
		for i := range machines {
			names = append(names, machines[i].Name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return names, w.machinesRun(ctx, names...)
}

// machinesOf returns the Machines of a MachineDeployment.
func (w *world) machinesOf(ctx context.Context, deployment string) ([]clusterv1.Machine, error) {
	machines := &clusterv1.MachineList{}
	err := w.fleet.Client.List(ctx, machines, client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: deployment})
	return machines.Items, errors.Wrapf(err, "listing the Machines of MachineDeployment %s", deployment)
}

// machinesRun waits until Machines run and have our hook.
func (w *world) machinesRun(ctx context.Context, names ...string) error {
	return eventually(ctx, 2*time.Minute, "Machines run", func(ctx context.Context) error {
		if err := w.startManagers(ctx); err != nil {
			return err
		}
		for _, name := range names {
			machine, node := &clusterv1.Machine{}, &corev1.Node{}
			if err := w.fleet.Client.Get(ctx, client.ObjectKey{Namespace: w.home(), Name: name}, machine, client.UnsafeDisableDeepCopy); err != nil {
				return err
			}
			if err := w.workload.Client.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy); err != nil {
				return err
			}
			_, hooked := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
			if machine.Status.Phase != string(clusterv1.MachinePhaseRunning) || !hooked || len(node.Spec.Taints) > 0 && !node.Spec.Unschedulable {
				return errors.Errorf("Machine %s: phase %s, hook %t", name, machine.Status.Phase, hooked)
			}
		}
		return nil
	})
}

func (w *world) controlPlane(cluster string) *controlplane.ControlPlane {
	if cluster == "management" {
		return w.fleet.Management
	}
	return w.workload.ControlPlane
}

// keepLogs keeps logs and audit logs when the fleet stops. It returns their directories.
func (w *world) keepLogs() []string {
	w.workload.KeepLogs()
	dirs := []string{w.workload.Dir()}
	for _, each := range []management{w.management, w.former, w.next} {
		if each.fleet != nil {
			each.fleet.Management.KeepLogs()
			dirs = append(dirs, each.fleet.Management.Dir())
		}
	}
	return dirs
}

func (w *world) stop() error {
	w.detach()
	w.stopOthers()
	return w.fleet.Stop()
}

// stopOthers stops the management clusters that the Cluster is not in.
func (w *world) stopOthers() {
	for _, each := range []*management{&w.former, &w.next} {
		if each.fleet != nil {
			_ = each.fleet.StopManagement()
		}
		*each = management{}
	}
}

// process is a run of our manager.
type process interface {
	Kill()
	// Stop terminates it, and returns an error if it does not end in time.
	Stop() error
	Signal(signal os.Signal) error
	// Done is closed when it has ended.
	Done() <-chan struct{}
	Log() string
}

// managerProcess is our manager, which is started again after it was stopped.
type managerProcess struct {
	name string
	args []string
	// replaceable says that another manager may become the leader, so that this one exits.
	replaceable bool
	// begin starts a process whose clock is wrong by an offset.
	begin func(ctx context.Context, offset time.Duration) (process, error)

	lock    lock
	current process
	starts  []time.Time
	downs   []Period // in which a fault had stopped it
	exits   []string // that no fault caused: the ends of the logs
	offset  time.Duration
}

// setClock kills the manager if its clock does not have this offset. It has it when it is started again.
func (m *managerProcess) setClock(offset time.Duration) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.offset == offset {
		return
	}
	m.offset = offset
	m.end(process.Kill)
}

// end ends the process.
func (m *managerProcess) end(stop func(process)) {
	if m.current != nil {
		stop(m.current)
		m.current = nil
		m.downs = append(m.downs, Period{From: time.Now()})
	}
}

// endDown ends the period in which the manager is stopped.
func (m *managerProcess) endDown() {
	if last := len(m.downs) - 1; last >= 0 && m.downs[last].Until.IsZero() {
		m.downs[last].Until = time.Now()
	}
}

// resign returns the process of a simulated manager, which another one replaces: it continues to run.
func (m *managerProcess) resign() (*simulatedProcess, error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	old, is := m.current.(*simulatedProcess)
	if !is {
		return nil, errors.New("no manager runs")
	}
	m.current = nil // it is not down: the process still decides
	return old, nil
}

// processOf returns how a manager of a fleet is started.
func processOf(f *fleet.Fleet, manager *managerProcess) func(context.Context, time.Duration) (process, error) {
	return func(ctx context.Context, offset time.Duration) (process, error) {
		start := f.RunManager
		if offset != 0 {
			start = func(ctx context.Context, name, user string, args ...string) (*fleet.Manager, error) {
				return f.RunManagerWithClock(ctx, offset, name, user, args...)
			}
		}
		started, err := start(ctx, manager.name, fleet.ManagerUser, manager.args...)
		if err != nil {
			return nil, err
		}
		return started.Process, nil
	}
}

// start starts the manager, unless it runs, and waits until it is ready. A process that is not ready in time is killed.
func (m *managerProcess) start(ctx context.Context) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.current != nil {
		select {
		case <-m.current.Done():
			m.exits = append(m.exits, lastLine(m.current.Log()))
		default:
			return nil
		}
	}
	m.starts = append(m.starts, time.Now())
	m.endDown()
	current, err := m.begin(ctx, m.offset)
	if err == nil {
		m.current = current
	}
	return err
}

// startManagers starts the managers that have exited because they lost the leader election, as a kubelet does.
func (m *management) startManagers(ctx context.Context) error {
	for _, manager := range m.managers {
		if err := manager.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// failures returns panics in the log of the manager, and whether it has exited without a fault. One that loses the leader election must
// exit.
func (m *managerProcess) failures() []string {
	m.lock.Lock()
	defer m.lock.Unlock()
	var found []string
	if len(m.exits) > 0 && !m.replaceable {
		found = append(found, fmt.Sprintf("%s has exited %d times: %s", m.name, len(m.exits), strings.Join(m.exits, "; ")))
	}
	for line := range strings.Lines(m.current.Log()) {
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.Contains(line, "Observed a panic") {
			found = append(found, m.name+": "+strings.TrimSpace(line))
		}
	}
	return found
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// lock is a mutex for which a goroutine may wait while virtual time passes.
type lock chan struct{}

func (l lock) Lock() { l <- struct{}{} }

func (l lock) Unlock() { <-l }

func (m *managerProcess) kill() {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.end(process.Kill)
}

// terminate does not care whether the manager exits in time: its API servers may be frozen.
func (m *managerProcess) terminate() {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.end(func(current process) { _ = current.Stop() })
}

func (m *managerProcess) freeze() error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.current == nil {
		return nil
	}
	defer func() { m.downs = append(m.downs, Period{From: time.Now()}) }()
	return m.current.Signal(syscall.SIGSTOP)
}

func (m *managerProcess) thaw() error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.current == nil {
		return nil
	}
	m.endDown()
	return m.current.Signal(syscall.SIGCONT)
}

// eventually calls a function until it returns nil.
func eventually(ctx context.Context, timeout time.Duration, what string, condition func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		failure := condition(ctx)
		if failure == nil || ctx.Err() == nil { // else the time has passed, which does not say why
			last = failure
		}
		return failure == nil, nil
	})
	if err != nil {
		return errors.Errorf("after %s it is not true that %s: %v", timeout, what, last)
	}
	return nil
}
