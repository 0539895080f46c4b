package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// The candidates of a rollout. kubectl and a bare loop cannot do one.
var (
	capnmRolloutCandidate    = ourRollout("capnm", "this provider, outdated Nodes cordoned", v1alpha1.OutdatedNodesCordon)
	announceRolloutCandidate = ourRollout("capnm-announce", "this provider, outdated Nodes announced", v1alpha1.OutdatedNodesAnnounce)
	ignoreRolloutCandidate   = ourRollout("capnm-ignore", "this provider, outdated Nodes ignored", v1alpha1.OutdatedNodesIgnore)
	capiRolloutCandidate     = rolloutBy(capiCandidate, "Cluster API's own drain", func(ctx context.Context, a *arena, t target) (span, error) {
		return a.rollOut(ctx, t, false)
	})
)

// ourRollout returns a candidate with this policy for outdated Nodes.
func ourRollout(name, about string, outdated v1alpha1.OutdatedNodesPolicy) candidate {
	c := rolloutBy(capnmCandidate, about, func(ctx context.Context, a *arena, t target) (span, error) {
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace(), Name: policyName}}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"rollout":{"outdatedNodes":%q}}}`, outdated))
		if err := a.Client.Patch(ctx, policy, patch); err != nil {
			return span{}, errors.Wrap(err, "changing the policy")
		}
		return a.rollOut(ctx, t, true)
	})
	c.name = name
	return c
}

func rolloutBy(c candidate, about string, run func(context.Context, *arena, target) (span, error)) candidate {
	c.about, c.steps, c.run = about+": change of the template to the last old Machine gone", nil, run
	return c
}

// surgeBy sets the maxSurge of a MachineDeployment.
func surgeBy(surge intstr.IntOrString) kwok.Change {
	return kwok.With(func(deployment *clusterv1.MachineDeployment) {
		deployment.Spec.Rollout.Strategy = clusterv1.MachineDeploymentRolloutStrategy{
			Type: clusterv1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{
				MaxSurge: &surge, MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			},
		}
	})
}

// rollOut makes a MachineDeployment replace all its Machines. We drain them if they are managed.
func (a *arena) rollOut(ctx context.Context, t target, managed bool) (span, error) {
	hooks := 0
	if managed {
		hooks = len(t.nodes)
	}
	// Labels are propagated to existing Machines without a rollout.
	err := a.changeDeployment(ctx, func(d *clusterv1.MachineDeployment) {
		d.Spec.Template.Labels[managedLabel] = strconv.FormatBool(managed)
	})
	if err != nil {
		return span{}, err
	}
	if err := a.awaitHooks(ctx, hooks); err != nil {
		return span{}, err
	}
	taken := span{started: time.Now()}
	err = a.changeDeployment(ctx, func(d *clusterv1.MachineDeployment) {
		d.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("not-used-" + strconv.FormatInt(taken.started.Unix(), 10))
	})
	if err != nil {
		return span{}, err
	}
	err = poll(ctx, "for the old Machines to be deleted", func(ctx context.Context) (bool, error) { return a.areGone(ctx, t.nodes) })
	taken.ended = time.Now()
	return taken, err
}

func (a *arena) changeDeployment(ctx context.Context, change func(*clusterv1.MachineDeployment)) error {
	deployment := &clusterv1.MachineDeployment{}
	if err := a.Client.Get(ctx, client.ObjectKey{Namespace: a.namespace(), Name: deploymentName}, deployment); err != nil {
		return errors.Wrap(err, "getting the MachineDeployment")
	}
	before := deployment.DeepCopy()
	change(deployment)
	return errors.Wrap(a.Client.Patch(ctx, deployment, client.MergeFrom(before)), "changing the MachineDeployment")
}

func (a *arena) areGone(ctx context.Context, names []string) (bool, error) {
	machines := &clusterv1.MachineList{}
	if err := a.Client.List(ctx, machines, client.InNamespace(a.namespace())); err != nil {
		return false, errors.Wrap(err, "listing Machines")
	}
	present := map[string]bool{}
	for i := range machines.Items {
		present[machines.Items[i].Name] = true
	}
	for _, name := range names {
		if present[name] {
			return false, nil
		}
	}
	return true, nil
}
