package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

const (
	workloadName = "workload"
	// managedLabel selects the Machines that our policy manages.
	managedLabel = "bench.capnm.dev/managed"
	// deploymentName is the name of the MachineDeployment of a rollout.
	deploymentName = "workers"
	// limitUser and kubectlUser are users in the workload cluster.
	limitUser, kubectlUser = "bench-limit", "bench-kubectl"
	systemMasters          = "system:masters"
	// startTimeout includes building the manager on a busy machine, and the start of hundreds of Machines.
	startTimeout = 20 * time.Minute
	pollInterval = 100 * time.Millisecond
	// calm is the pause after a reset, in which controllers finish the work that the reset has caused.
	calm = 2 * time.Second
)

// arena is the fleet that all candidates use.
type arena struct {
	*fleet.Fleet
	load     load
	workload *fleet.Workload
	cluster  kwok.Cluster
	// limit is the client of the bare loop. It has no client-side rate limit and a separate user.
	limit kubernetes.Interface
	// evacuations is a client of the same user, for Evacuations.
	evacuations client.Client
	// kubeconfig is the path of kubectl's kubeconfig.
	kubeconfig string
	// machines counts all created Machines, for their names.
	machines int
}

// target is the set of Nodes to drain in a run. A stand-alone Machine has the name of its Node.
type target struct {
	nodes []string
	pods  []corev1.Pod
}

// onArena calls do with a new arena.
func onArena(ctx context.Context, l load, o options, do func(*arena) error) error {
	a, err := newArena(ctx, l, o)
	return on(a, err, do)
}

// on runs a measurement on what was started, and stops it.
func on[T interface{ stop(failed bool) error }](started T, err error, do func(T) error) error {
	if err != nil {
		return err
	}
	err = do(started)
	if stopErr := started.stop(err != nil); err == nil {
		err = stopErr
	}
	return err
}

// newArena starts a fleet with the Nodes that the load needs.
func newArena(ctx context.Context, l load, o options) (_ *arena, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	f, err := fleet.Start(ctx, fleet.Options{
		Workloads: []string{workloadName}, PodReadyDelay: l.readyDelay, PodDeletionDelay: l.deletionDelay,
		// Cluster API is measured with the rate limit of its release.
		ReleasePace: true, KeepDir: o.keep, ManagerArgs: o.managerArgs(),
		Progress: func(what string) { progress("%s", what) },
	})
	if err != nil {
		return nil, err
	}
	a := &arena{Fleet: f, load: l, workload: f.Workloads[workloadName], cluster: kwok.NewCluster("bench").WithExternalControlPlane()}
	defer func() {
		if err != nil {
			_ = a.stop(true)
		}
	}()
	if err := a.addClients(); err != nil {
		return nil, err
	}
	if err := a.Connect(a.cluster, workloadName); err != nil {
		return nil, err
	}
	if err := a.populate(ctx); err != nil {
		return nil, err
	}
	progress("%d nodes are up", l.nodes)
	if o.keep {
		progress("data and logs are kept in %s and %s", a.Management.Dir(), a.workload.Dir())
	}
	return a, a.waitUntilServed(ctx)
}

func (a *arena) addClients() error {
	config, err := a.workload.ConfigFor(limitUser, systemMasters)
	if err != nil {
		return err
	}
	if a.limit, err = kubernetes.NewForConfig(config); err != nil {
		return errors.Wrap(err, "creating the client of the bare loop")
	}
	if a.evacuations, err = client.New(config, client.Options{Scheme: a.workload.Client.Scheme()}); err != nil {
		return errors.Wrap(err, "creating the client of the bare loop")
	}
	a.kubeconfig, err = a.writeKubeconfig(kubectlUser)
	return err
}

// writeKubeconfig writes a kubeconfig for an administrator of that name.
func (a *arena) writeKubeconfig(user string) (string, error) {
	content, err := a.workload.KubeconfigFor(user, systemMasters)
	if err != nil {
		return "", err
	}
	file := filepath.Join(a.workload.Dir(), user+".kubeconfig")
	return file, errors.Wrap(os.WriteFile(file, content, 0o600), "writing a kubeconfig")
}

// policyName is the name of our MachineDrainPolicy.
const policyName = "bench"

// populate creates the objects that all runs share, and the first Machines.
func (a *arena) populate(ctx context.Context) error {
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace(), Name: policyName}}
	policy.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{managedLabel: "true"}}
	objects := []client.Object{policy}
	for _, rule := range a.load.drainRules(a.namespace()) {
		objects = append(objects, rule)
	}
	if err := kwok.Create(ctx, a.Client, objects, a.cluster.Objects()); err != nil {
		return err
	}
	var present []client.Object
	for i := range a.load.landings {
		landing := controlplane.NewNode(fmt.Sprintf("%s%d", landingPrefix, i))
		landing.Spec.Unschedulable = true
		present = append(present, landing)
	}
	for i := range a.load.idleNodes {
		present = append(present, controlplane.NewIdleNode(fmt.Sprintf("idle-%04d", i)))
	}
	if a.load.maxUnavailable > 0 {
		for _, app := range a.load.appNames() {
			present = append(present, budgetOf(appNamespace, app, a.load.maxUnavailable))
		}
	}
	if err := kwok.Create(ctx, a.workload.Client, present); err != nil {
		return err
	}
	if err := a.addVolumes(ctx); err != nil {
		return err
	}
	if a.load.rollout {
		if err := kwok.Create(ctx, a.Client, a.cluster.MachineDeployment(deploymentName, int32(a.load.nodes), roomForPods, surgeBy(a.load.maxSurge))); err != nil {
			return err
		}
	}
	return a.addMachines(ctx)
}

func (a *arena) namespace() string { return a.cluster.Key().Namespace }

// roomForPods returns the Pod capacity of a Node.
var roomForPods = kwok.With(func(machine *infrav1.KwokMachine) {
	machine.Spec.Capacity = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10000")}
})

// addMachines creates the missing Machines. They have new names, so that no object is mistaken for an earlier one. Machines of a
// MachineDeployment are created by its controller.
func (a *arena) addMachines(ctx context.Context) error {
	present := &clusterv1.MachineList{}
	if err := a.Client.List(ctx, present, client.InNamespace(a.namespace())); err != nil {
		return errors.Wrap(err, "listing Machines")
	}
	if !a.load.rollout {
		for range a.load.nodes - len(present.Items) {
			a.machines++
			if err := kwok.Create(ctx, a.Client, a.cluster.Machine(fmt.Sprintf("m%04d", a.machines), roomForPods)); err != nil {
				return err
			}
		}
	}
	return a.waitForMachines(ctx)
}

// waitForMachines repeats kwok.WaitForMachinesRunning when it times out, since hundreds of Machines may take long.
func (a *arena) waitForMachines(ctx context.Context) error {
	for {
		err := kwok.WaitForMachinesRunning(ctx, a.Client, a.cluster.Key(), a.load.nodes)
		if err == nil || ctx.Err() != nil || !wait.Interrupted(errors.Cause(err)) {
			return err
		}
		progress("still waiting for %d Machines to run", a.load.nodes)
	}
}

// waitUntilServed waits until our manager has installed its CRDs in the workload cluster.
func (a *arena) waitUntilServed(ctx context.Context) error {
	return poll(ctx, "for our kinds to be served in the workload cluster", func(ctx context.Context) (bool, error) {
		return isServed(ctx, a.workload.Client), nil
	})
}

// isServed returns whether our CRDs are served.
func isServed(ctx context.Context, c client.Client) bool {
	for _, list := range []client.ObjectList{&v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}} {
		if c.List(ctx, list, client.Limit(1)) != nil {
			return false // their CRDs are not installed yet
		}
	}
	return true
}

// settle waits until the deleted Machines and their Nodes are gone, and the objects that our manager has created for them.
func (a *arena) settle(ctx context.Context) error {
	return poll(ctx, "for deleted Machines, NodeMaintenances and Evacuations to be removed", func(ctx context.Context) (bool, error) {
		machines := &clusterv1.MachineList{}
		if err := a.Client.List(ctx, machines, client.InNamespace(a.namespace())); err != nil {
			return false, errors.Wrap(err, "listing Machines")
		}
		for i := range machines.Items {
			if !machines.Items[i].DeletionTimestamp.IsZero() {
				return false, nil
			}
		}
		return isClean(ctx, a.workload.Client)
	})
}

// serverCPU returns the CPU time used so far by the API server and etcd of the workload cluster.
func (a *arena) serverCPU() (time.Duration, error) {
	var total time.Duration
	for _, component := range []controlplane.Component{controlplane.APIServer, controlplane.Etcd} {
		pid, err := a.workload.ComponentPID(component)
		if err != nil {
			return 0, err
		}
		used, err := program{pid: pid}.cpu()
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// isClean reports whether a workload cluster has no NodeMaintenances and Evacuations.
func isClean(ctx context.Context, c client.Client) (bool, error) {
	maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
	if err := c.List(ctx, maintenances, client.Limit(1)); err != nil {
		return false, errors.Wrap(err, "listing NodeMaintenances")
	}
	if err := c.List(ctx, evacuations, client.Limit(1)); err != nil {
		return false, errors.Wrap(err, "listing Evacuations")
	}
	return len(maintenances.Items) == 0 && len(evacuations.Items) == 0, nil
}

// stop stops the fleet. After a failure it prints the end of our manager's log.
func (a *arena) stop(failed bool) error {
	if failed && a.Manager != nil {
		progress("our manager's log ends with:\n%s", a.Manager.LogTail(40))
	}
	return a.Stop()
}

// poll calls condition until it is true or the context is done.
func poll(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	return errors.Wrapf(wait.PollUntilContextCancel(ctx, pollInterval, true, condition), "waiting %s", what)
}
