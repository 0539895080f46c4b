package models

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/pkg/errors"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// machineDeployments is the MachineDeployment controller. It creates MachineSets and scales them.
type machineDeployments struct{ hashes hashes }

func (d *machineDeployments) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	all, sets, clusters := &clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}, &clusterv1.ClusterList{}
	if err := read(ctx, c, all, sets, clusters); err != nil {
		return 0, err
	}
	owned := byController(pointers(sets.Items))
	for _, deployment := range pointers(all.Items) {
		cluster := clusterOf(clusters, deployment.Namespace, deployment.Spec.ClusterName)
		if cluster == nil || annotations.IsPaused(cluster, deployment) {
			continue
		}
		if deployment.DeletionTimestamp != nil {
			failed = cmp.Or(failed, deleteOwner(ctx, c, deployment, clusterv1.MachineDeploymentFinalizer, owned[deployment.UID]))
		} else {
			failed = cmp.Or(failed, d.reconcile(ctx, c, deployment, owned[deployment.UID]))
		}
	}
	return 0, failed
}

func clusterOf(clusters *clusterv1.ClusterList, namespace, name string) *clusterv1.Cluster {
	for _, cluster := range pointers(clusters.Items) {
		if cluster.Namespace == namespace && cluster.Name == name {
			return cluster
		}
	}
	return nil
}

// deleteOwner deletes what an object owns, and then removes its finalizer.
func deleteOwner[T, O client.Object](ctx context.Context, c client.Client, owner T, finalizer string, owned []O) (failed error) {
	for _, object := range owned {
		failed = cmp.Or(failed, remove(ctx, c, object))
	}
	if len(owned) > 0 {
		return failed
	}
	_, err := update(ctx, c, owner, func(owner T) { controllerutil.RemoveFinalizer(owner, finalizer) })
	return err
}

// templateOf returns the part of a template whose change needs other Machines. The rest is updated in place.
func templateOf(spec *clusterv1.MachineSpec) clusterv1.MachineSpec {
	reduced := *spec.DeepCopy()
	reduced.Deletion, reduced.MinReadySeconds, reduced.ReadinessGates, reduced.Taints = clusterv1.MachineDeletionSpec{}, nil, nil, nil
	return reduced
}

func (d *machineDeployments) reconcile(
	ctx context.Context, c client.Client, deployment *clusterv1.MachineDeployment, sets []*clusterv1.MachineSet,
) (failed error) {
	deployment, err := update(ctx, c, deployment, func(deployment *clusterv1.MachineDeployment) {
		controllerutil.AddFinalizer(deployment, clusterv1.MachineDeploymentFinalizer)
	})
	if err != nil {
		return err
	}
	hash := d.hashes.of(deployment, templateOf(&deployment.Spec.Template.Spec))
	at := slices.IndexFunc(sets, func(set *clusterv1.MachineSet) bool {
		return set.Labels[clusterv1.MachineDeploymentUniqueLabel] == hash
	})
	if at < 0 {
		return create(ctx, c, newMachineSet(deployment, hash))
	}
	newest, old := sets[at], slices.Delete(slices.Clone(sets), at, at+1)
	slices.SortStableFunc(old, func(a, b *clusterv1.MachineSet) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	desired := ptr.Deref(deployment.Spec.Replicas, 1)
	limits := deployment.Spec.Rollout.Strategy.RollingUpdate
	maxSurge := resolve(ptr.Deref(limits.MaxSurge, intstr.FromInt32(1)), desired, true)
	maxUnavailable := resolve(ptr.Deref(limits.MaxUnavailable, intstr.FromInt32(0)), desired, false)
	shares := nextMachineShares(deployment, newest, old, maxSurge, maxUnavailable)
	for _, set := range sets {
		_, err := update(ctx, c, set, func(set *clusterv1.MachineSet) {
			set.Spec.Replicas, set.Spec.Deletion.Order = ptr.To(shares[set.UID].replicas), deployment.Spec.Deletion.Order
			propagate(&set.Spec.Template.Spec, &deployment.Spec.Template.Spec)
		})
		failed = cmp.Or(failed, err)
	}
	return cmp.Or(failed, setStatus(ctx, c, deployment, func(deployment *clusterv1.MachineDeployment) {
		setMachineDeploymentStatus(deployment, newest, sets, maxUnavailable)
	}))
}

// nextMachineShares returns how many replicas each MachineSet has after the next step, by UID.
func nextMachineShares(
	deployment *clusterv1.MachineDeployment, newest *clusterv1.MachineSet, old []*clusterv1.MachineSet, maxSurge, maxUnavailable int32,
) map[types.UID]*replicaShare {
	desired := ptr.Deref(deployment.Spec.Replicas, 1)
	shares := map[types.UID]*replicaShare{}
	var oldShares []*replicaShare
	for _, set := range append([]*clusterv1.MachineSet{newest}, old...) {
		shares[set.UID] = &replicaShare{
			replicas: ptr.Deref(set.Spec.Replicas, 1), present: ptr.Deref(set.Status.Replicas, 0), available: ptr.Deref(set.Status.AvailableReplicas, 0),
		}
		if set != newest {
			oldShares = append(oldShares, shares[set.UID])
		}
	}
	if deployment.Spec.Rollout.Strategy.Type == clusterv1.OnDeleteMachineDeploymentStrategyType {
		total := int32(0)
		for i, set := range old {
			oldShares[i].replicas = min(oldShares[i].replicas, ptr.Deref(set.Status.Replicas, 0))
			total += oldShares[i].replicas
		}
		shares[newest.UID].replicas = max(0, desired-total)
	} else if !ptr.Deref(deployment.Spec.Paused, false) {
		roll(desired, maxSurge, maxUnavailable, shares[newest.UID], oldShares)
	}
	return shares
}

func setMachineDeploymentStatus(
	deployment *clusterv1.MachineDeployment, newest *clusterv1.MachineSet, sets []*clusterv1.MachineSet, maxUnavailable int32,
) {
	desired, status := ptr.Deref(deployment.Spec.Replicas, 1), &deployment.Status
	status.ObservedGeneration, status.UpToDateReplicas = deployment.Generation, newest.Status.Replicas
	var replicas, ready, available int32
	for _, set := range sets {
		replicas += ptr.Deref(set.Status.Replicas, 0)
		ready += ptr.Deref(set.Status.ReadyReplicas, 0)
		available += ptr.Deref(set.Status.AvailableReplicas, 0)
	}
	status.Replicas, status.ReadyReplicas, status.AvailableReplicas = &replicas, &ready, &available
	isAvailable := available >= desired-maxUnavailable
	reason := map[bool]string{true: clusterv1.MachineDeploymentAvailableReason, false: clusterv1.MachineDeploymentNotAvailableReason}[isAvailable]
	setCondition(&status.Conditions, clusterv1.MachineDeploymentAvailableCondition, isAvailable, reason, "")
	phase := clusterv1.MachineDeploymentPhaseRunning
	if replicas != desired || available != desired {
		phase = clusterv1.MachineDeploymentPhaseScalingUp
	}
	status.SetTypedPhase(phase)
}

// propagate copies the fields whose change needs no other Machine.
func propagate(to, from *clusterv1.MachineSpec) {
	source := from.DeepCopy()
	to.Deletion, to.MinReadySeconds, to.ReadinessGates, to.Taints = source.Deletion, source.MinReadySeconds, source.ReadinessGates, source.Taints
}

// newMachineSet returns a MachineSet without replicas. The next step of the rollout scales it.
func newMachineSet(deployment *clusterv1.MachineDeployment, hash string) *clusterv1.MachineSet {
	set := &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: deployment.Namespace, Name: deployment.Name + "-" + hash, Finalizers: []string{clusterv1.MachineSetFinalizer},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, clusterv1.GroupVersion.WithKind("MachineDeployment"))},
	}}
	set.Spec = clusterv1.MachineSetSpec{
		ClusterName: deployment.Spec.ClusterName, Replicas: ptr.To[int32](0), Template: *deployment.Spec.Template.DeepCopy(),
		Selector: *deployment.Spec.Selector.DeepCopy(), Deletion: clusterv1.MachineSetDeletionSpec{Order: deployment.Spec.Deletion.Order},
	}
	metav1.AddLabelToSelector(&set.Spec.Selector, clusterv1.MachineDeploymentUniqueLabel, hash)
	if set.Spec.Template.Labels == nil {
		set.Spec.Template.Labels = map[string]string{}
	}
	maps.Copy(set.Spec.Template.Labels, map[string]string{
		clusterv1.ClusterNameLabel: deployment.Spec.ClusterName, clusterv1.MachineDeploymentNameLabel: deployment.Name,
		clusterv1.MachineDeploymentUniqueLabel: hash,
	})
	set.Labels = maps.Clone(set.Spec.Template.Labels)
	return set
}

// machineSets is the MachineSet controller. It creates and deletes Machines.
type machineSets struct{ random *rand.Rand }

func (m *machineSets) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	sets, deployments := &clusterv1.MachineSetList{}, &clusterv1.MachineDeploymentList{}
	all, clusters := &clusterv1.MachineList{}, &clusterv1.ClusterList{}
	if err := read(ctx, c, sets, deployments, all, clusters); err != nil {
		return 0, err
	}
	owned := byController(pointers(all.Items))
	byUID := map[types.UID]*clusterv1.MachineDeployment{}
	for _, deployment := range pointers(deployments.Items) {
		byUID[deployment.UID] = deployment
	}
	for _, set := range pointers(sets.Items) {
		cluster := clusterOf(clusters, set.Namespace, set.Spec.ClusterName)
		if cluster == nil || annotations.IsPaused(cluster, set) {
			continue
		}
		if set.DeletionTimestamp != nil {
			failed = cmp.Or(failed, deleteOwner(ctx, c, set, clusterv1.MachineSetFinalizer, owned[set.UID]))
			continue
		}
		var deployment *clusterv1.MachineDeployment
		if owner := metav1.GetControllerOfNoCopy(set); owner != nil {
			deployment = byUID[owner.UID]
		}
		failed = cmp.Or(failed, m.reconcile(ctx, c, set, deployment, owned[set.UID]))
	}
	return 0, failed
}

func (m *machineSets) reconcile(
	ctx context.Context, c client.Client, set *clusterv1.MachineSet, deployment *clusterv1.MachineDeployment, machines []*clusterv1.Machine,
) (failed error) {
	isCurrent := deployment == nil ||
		apiequality.Semantic.DeepEqual(templateOf(&set.Spec.Template.Spec), templateOf(&deployment.Spec.Template.Spec))
	for i, machine := range machines {
		machine, err := update(ctx, c, machine, func(machine *clusterv1.Machine) {
			if machine.DeletionTimestamp == nil {
				propagate(&machine.Spec, &set.Spec.Template.Spec)
			} else {
				machine.Spec.Deletion = set.Spec.Template.Spec.Deletion
			}
		})
		if err == nil {
			machines[i] = machine
			err = setStatus(ctx, c, machine, func(machine *clusterv1.Machine) {
				reason := map[bool]string{true: clusterv1.MachineUpToDateReason, false: clusterv1.MachineNotUpToDateReason}[isCurrent]
				setCondition(&machine.Status.Conditions, clusterv1.MachineUpToDateCondition, isCurrent, reason, "")
			})
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		return failed
	}
	desired := int(ptr.Deref(set.Spec.Replicas, 1)) // Machines that are being deleted count
	for range desired - len(machines) {
		failed = cmp.Or(failed, m.createMachine(ctx, c, set))
	}
	for _, machine := range byPriority(machines)[:max(0, len(machines)-desired)] {
		failed = cmp.Or(failed, remove(ctx, c, machine))
	}
	return cmp.Or(failed, setStatus(ctx, c, set, func(set *clusterv1.MachineSet) {
		ready := int32(0)
		for _, machine := range machines {
			ready += int32(number(meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineAvailableCondition)))
		}
		status := &set.Status
		status.ObservedGeneration, status.Replicas = set.Generation, ptr.To(int32(len(machines)))
		status.ReadyReplicas, status.AvailableReplicas, status.UpToDateReplicas = ptr.To(ready), ptr.To(ready), ptr.To(int32(0))
		if isCurrent {
			status.UpToDateReplicas = status.Replicas
		}
	}))
}

// byPriority returns Machines in the order in which a MachineSet deletes them: those that are being deleted, those that are marked, those
// without a Node, and then the oldest ones.
func byPriority(machines []*clusterv1.Machine) []*clusterv1.Machine {
	rank := func(machine *clusterv1.Machine) []int {
		_, marked := machine.Annotations[clusterv1.DeleteMachineAnnotation]
		return []int{
			-number(machine.DeletionTimestamp != nil), -number(marked), number(machine.Status.NodeRef.IsDefined()),
			number(meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineReadyCondition)), int(machine.CreationTimestamp.Unix()),
		}
	}
	return slices.SortedStableFunc(slices.Values(machines), func(a, b *clusterv1.Machine) int {
		return cmp.Or(slices.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
}

// suffix returns the random end of a name.
func suffix(random *rand.Rand) string {
	return utilrand.SafeEncodeString(strconv.FormatUint(1e5+random.Uint64N(9e5), 10))
}

// createMachine creates a Machine and its KwokMachine, which has the same name.
func (m *machineSets) createMachine(ctx context.Context, c client.Client, set *clusterv1.MachineSet) error {
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: set.Namespace, Name: set.Name + "-" + suffix(m.random),
		Labels: maps.Clone(set.Spec.Template.Labels), Annotations: maps.Clone(set.Spec.Template.Annotations),
		Finalizers:      []string{clusterv1.MachineFinalizer},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, clusterv1.GroupVersion.WithKind("MachineSet"))},
	}}
	machine.Spec = *set.Spec.Template.Spec.DeepCopy()
	machine.Labels[clusterv1.MachineSetNameLabel] = set.Name
	machine.Spec.InfrastructureRef.Kind, machine.Spec.InfrastructureRef.Name = infrav1.KwokMachineKind, machine.Name
	infraMachine := &infrav1.KwokMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: set.Namespace, Name: machine.Name, Labels: map[string]string{clusterv1.ClusterNameLabel: set.Spec.ClusterName},
	}}
	if err := c.Create(ctx, infraMachine); err != nil {
		return errors.Wrapf(err, "creating KwokMachine %s", machine.Name)
	}
	return errors.Wrapf(c.Create(ctx, machine), "creating Machine %s", machine.Name)
}
