package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// play is one run of the demo.
type play struct {
	*screen
	*observer
	fleet    *fleet.Fleet
	workload *fleet.Workload
	machine  string // drained in the first act
	node     string
	tools    tools
	laps     []lap

	interrupt func()
}

// act runs a part of the demo and measures its duration.
func (p *play) act(ctx context.Context, name string, do func(context.Context) error) error {
	start := time.Now()
	err := do(ctx)
	p.laps = append(p.laps, lap{name, time.Since(start)})
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return errors.Wrapf(cause, "%s: %v", name, err)
	}
	return errors.Wrap(err, name)
}

// raise starts all control planes and managers, and builds the manager and the kubectl plugin meanwhile. Errors of these builds are
// returned where the programs are used.
func (p *play) raise(ctx context.Context) (err error) {
	start := time.Now()
	p.say("  building the manager and the kubectl plugin, while the control planes start …")
	go func() {
		_ = fleet.BuildManager()
		_, _ = pluginBinary()
	}()
	progress := func(what string) { p.say("  %7s  %s", seconds(time.Since(start)), what) }
	p.fleet, err = fleet.Start(ctx, fleet.Options{
		Workloads: []string{workloadName}, PodReadyDelay: podDelay, PodDeletionDelay: podDelay, WithoutManager: true, Progress: progress,
	})
	if err != nil {
		return err
	}
	p.workload = p.fleet.Workloads[workloadName]
	if err := p.fleet.StartManager(ctx); err != nil {
		return err
	}
	progress("Cluster API Node Maintenance is ready")
	return nil
}

// populate creates the Cluster, its Machines, the policy and rules for their drains, and then the applications.
func (p *play) populate(ctx context.Context) error {
	start := time.Now()
	cluster := kwok.NewCluster(clusterName)
	if err := p.fleet.Connect(cluster, workloadName); err != nil {
		return err
	}
	if err := p.watchMachines(ctx, p.fleet.Management.AdminConfig()); err != nil {
		return err
	}
	if err := kwok.Create(ctx, p.fleet.Client, drainIntent(), machines(cluster)); err != nil {
		return err
	}
	if err := p.awaitMachines(ctx); err != nil {
		return err
	}
	if err := p.awaitTypes(ctx); err != nil {
		return err
	}
	p.say("  %7s  %d Machines are running, each with our hook", seconds(time.Since(start)), workers+1)
	if err := p.watchWorkload(ctx, p.workload.AdminConfig()); err != nil {
		return err
	}
	p.look(func(w *world) { p.machine = w.workersThere()[0]; p.node = w.machines[p.machine].Status.NodeRef.Name })
	if err := kwok.Create(ctx, p.workload.Client, applications(p.node)); err != nil {
		return err
	}
	if err := p.awaitApplications(ctx); err != nil {
		return err
	}
	p.say("  %7s  %d web Pods (budget: maxUnavailable %d), storage, monitoring and logs are ready", seconds(time.Since(start)), webReplicas, webUnavailable)
	return p.chooseMachine(ctx)
}

// awaitMachines waits until all Machines run and have our hook. Cluster API drains Machines that are deleted without it.
func (p *play) awaitMachines(ctx context.Context) error {
	return p.await(ctx, "all Machines are running", func(w *world) (bool, string) {
		running, seen := 0, []string{}
		for name, machine := range w.machines {
			_, hooked := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
			if hooked && machine.isRunning() {
				running++
			}
			seen = append(seen, fmt.Sprintf("%s %s hook=%t", name, machine.Status.Phase, hooked))
		}
		return running == workers+1, strings.Join(seen, ", ")
	})
}

// awaitTypes waits until the manager has installed our CRDs in the workload cluster.
func (p *play) awaitTypes(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if last = p.workload.Client.List(ctx, &v1alpha1.NodeMaintenanceList{}); last == nil {
			last = p.workload.Client.List(ctx, &v1alpha1.EvacuationList{})
		}
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	return errors.Wrapf(context.Cause(ctx), "waiting until NodeMaintenances are served in the workload cluster; last error: %v", last)
}

func (p *play) awaitApplications(ctx context.Context) error {
	return p.await(ctx, "all applications are ready", func(w *world) (bool, string) {
		web, storage, monitoring, logs := w.ready(appWeb), w.ready(appStorage), w.ready(appMonitoring), w.ready(appLogs)
		seen := fmt.Sprintf("web %d, storage %d, monitoring %d, logs %d", web, storage, monitoring, logs)
		return web == webReplicas && storage == storageReplicas && monitoring == 1 && logs >= workers, seen
	})
}

// chooseMachine waits until the Node that will be drained has a Pod of each application.
func (p *play) chooseMachine(ctx context.Context) error {
	if err := p.workload.Client.Create(ctx, report(p.node)); err != nil {
		return errors.Wrap(err, "creating the Job")
	}
	return p.await(ctx, "Node "+p.node+" has a Pod of each application", func(w *world) (bool, string) {
		count := map[string]int{}
		for _, pod := range w.podsOn(p.node) {
			if pod.gone.IsZero() && rules.Ready(pod.Pod) {
				count[pod.Labels[appLabel]]++
			}
		}
		return count[appWeb] > 0 && count[appStorage] > 0 && count[appMonitoring] > 0 && count[appReport] > 0 && count[appLogs] > 0, fmt.Sprint(count)
	})
}

// drain predicts the drain of a Machine, deletes it and shows its drain until it is deleted.
func (p *play) drain(ctx context.Context) error {
	if err := p.predict(ctx, p.machine); err != nil {
		return err
	}
	p.say("kubectl delete machine %s", p.machine)
	end, err := p.watch(ctx, "machine", p.machine)
	if err != nil {
		return err
	}
	defer end()
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.machine}}
	if err := p.fleet.Client.Delete(ctx, machine); err != nil {
		return errors.Wrapf(err, "deleting Machine %s", p.machine)
	}
	return p.await(ctx, "Machine "+p.machine+" is deleted", func(w *world) (bool, string) {
		return !w.machines[p.machine].gone.IsZero(), fmt.Sprintf("condition %q", w.conditionOf(p.machine))
	})
}

// rollout changes the MachineDeployment's template and shows how its Machines are replaced.
func (p *play) rollout(ctx context.Context) error {
	old := map[string]bool{}
	if err := p.await(ctx, "the deleted Machine is replaced", func(w *world) (bool, string) {
		running := 0
		for _, name := range w.workersThere() {
			old[w.machines[name].Labels[clusterv1.MachineDeploymentUniqueLabel]] = true
			if w.machines[name].isRunning() {
				running++
			}
		}
		return running == workers && w.web.ready == webReplicas, fmt.Sprintf("%d Machines running, %d web Pods ready", running, w.web.ready)
	}); err != nil {
		return err
	}
	if err := p.changeTemplate(ctx); err != nil {
		return err
	}
	show, end, err := p.showRollout(ctx)
	if err != nil {
		return err
	}
	defer end()
	start := time.Now()
	return p.await(ctx, "all workers are new, and all Pods ready", func(w *world) (bool, string) {
		picture := w.rolloutOf(old)
		show(time.Since(start), picture)
		return picture.done() && w.web.ready == webReplicas && w.ready(appStorage) == storageReplicas, picture.String()
	})
}

// changeTemplate starts a rollout: the MachineDeployment refers to another machine template.
func (p *play) changeTemplate(ctx context.Context) error {
	template := newTemplate()
	p.say("kubectl patch machinedeployment %s: infrastructureRef.name: %s", pool, template.Name)
	if err := p.fleet.Client.Create(ctx, template); err != nil {
		return errors.Wrap(err, "creating the new machine template")
	}
	deployment := &clusterv1.MachineDeployment{}
	if err := p.fleet.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pool}, deployment); err != nil {
		return errors.Wrap(err, "getting the MachineDeployment")
	}
	before := deployment.DeepCopy()
	deployment.Spec.Template.Spec.InfrastructureRef.Name = template.Name
	return errors.Wrap(p.fleet.Client.Patch(ctx, deployment, client.MergeFrom(before)), "changing the MachineDeployment")
}

// showRollout shows the live view in a terminal, until end is called. Elsewhere it writes a line for each Machine that is created or
// deleted.
func (p *play) showRollout(ctx context.Context) (show func(time.Duration, rolloutFrame), end func(), err error) {
	if p.live {
		end, err = p.watch(ctx, "machinedeployment", pool)
		return func(time.Duration, rolloutFrame) {}, end, err
	}
	last := ""
	return func(elapsed time.Duration, now rolloutFrame) {
		if now.milestone() != last {
			p.say("%7s  %s", seconds(elapsed), now)
			last = now.milestone()
		}
	}, func() {}, nil
}
