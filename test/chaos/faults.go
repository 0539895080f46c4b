package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// fault is something that goes wrong during a run.
type fault struct {
	name string
	// on names what it concerns. Faults on the same thing do not overlap.
	on string
	// inject causes the fault. It returns how to heal it, or nil. Pick chooses the object.
	inject func(ctx context.Context, r *run, pick uint64) (heal, error)
}

// heal ends a fault. It is called until it returns nil.
type heal func(context.Context) error

// faults is the table of all faults. The order matters: a seed chooses by position.
func faults() []fault {
	crds := func() client.ObjectList { return &apiextensionsv1.CustomResourceDefinitionList{} }
	policies := func() client.ObjectList { return &admissionregistrationv1.ValidatingAdmissionPolicyList{} }
	bindings := func() client.ObjectList { return &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{} }
	objects := []fault{
		{"network-cut", "network", cutNetwork},
		{"network-slow", "network", slowNetwork},
		{clusterPaused, "cluster", pauseCluster},
		{"node-unreachable", "nodes", stopNode},
		{"node-uncordoned", "nodes", uncordonNode},
		{"hook-removed", "hooks", removeHook},
		{"evacuation-deleted", "evacuations", onEvacuation(deleteObject)},
		{"evacuation-finalizers-removed", "evacuations", onEvacuation(removeFinalizers)},
		{"maintenance-completed", "maintenances", onMaintenance(completeMaintenance)},
		{"maintenance-deleted", "maintenances", onMaintenance(deleteObject)},
		{"maintenance-finalizers-removed", "maintenances", onMaintenance(deleteWithFinalizers)},
		{"budget-edited", "budgets", editBudget},
		{"budget-deleted", "budgets", deleteBudget},
		{"rule-edited", "rules", editRule},
		{"rule-deleted", "rules", deleteRule},
		{"label-edited", "pods", editLabel},
		{"pod-deleted", "pods", deletePod},
		{"crd-deleted", "bundle", onInstalled(crds, deleteObject)},
		{"policy-deleted", "bundle", onInstalled(policies, deleteObject)},
		{"policy-binding-deleted", "bundle", onInstalled(bindings, deleteObject)},
		{"crd-edited", "bundle", onInstalled(crds, edit(`{"spec":{"names":{"categories":["edited"]}}}`))},
		{"policy-edited", "bundle", onInstalled(policies, edit(`{"spec":{"failurePolicy":"Ignore"}}`))},
		{"policy-binding-edited", "bundle", onInstalled(bindings, edit(`{"spec":{"validationActions":["Warn"]}}`))},
		{networkReset, "network", resetNetwork},
		{"node-deleted", "nodes", deleteNode},
		{"webhook-down", "webhooks", refuseRequests},
		{clockWrong, "manager", setClockWrong},
		{clusterDeleted, "cluster", deleteCluster},
		{"network-responses-cut", "network", cutResponses},
		{admitFailing, "roles", forbidInfrastructure},
		{"timeout-set", "timeouts", setTimeout},
		{"budget-replaced", "budgets", replaceBudget},
		{"user-maintenance-vanished", "user maintenance", vanishUserMaintenance},
	}
	return slices.Concat(processFaults(), objects, laterFaults())
}

// processFaults are the faults of the managers and of the components of the control planes.
func processFaults() []fault {
	table := []fault{
		{"manager-killed", "manager", stopManager((*managerProcess).kill)},
		{"manager-terminated", "manager", stopManager((*managerProcess).terminate)},
		{"manager-frozen", "manager", freezeManager},
	}
	for _, each := range []struct {
		cluster   string
		component controlplane.Component
		on        string
	}{
		{"workload", controlplane.APIServer, "workload"},
		{"workload", controlplane.Etcd, "workload"},
		{"workload", controlplane.ControllerManager, "workload controllers"},
		{"management", controlplane.APIServer, "management"},
		{"management", controlplane.Etcd, "management"},
	} {
		name := each.cluster + "-" + strings.TrimPrefix(string(each.component), "kube-")
		table = append(table,
			fault{name + "-killed", each.on, killComponent(each.cluster, each.component)},
			fault{name + "-frozen", each.on, freezeComponent(each.cluster, each.component)})
	}
	return table
}

// admitFailing is the fault during which the first step of the deletion of a Machine fails.
const admitFailing = "admit-failing"

// forbidInfrastructure forbids the managers to read infrastructure and control plane objects. What they have read is valid for fifteen
// seconds.
func forbidInfrastructure(ctx context.Context, r *run, _ uint64) (heal, error) {
	set := func(ctx context.Context, rules []rbacv1.PolicyRule) (before []rbacv1.PolicyRule, err error) {
		role := &rbacv1.ClusterRole{}
		if err := r.fleet.Client.Get(ctx, client.ObjectKey{Name: fleet.InfrastructureRole}, role); err != nil {
			return nil, errors.Wrap(err, "getting a ClusterRole")
		}
		before, role.Rules = role.Rules, rules
		return before, errors.Wrap(r.fleet.Client.Update(ctx, role), "editing a ClusterRole")
	}
	before, err := set(ctx, nil)
	if before == nil {
		return nil, err
	}
	undo := func(ctx context.Context) error {
		_, err := set(ctx, before)
		return err
	}
	return undo, err
}

// setTimeout sets short timeouts on a Machine that is being deleted. They may have passed.
func setTimeout(ctx context.Context, r *run, pick uint64) (heal, error) {
	machine, err := choose(ctx, r.fleet.Client, &clusterv1.MachineList{}, pick, func(o client.Object) bool {
		return r.isDrained(o) && o.GetDeletionTimestamp() != nil && metav1.GetControllerOf(o) == nil // a MachineSet restores its timeouts
	})
	if err != nil {
		return nil, err
	}
	return nil, patch(ctx, r.fleet.Client, machine, timeouts(int32(8+pick%8)))
}

// timeouts is a patch that sets the drain timeout, and that for volumes, of a Machine.
func timeouts(seconds int32) string {
	return fmt.Sprintf(`{"spec":{"deletion":{"nodeDrainTimeoutSeconds":%[1]d,"nodeVolumeDetachTimeoutSeconds":%[1]d}}}`, seconds)
}

// vanishUserMaintenance removes the NodeMaintenance of the user, which cannot complete then.
func vanishUserMaintenance(ctx context.Context, r *run, _ uint64) (heal, error) {
	m := r.userMaintenance()
	if err := r.workload.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
		return nil, errors.Wrap(err, "getting the NodeMaintenance of the user")
	}
	return nil, deleteWithFinalizers(ctx, r.workload.Client, m)
}

// replaceBudget replaces a budget as some operators do: the Pods have none for a moment.
func replaceBudget(ctx context.Context, r *run, pick uint64) (heal, error) {
	undo, err := deleteBudget(ctx, r, pick)
	if undo == nil {
		return nil, err
	}
	select {
	case <-time.After(300 * time.Millisecond):
	case <-ctx.Done():
	}
	if undo(ctx) == nil {
		undo = nil
	}
	return undo, err
}

// onInstalled changes an object that the manager has installed in the workload cluster, which it must restore.
func onInstalled(list func() client.ObjectList, do change) func(context.Context, *run, uint64) (heal, error) {
	return func(ctx context.Context, r *run, pick uint64) (heal, error) {
		object, err := choose(ctx, r.workload.Client, list(), pick, func(o client.Object) bool { return o.GetAnnotations()[v1alpha1.BundleVersionAnnotation] != "" })
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, r.workload.Client, object)
	}
}

func edit(merge string) change {
	return func(ctx context.Context, c client.Client, object client.Object) error {
		return patch(ctx, c, object, merge)
	}
}

func stopManager(stop func(*managerProcess)) func(context.Context, *run, uint64) (heal, error) {
	return func(_ context.Context, r *run, pick uint64) (heal, error) {
		m := r.managers[pick%uint64(len(r.managers))]
		stop(m)
		return m.start, nil
	}
}

func freezeManager(_ context.Context, r *run, pick uint64) (heal, error) {
	m := r.managers[pick%uint64(len(r.managers))]
	return func(context.Context) error { return m.thaw() }, m.freeze()
}

// clockWrong is the fault whose manager needs a separate build.
const clockWrong = "manager-clock-wrong"

// writesLost is the fault that loses requests of the manager, or their responses.
const writesLost = "writes-lost"

// setClockWrong restarts a manager with a wrong clock. The clock is right again after all other faults.
func setClockWrong(ctx context.Context, r *run, pick uint64) (heal, error) {
	m, offsets := r.managers[pick%uint64(len(r.managers))], []time.Duration{40 * time.Second, 5 * time.Minute, time.Hour, 13 * time.Hour}
	offset := offsets[pick/4%4]
	if pick/2%2 == 0 {
		offset = -offset
	}
	r.logf("the clock of %s is wrong by %s", m.name, offset)
	r.setClockOff(offset)
	m.setClock(offset)
	undo := func(ctx context.Context) error {
		r.waitUntil(ctx, r.schedule.window())
		m.setClock(0)
		return m.start(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healing)
	defer cancel()
	return undo, m.start(ctx)
}

func killComponent(cluster string, component controlplane.Component) func(context.Context, *run, uint64) (heal, error) {
	return func(ctx context.Context, r *run, _ uint64) (heal, error) {
		c := r.controlPlane(cluster)
		restart := func(ctx context.Context) error {
			if err := c.StartComponent(ctx, component); err != nil && !strings.Contains(err.Error(), "is running") {
				return err
			}
			return nil
		}
		return restart, c.KillComponent(ctx, component)
	}
}

func freezeComponent(cluster string, component controlplane.Component) func(context.Context, *run, uint64) (heal, error) {
	return func(_ context.Context, r *run, _ uint64) (heal, error) {
		c := r.controlPlane(cluster)
		return func(context.Context) error { return c.SignalComponent(component, syscall.SIGCONT) }, c.SignalComponent(component, syscall.SIGSTOP)
	}
}

func cutNetwork(_ context.Context, r *run, _ uint64) (heal, error) {
	r.workload.CutNetwork()
	return func(context.Context) error { r.workload.RestoreNetwork(); return nil }, nil
}

// cutResponses cuts the network in one direction: requests are carried out, and the managers do not know it.
func cutResponses(_ context.Context, r *run, _ uint64) (heal, error) {
	r.workload.CutResponses()
	return func(context.Context) error { r.workload.RestoreNetwork(); return nil }, nil
}

// refusals are what an admission webhook that does not answer makes the API server of the workload cluster refuse.
var refusals = []admissionregistrationv1.Rule{
	{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"nodemaintenances"}},
	{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*/*"}},
	{APIGroups: []string{corev1.GroupName}, Resources: []string{"pods/eviction"}},
	{APIGroups: []string{corev1.GroupName}, Resources: []string{"nodes"}},
}

func refuseRequests(ctx context.Context, r *run, pick uint64) (heal, error) {
	return refuseRule(ctx, r, refusals[pick%4])
}

// refuseRule installs an admission webhook that does not answer.
func refuseRule(ctx context.Context, r *run, refused admissionregistrationv1.Rule) (heal, error) {
	refused.APIVersions = []string{"*"}
	operations := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "down"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "down.test.capnm.dev", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1")},
			Rules:        []admissionregistrationv1.RuleWithOperations{{Operations: operations, Rule: refused}},
		}},
	}
	undo := func(ctx context.Context) error {
		return client.IgnoreNotFound(r.workload.Client.Delete(ctx, webhook.DeepCopy()))
	}
	return undo, errors.Wrap(r.workload.Client.Create(ctx, webhook), "creating a webhook")
}

// networkReset is the fault that loses the responses of requests in flight, and all watches.
const networkReset = "network-reset"

// resetNetwork closes all connections of the managers, and so all of their watches.
func resetNetwork(_ context.Context, r *run, _ uint64) (heal, error) {
	r.workload.ResetNetwork()
	return nil, nil
}

func slowNetwork(_ context.Context, r *run, pick uint64) (heal, error) {
	r.workload.SlowNetwork(time.Duration(50+pick%400) * time.Millisecond)
	return func(context.Context) error { r.workload.SlowNetwork(0); return nil }, nil
}

// clusterPaused is the fault during which the manager changes nothing.
const clusterPaused = "cluster-paused"

func pauseCluster(ctx context.Context, r *run, _ uint64) (heal, error) {
	return func(ctx context.Context) error { return r.setPaused(ctx, false) }, r.setPaused(ctx, true)
}

// setPaused pauses or resumes the Cluster, unless it was deleted or moved.
func (r *run) setPaused(ctx context.Context, paused bool) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: r.home(), Name: clusterName}}
	err := patch(ctx, r.fleet.Client, cluster, fmt.Sprintf(`{"spec":{"paused":%t}}`, paused))
	return client.IgnoreNotFound(errors.Cause(err))
}

// clusterDeleted is the fault after which the fleet ends.
const clusterDeleted = "cluster-deleted"

// deleteCluster deletes the Cluster, and so all Machines, none of which is drained from then on. The fleet ends with the run.
func deleteCluster(ctx context.Context, r *run, _ uint64) (heal, error) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: r.home(), Name: clusterName}}
	if err := r.setAnnotation(ctx, "null"); err != nil {
		return nil, err
	}
	r.endCluster()
	return func(ctx context.Context) error {
		return client.IgnoreNotFound(r.fleet.Client.Delete(ctx, cluster)) // also if the first request was not answered
	}, errors.Wrap(r.fleet.Client.Delete(ctx, cluster), "deleting the Cluster")
}

// stopNode stops a kubelet and reports its Node as unreachable, as the node lifecycle controller would after a minute.
func stopNode(ctx context.Context, r *run, pick uint64) (heal, error) {
	node, err := choose(ctx, r.workload.Client, &corev1.NodeList{}, pick, r.isDrained)
	if err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error {
		return client.IgnoreNotFound(errors.Cause(r.workload.StartKubelet(ctx, node.GetName())))
	}
	if err := r.workload.StopKubelet(ctx, node.GetName()); err != nil {
		return undo, err
	}
	unknown := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","lastTransitionTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339))
	err = r.workload.Client.Status().Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, unknown))
	return undo, errors.Wrapf(err, "reporting Node %s as unreachable", node.GetName())
}

func uncordonNode(ctx context.Context, r *run, pick uint64) (heal, error) {
	node, err := choose(ctx, r.workload.Client, &corev1.NodeList{}, pick, func(o client.Object) bool {
		return r.isDrained(o) && o.(*corev1.Node).Spec.Unschedulable
	})
	if err != nil {
		return nil, err
	}
	return nil, patch(ctx, r.workload.Client, node, `{"spec":{"unschedulable":null}}`)
}

// deleteNode deletes a Node during its drain.
func deleteNode(ctx context.Context, r *run, pick uint64) (heal, error) {
	node, err := choose(ctx, r.workload.Client, &corev1.NodeList{}, pick, func(o client.Object) bool {
		return r.isDrained(o) && o.(*corev1.Node).Spec.Unschedulable
	})
	if err != nil {
		return nil, err
	}
	return nil, deleteObject(ctx, r.workload.Client, node)
}

func removeHook(ctx context.Context, r *run, pick uint64) (heal, error) {
	machine, err := choose(ctx, r.fleet.Client, &clusterv1.MachineList{}, pick, func(o client.Object) bool {
		return r.isDrained(o) && o.GetDeletionTimestamp() != nil
	})
	if err != nil {
		return nil, err
	}
	r.unhook(machine.GetName())
	return nil, patch(ctx, r.fleet.Client, machine, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.PreDrainHookAnnotation))
}

type change func(context.Context, client.Client, client.Object) error

func onEvacuation(do change) func(context.Context, *run, uint64) (heal, error) {
	return func(ctx context.Context, r *run, pick uint64) (heal, error) {
		object, err := choose(ctx, r.workload.Client, &v1alpha1.EvacuationList{}, pick, all)
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, r.workload.Client, object)
	}
}

func onMaintenance(do change) func(context.Context, *run, uint64) (heal, error) {
	return func(ctx context.Context, r *run, pick uint64) (heal, error) {
		object, err := choose(ctx, r.workload.Client, &v1alpha1.NodeMaintenanceList{}, pick, func(o client.Object) bool {
			return o.GetAnnotations()[v1alpha1.OwnerMachineAnnotation] != ""
		})
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, r.workload.Client, object)
	}
}

func deleteObject(ctx context.Context, c client.Client, object client.Object) error {
	return errors.Wrapf(c.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())}), "deleting %s", object.GetName())
}

func removeFinalizers(ctx context.Context, c client.Client, object client.Object) error {
	return patch(ctx, c, object, `{"metadata":{"finalizers":null}}`)
}

func deleteWithFinalizers(ctx context.Context, c client.Client, object client.Object) error {
	if err := deleteObject(ctx, c, object); err != nil {
		return err
	}
	return removeFinalizers(ctx, c, object)
}

func completeMaintenance(ctx context.Context, c client.Client, object client.Object) error {
	return patch(ctx, c, object, `{"spec":{"stage":"Complete"}}`)
}

func deletePod(ctx context.Context, r *run, pick uint64) (heal, error) {
	object, err := choose(ctx, r.workload.Client, &corev1.PodList{}, pick, func(o client.Object) bool {
		return r.isLoad(o) && metav1.GetControllerOf(o) != nil
	})
	if err != nil {
		return nil, err
	}
	return nil, deleteObject(ctx, r.workload.Client, object)
}

func recreate(c client.Client, object client.Object) heal {
	return func(ctx context.Context) error {
		again := object.DeepCopyObject().(client.Object)
		again.SetResourceVersion("")
		again.SetUID("")
		err := c.Create(ctx, again)
		if client.IgnoreAlreadyExists(err) != nil {
			return errors.Wrapf(err, "creating %s again", object.GetName())
		}
		return nil
	}
}

// choose lists objects and returns one that is suitable.
func choose(ctx context.Context, c client.Client, list client.ObjectList, pick uint64, suits func(client.Object) bool) (client.Object, error) {
	if err := c.List(ctx, list); err != nil {
		return nil, errors.Wrapf(err, "listing %T", list)
	}
	items, err := objectsOf(list)
	if err != nil {
		return nil, err
	}
	items = slices.DeleteFunc(items, func(o client.Object) bool { return !suits(o) })
	if len(items) == 0 {
		return nil, errors.Errorf("no suitable object in %T", list)
	}
	return items[pick%uint64(len(items))], nil
}

func all(client.Object) bool { return true }

func patch(ctx context.Context, c client.Client, object client.Object, merge string) error {
	return errors.Wrapf(c.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(merge))), "patching %T %s", object, object.GetName())
}
