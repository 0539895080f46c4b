package models

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// WorkloadOptions are the options of the models of a workload cluster.
type WorkloadOptions struct {
	// Random is the source of random choices. Workload draws seeds from it.
	Random *rand.Rand
	// PodReadyDelay and PodDeletionDelay apply to Pods without the annotations of test/controlplane.
	PodReadyDelay, PodDeletionDelay time.Duration
	// Held returns whether a PersistentVolume stays attached: a fault. It is polled.
	Held func(volume string) bool
}

// Workload returns all models of a workload cluster.
func Workload(options WorkloadOptions) []Model {
	pod, node := &corev1.Pod{}, &corev1.Node{}
	d, s, n := &deployments{hashes{}}, &statefulSets{hashes{}}, &daemonSets{hashes{}}
	scheduler, kubelets := &scheduler{newRandom(options.Random)}, &kubelets{options: options, stages: map[types.UID]stage{}}
	volumes := &volumes{options: options, random: newRandom(options.Random), detached: map[types.UID]time.Time{}}
	models := []Model{
		{Name: "deployment", Kinds: []client.Object{&appsv1.Deployment{}, &appsv1.ReplicaSet{}}, Run: d.run},
		{Name: "replicaset", Kinds: []client.Object{&appsv1.ReplicaSet{}, pod}, Run: runReplicaSets},
		{Name: "statefulset", Kinds: []client.Object{&appsv1.StatefulSet{}, pod}, Run: s.run},
		{Name: "daemonset", Kinds: []client.Object{&appsv1.DaemonSet{}, pod, node}, Run: n.run},
		{Name: "job", Kinds: []client.Object{&batchv1.Job{}, pod}, Run: (&jobs{map[types.UID]map[types.UID]bool{}}).run},
		{Name: "scheduler", User: "system:kube-scheduler", Kinds: []client.Object{pod, node}, Run: scheduler.run},
		{Name: "kubelet", User: "system:node", Kinds: []client.Object{pod, node}, Run: kubelets.run},
		{Name: "node-lifecycle", Kinds: []client.Object{pod, node}, Run: (&nodeLifecycle{map[types.UID]time.Time{}}).run},
		{Name: "pod-garbage-collector", Kinds: []client.Object{pod, node}, Run: (&podGC{map[types.UID]time.Time{}}).run},
		{
			Name: "disruption", Run: runDisruption,
			Kinds: []client.Object{&policyv1.PodDisruptionBudget{}, pod, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}},
		},
		{Name: "attachdetach", Kinds: []client.Object{pod, node, &storagev1.VolumeAttachment{}}, Run: volumes.run},
		{Name: "service-account", Kinds: []client.Object{&corev1.Namespace{}}, Immediate: true, Run: runServiceAccounts},
	}
	for i := range models {
		models[i].User = cmp.Or(models[i].User, "system:serviceaccount:kube-system:"+models[i].Name+"-controller")
	}
	return models
}

// runServiceAccounts creates the default ServiceAccount of each Namespace.
func runServiceAccounts(ctx context.Context, c client.Client) (time.Duration, error) {
	namespaces, accounts := &corev1.NamespaceList{}, &corev1.ServiceAccountList{}
	if err := read(ctx, c, namespaces, accounts); err != nil {
		return 0, err
	}
	has := map[string]bool{}
	for i := range accounts.Items {
		has[accounts.Items[i].Namespace] = has[accounts.Items[i].Namespace] || accounts.Items[i].Name == "default"
	}
	var failed error
	for _, namespace := range pointers(namespaces.Items) {
		if namespace.DeletionTimestamp == nil && !has[namespace.Name] {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "default"}}
			failed = cmp.Or(failed, create(ctx, c, account))
		}
	}
	return 0, failed
}

// isActive returns whether a Pod counts as a replica.
func isActive(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !rules.Finished(pod) }

// newPod returns a Pod of a controller with additional labels. Its name is generated unless the caller sets it.
func newPod(template *corev1.PodTemplateSpec, owner client.Object, kind schema.GroupVersionKind, labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.GenerateName = owner.GetNamespace(), owner.GetName()+"-"
	for key, value := range labels {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, key, value)
	}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}
	pod.Status.Phase = corev1.PodPending
	return pod
}

// byDeletion returns Pods in the order in which a ReplicaSet deletes them.
func byDeletion(pods []*corev1.Pod) []*corev1.Pod {
	onNode := map[string]int{}
	for _, pod := range pods {
		onNode[pod.Spec.NodeName]++
	}
	rank := func(pod *corev1.Pod) []int {
		cost, _ := strconv.Atoi(pod.Annotations[corev1.PodDeletionCost])
		return []int{
			number(pod.Spec.NodeName != ""), number(pod.Status.Phase == corev1.PodRunning), number(rules.Ready(pod)), cost, -onNode[pod.Spec.NodeName],
			int(-pod.CreationTimestamp.Unix()),
		}
	}
	return slices.SortedStableFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(slices.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
}

// number returns 1 for true, to sort by it.
func number(is bool) int {
	if is {
		return 1
	}
	return 0
}
