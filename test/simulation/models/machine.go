package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/noderefutil"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	drainvolumes "github.com/capnm/cluster-api-node-maintenance/drain/volumes"
	controlplanev1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/controlplane/v1beta1"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

const (
	// machineRetry is how often a drain and a wait for volumes are continued: after 20 s, as Cluster API does.
	machineRetry = 20 * time.Second
	// nodePoll is how often Nodes are read, instead of a watch.
	nodePoll = 5 * time.Second
)

// machines is the Machine controller of Cluster API v1.14. It follows reconcilers/machine, function by function.
type machines struct{ options ManagementOptions }

// machineScope is the state of the reconciliation of one Machine, which is changed.
type machineScope struct {
	client.Client
	workload     client.Client
	cluster      *clusterv1.Cluster
	machine      *clusterv1.Machine
	infraMachine *infrav1.KwokMachine // nil if it does not exist
	node         *corev1.Node         // nil if it does not exist
	now          metav1.Time

	reason, message string // of the condition Deleting
}

func (m *machines) run(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	all := &clusterv1.MachineList{}
	if err := read(ctx, c, all); err != nil {
		return 0, err
	}
	for _, machine := range pointers(all.Items) {
		rest, err := m.reconcile(ctx, c, machine)
		again, failed = sooner(again, rest), cmp.Or(failed, err)
	}
	return again, failed
}

func (m *machines) reconcile(ctx context.Context, c client.Client, machine *clusterv1.Machine) (again time.Duration, err error) {
	s := &machineScope{Client: c, cluster: &clusterv1.Cluster{}, now: now()}
	key := client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}
	if err := c.Get(ctx, key, s.cluster, client.UnsafeDisableDeepCopy); err != nil {
		return 0, errors.Wrapf(client.IgnoreNotFound(err), "getting Cluster %s", key)
	}
	if machine.DeletionTimestamp == nil {
		machine, err = update(ctx, c, machine, func(machine *clusterv1.Machine) { controllerutil.AddFinalizer(machine, clusterv1.MachineFinalizer) })
		if err != nil {
			return 0, err
		}
	}
	if annotations.IsPaused(s.cluster, machine) {
		return 0, nil
	}
	s.workload = m.options.Workload(key)
	if err := s.observe(ctx, machine); err != nil {
		return 0, err
	}
	stored, err := update(ctx, c, machine, s.setMetadata)
	if err != nil {
		return 0, err
	}
	s.machine = stored.DeepCopy()
	s.setStatus()
	deleted := false
	if machine.DeletionTimestamp != nil {
		again, deleted, err = s.reconcileDelete(ctx)
		setCondition(&s.machine.Status.Conditions, clusterv1.MachineDeletingCondition, true, s.reason, s.message)
	} else if s.workload != nil && (s.node == nil || s.machine.Status.Phase == string(clusterv1.MachinePhaseRunning)) {
		again = nodePoll
	}
	failed := cmp.Or(err, setStatus(ctx, c, stored, func(machine *clusterv1.Machine) { machine.Status = s.machine.Status }))
	if failed != nil || !deleted {
		return again, failed
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(stored), s.machine); err != nil {
		return 0, errors.Wrapf(client.IgnoreNotFound(err), "getting Machine %s", stored.Name)
	}
	_, err = update(ctx, c, s.machine, func(machine *clusterv1.Machine) { controllerutil.RemoveFinalizer(machine, clusterv1.MachineFinalizer) })
	return 0, err
}

// observe reads the infrastructure and the Node of a Machine.
func (s *machineScope) observe(ctx context.Context, machine *clusterv1.Machine) (err error) {
	s.infraMachine = &infrav1.KwokMachine{}
	infraKey := referenced(machine, machine.Spec.InfrastructureRef)
	if err := s.Get(ctx, infraKey, s.infraMachine, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return errors.Wrapf(err, "getting the infrastructure of Machine %s", machine.Name)
	} else if err != nil {
		s.infraMachine = nil
	}
	if s.infraMachine != nil && s.infraMachine.DeletionTimestamp == nil {
		s.infraMachine, err = update(ctx, s.Client, s.infraMachine, func(o *infrav1.KwokMachine) {
			if metav1.GetControllerOfNoCopy(o) == nil {
				o.OwnerReferences = append(o.OwnerReferences, *metav1.NewControllerRef(machine, clusterv1.GroupVersion.WithKind("Machine")))
			}
			metav1.SetMetaDataLabel(&o.ObjectMeta, clusterv1.ClusterNameLabel, machine.Spec.ClusterName)
		})
		if err != nil {
			return err
		}
	}
	if s.workload == nil {
		return nil
	}
	if name := machine.Status.NodeRef.Name; name != "" {
		node := &corev1.Node{}
		if err := s.workload.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy); err == nil {
			s.node = node
		} else if client.IgnoreNotFound(err) != nil {
			return errors.Wrapf(err, "getting Node %s", name)
		}
		return nil
	}
	s.node, err = nodeOf(ctx, s.workload, cmp.Or(machine.Spec.ProviderID, s.providerID()))
	return err
}

func (s *machineScope) providerID() string {
	if s.infraMachine == nil || !ptr.Deref(s.infraMachine.Status.Initialization.Provisioned, false) {
		return ""
	}
	return s.infraMachine.Spec.ProviderID
}

func (s *machineScope) setMetadata(machine *clusterv1.Machine) {
	metav1.SetMetaDataLabel(&machine.ObjectMeta, clusterv1.ClusterNameLabel, machine.Spec.ClusterName)
	if len(machine.OwnerReferences) == 0 {
		machine.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: s.cluster.Name, UID: s.cluster.UID,
		}}
	}
	machine.Spec.ProviderID = cmp.Or(machine.Spec.ProviderID, s.providerID())
}

func (s *machineScope) setStatus() {
	machine, status := s.machine, &s.machine.Status
	status.ObservedGeneration = machine.Generation
	status.Initialization.BootstrapDataSecretCreated = ptr.To(machine.Spec.Bootstrap.DataSecretName != nil)
	status.Initialization.InfrastructureProvisioned = ptr.To(machine.Spec.ProviderID != "")
	isReady := false
	if s.node != nil {
		status.NodeRef.Name, status.NodeInfo = s.node.Name, ptr.To(s.node.Status.NodeInfo)
		isReady = noderefutil.IsNodeReady(s.node)
	}
	if s.infraMachine != nil {
		status.Addresses = s.infraMachine.Status.Addresses
	}
	phase := clusterv1.MachinePhaseProvisioning
	switch {
	case machine.DeletionTimestamp != nil:
		phase = clusterv1.MachinePhaseDeleting
	case status.NodeRef.IsDefined() && *status.Initialization.InfrastructureProvisioned:
		phase = clusterv1.MachinePhaseRunning
	case machine.Spec.ProviderID != "":
		phase = clusterv1.MachinePhaseProvisioned
	}
	if status.Phase != string(phase) {
		status.SetTypedPhase(phase)
		status.LastUpdated = s.now
	}
	isReady = isReady && machine.DeletionTimestamp == nil
	reason := map[bool]string{true: clusterv1.MachineReadyReason, false: clusterv1.MachineNotReadyReason}[isReady]
	setCondition(&status.Conditions, clusterv1.MachineReadyCondition, isReady, reason, "")
	reason = map[bool]string{true: clusterv1.MachineAvailableReason, false: clusterv1.MachineNotReadyReason}[isReady]
	setCondition(&status.Conditions, clusterv1.MachineAvailableCondition, isReady, reason, "")
	if machine.DeletionTimestamp == nil {
		setCondition(&status.Conditions, clusterv1.MachineDeletingCondition, false, clusterv1.MachineNotDeletingReason, "")
	}
}

// reconcileDelete does the next step of the deletion. It returns whether the Machine can be removed.
func (s *machineScope) reconcileDelete(ctx context.Context) (again time.Duration, deleted bool, _ error) {
	s.reason, s.message = clusterv1.MachineDeletingReason, "Deletion started"
	deletion := s.machine.Status.Deletion
	if deletion == nil {
		deletion = &clusterv1.MachineDeletionStatus{}
	}
	mayDeleteNode, err := s.isDeleteNodeAllowed(ctx)
	if err != nil {
		return 0, false, err
	}
	if mayDeleteNode {
		if again, vacated, err := s.vacateNode(ctx, deletion); err != nil || !vacated {
			return again, false, err
		}
	}
	if hooks := s.hooks(clusterv1.PreTerminateDeleteHookAnnotationPrefix); hooks != "" {
		s.begin(deletion, &deletion.WaitForPreTerminateHookStartTime)
		s.reason = clusterv1.MachineDeletingWaitingForPreTerminateHookReason
		s.message = fmt.Sprintf("Waiting for pre-terminate hooks to succeed (hooks: %s)", hooks)
		return 0, false, nil
	}
	if s.infraMachine != nil {
		s.reason, s.message = clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason, "Waiting for KwokMachine to be deleted"
		return 0, false, remove(ctx, s.Client, s.infraMachine)
	}
	if mayDeleteNode && s.node != nil {
		s.reason, s.message = clusterv1.MachineDeletingDeletingNodeReason, "Deleting Node"
		if err := remove(ctx, s.workload, s.node); err != nil {
			return 0, false, err
		}
	}
	s.reason, s.message = clusterv1.MachineDeletingDeletionCompletedReason, "Deletion completed"
	return 0, true, nil
}

// begin records the deletion, and when one of its phases has begun.
func (s *machineScope) begin(deletion *clusterv1.MachineDeletionStatus, startTime *metav1.Time) {
	s.machine.Status.Deletion = deletion
	if startTime.IsZero() {
		*startTime = s.now
	}
}

// vacateNode waits for hooks, drains the Node and waits for its volumes. It returns whether all of that is done.
func (s *machineScope) vacateNode(
	ctx context.Context, deletion *clusterv1.MachineDeletionStatus,
) (again time.Duration, vacated bool, _ error) {
	if hooks := s.hooks(clusterv1.PreDrainDeleteHookAnnotationPrefix); hooks != "" {
		s.begin(deletion, &deletion.WaitForPreDrainHookStartTime)
		s.reason = clusterv1.MachineDeletingWaitingForPreDrainHookReason
		s.message = fmt.Sprintf("Waiting for pre-drain hooks to succeed (hooks: %s)", hooks)
		return 0, false, nil
	}
	if s.allows(clusterv1.ExcludeNodeDrainingAnnotation, s.machine.Spec.Deletion.NodeDrainTimeoutSeconds, deletion.NodeDrainStartTime) {
		s.begin(deletion, &deletion.NodeDrainStartTime)
		s.reason, s.message = clusterv1.MachineDeletingDrainingNodeReason, "Drain not completed yet"
		if drained, err := s.drainNode(ctx); err != nil || !drained {
			return machineRetry, false, err
		}
	}
	timeout := s.machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds
	if s.allows(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, timeout, deletion.WaitForNodeVolumeDetachStartTime) {
		s.begin(deletion, &deletion.WaitForNodeVolumeDetachStartTime)
		s.reason, s.message = clusterv1.MachineDeletingWaitingForVolumeDetachReason, "Waiting for Node volumes to be detached"
		if detached, err := s.areVolumesDetached(ctx); err != nil || !detached {
			return machineRetry, false, err
		}
	}
	return 0, true, nil
}

// hooks returns the keys of the annotations with a prefix, as a list.
func (s *machineScope) hooks(prefix string) string {
	var hooks []string
	for key := range s.machine.Annotations {
		if strings.HasPrefix(key, prefix) {
			hooks = append(hooks, key)
		}
	}
	slices.Sort(hooks)
	return strings.Join(hooks, ",")
}

// isDeleteNodeAllowed returns whether the Machine controller drains and deletes the Node. It does neither if the Cluster or its control
// plane is being deleted, or if no other control plane would remain.
func (s *machineScope) isDeleteNodeAllowed(ctx context.Context) (bool, error) {
	if s.cluster.DeletionTimestamp != nil || !s.machine.Status.NodeRef.IsDefined() {
		return false, nil
	}
	if s.cluster.Spec.ControlPlaneRef.IsDefined() {
		controlPlane := &controlplanev1.KwokControlPlane{}
		if err := s.Get(ctx, referenced(s.cluster, s.cluster.Spec.ControlPlaneRef), controlPlane, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
			return false, errors.Wrapf(err, "getting the control plane of Cluster %s", s.cluster.Name)
		} else if err == nil && controlPlane.DeletionTimestamp != nil {
			return false, nil
		} else if err == nil && ptr.Deref(controlPlane.Status.ExternalManagedControlPlane, false) {
			return true, nil
		}
	}
	all := &clusterv1.MachineList{}
	err := s.List(ctx, all, client.UnsafeDisableDeepCopy, client.InNamespace(s.machine.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}, client.HasLabels{clusterv1.MachineControlPlaneLabel})
	return slices.ContainsFunc(all.Items, func(m clusterv1.Machine) bool { return m.DeletionTimestamp == nil }), errors.Wrap(err, "listing Machines")
}

// allows returns whether the Machine controller drains the Node or waits for its volumes: until the timeout, and not with the annotation.
func (s *machineScope) allows(annotation string, timeout *int32, started metav1.Time) bool {
	_, excluded := s.machine.Annotations[annotation]
	deletion := ptr.Deref(s.machine.Status.Deletion, clusterv1.MachineDeletionStatus{})
	isOver := ptr.Deref(timeout, 0) > 0 && !started.IsZero() && s.now.Sub(started.Time) >= time.Duration(*timeout)*time.Second
	return !excluded && !isOver && deletion.WaitForPreTerminateHookStartTime.IsZero() && s.infraMachine != nil && s.infraMachine.DeletionTimestamp == nil
}

// drainNode cordons the Node and evicts all its Pods at once.
func (s *machineScope) drainNode(ctx context.Context) (drained bool, failed error) {
	if s.node == nil {
		return true, nil
	}
	_, err := update(ctx, s.workload, s.node, func(node *corev1.Node) { node.Spec.Unschedulable = true })
	if err != nil {
		return false, err
	}
	pods, _, err := s.podsOnNode(ctx)
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && pod.Labels[clusterv1.PodDrainLabel] == "" {
			_ = s.workload.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{}) // the next attempt follows
		}
	}
	s.message = fmt.Sprintf("Drain not completed yet: %d Pods", len(pods))
	return len(pods) == 0 && err == nil, err
}

// podsOnNode returns the Pods on the Node that Cluster API drains or waits for, and those that it skips.
func (s *machineScope) podsOnNode(ctx context.Context) (drained, skipped []*corev1.Pod, _ error) {
	pods, rules := &corev1.PodList{}, &clusterv1.MachineDrainRuleList{}
	if err := read(ctx, s.workload, pods); err != nil {
		return nil, nil, err
	}
	if err := read(ctx, s.Client, rules); err != nil {
		return nil, nil, err
	}
	for _, pod := range pointers(pods.Items) {
		switch {
		case pod.Spec.NodeName != s.node.Name:
		case s.skips(pod, rules.Items):
			skipped = append(skipped, pod)
		default:
			drained = append(drained, pod)
		}
	}
	return drained, skipped, nil
}

// skips returns whether Cluster API neither drains a Pod nor waits for it.
func (s *machineScope) skips(pod *corev1.Pod, rules []clusterv1.MachineDrainRule) bool {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "DaemonSet" {
		return true
	}
	if pod.Labels[clusterv1.PodDrainLabel] == "skip" || pod.DeletionTimestamp != nil && noderefutil.IsNodeUnreachable(s.node) {
		return true
	}
	return slices.ContainsFunc(rules, func(rule clusterv1.MachineDrainRule) bool {
		return rule.Namespace == s.machine.Namespace && rule.Spec.Drain.Behavior == clusterv1.MachineDrainRuleDrainBehaviorSkip && selects(&rule, pod)
	})
}

// selects returns whether a rule applies to a Pod. It ignores selectors of Machines and namespaces.
func selects(rule *clusterv1.MachineDrainRule, pod *corev1.Pod) bool {
	return len(rule.Spec.Pods) == 0 || slices.ContainsFunc(rule.Spec.Pods, func(s clusterv1.MachineDrainRulePodSelector) bool {
		if s.Selector == nil {
			return true
		}
		selector, err := metav1.LabelSelectorAsSelector(s.Selector)
		return err == nil && selector.Matches(labels.Set(pod.Labels))
	})
}

// areVolumesDetached returns whether no volume is attached to the Node except those of Pods that Cluster API does not drain.
func (s *machineScope) areVolumesDetached(ctx context.Context) (bool, error) {
	if s.node == nil || noderefutil.IsNodeUnreachable(s.node) {
		return true, nil
	}
	_, skipped, err := s.podsOnNode(ctx)
	if err != nil {
		return false, err
	}
	ignored := map[client.ObjectKey]bool{}
	for _, pod := range skipped {
		for _, claim := range drainvolumes.ClaimsOf(pod) {
			ignored[claim] = true
		}
	}
	attachments, volumes := &storagev1.VolumeAttachmentList{}, &corev1.PersistentVolumeList{}
	if err := read(ctx, s.workload, attachments, volumes); err != nil {
		return false, err
	}
	claims := map[string]client.ObjectKey{}
	for _, volume := range pointers(volumes.Items) {
		if claim := volume.Spec.ClaimRef; claim != nil {
			claims[volume.Name] = client.ObjectKey{Namespace: claim.Namespace, Name: claim.Name}
		}
	}
	return !slices.ContainsFunc(attachments.Items, func(a storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == s.node.Name && a.Status.Attached && !ignored[claims[storage.VolumeOf(&a)]]
	}), nil
}
