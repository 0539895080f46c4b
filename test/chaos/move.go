package chaos

import (
	"context"
	"fmt"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// prepareMove starts the management cluster that the Cluster will be moved to, with as many managers as the present one has.
func (r *run) prepareMove(ctx context.Context) (err error) {
	if r.next.fleet, err = r.fleet.AnotherManagement(ctx, fmt.Sprintf("management-%d", r.schedule.Seed)); err != nil {
		return err
	}
	return r.next.addManagers(ctx, len(r.managers))
}

// move moves the Cluster to the next management cluster, where a user deletes the Machines again. The managers of the former management
// cluster continue to run.
func (r *run) move(ctx context.Context, record *Recording) error {
	if err := record.addManagement(ctx, r.next.fleet); err != nil {
		return err
	}
	if err := r.setAnnotation(ctx, "null"); err != nil { // clusterctl moves no paused Cluster
		return errors.Wrap(err, "removing the annotation of a pause from the Cluster")
	}
	r.logf("the Cluster is moved")
	err := eventually(ctx, 2*healing, "clusterctl moves the Cluster", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healing)
		defer cancel()
		if err := r.setPaused(ctx, false); err != nil { // an interrupted move leaves the Cluster paused
			return err
		}
		if err := r.noneUnmovable(ctx); err != nil {
			return err
		}
		return r.fleet.MoveTo(ctx, r.next.fleet, r.home())
	})
	if err != nil {
		return err
	}
	record.management[0].cancel()
	r.former, r.management, r.next = r.management, r.next, management{}
	r.logf("the Cluster was moved")
	for _, drain := range r.schedule.Drains {
		if err := r.request(ctx, "delete Machine "+drain.Machine+" again", r.deleteMoved(drain.Machine)); err != nil {
			return err
		}
	}
	return nil
}

// noneUnmovable returns an error while a Machine that is being deleted has no infrastructure machine any more. clusterctl fails if it is
// deleted during the move, and cannot repeat the move before the Machine is gone: it cannot update its copy to one that is being deleted.
func (r *run) noneUnmovable(ctx context.Context) error {
	machines := &clusterv1.MachineList{}
	if err := r.fleet.Client.List(ctx, machines, client.InNamespace(r.home())); err != nil {
		return errors.Wrap(err, "listing Machines")
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		if m.DeletionTimestamp.IsZero() {
			continue
		}
		infrastructure := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.InfrastructureRef.Name}
		switch err := r.fleet.Client.Get(ctx, infrastructure, &infrav1.KwokMachine{}); {
		case apierrors.IsNotFound(err):
			return errors.Errorf("the infrastructure of Machine %s is gone, and the Machine is not", m.Name)
		case err != nil:
			return errors.Wrapf(err, "getting the infrastructure of Machine %s", m.Name)
		}
	}
	return nil
}

// deleteMoved deletes a Machine that has its hook and whose Node Cluster API knows again, if it exists.
func (r *run) deleteMoved(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		machine := &clusterv1.Machine{}
		if err := r.fleet.Client.Get(ctx, client.ObjectKey{Namespace: r.home(), Name: name}, machine); err != nil {
			return client.IgnoreNotFound(err)
		}
		err := r.workload.Client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if client.IgnoreNotFound(err) != nil {
			return errors.Wrapf(err, "getting Node %s", name)
		}
		if err == nil && !machine.Status.NodeRef.IsDefined() || !machinedrain.HasHook(machine) {
			return errors.Errorf("Machine %s has nodeRef %q and hook %t", name, machine.Status.NodeRef.Name, machinedrain.HasHook(machine))
		}
		return r.deleteMachine(name)(ctx)
	}
}

// allManagers returns the managers of all management clusters of the run.
func (r *run) allManagers() []*managerProcess {
	return slices.Concat(r.former.managers, r.managers)
}
