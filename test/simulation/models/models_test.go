package models

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// fixture has the clusters under test.
type fixture struct {
	*WithT
	ctx                  context.Context //nolint:containedctx // of the test
	workload, management client.WithWatch

	mu     sync.Mutex
	paused map[string]bool
	held   bool
	events []string // writes of Pods and Machines
	stored []stored
}

// stored is an object when it was stored, and a copy of it.
type stored struct{ object, copied client.Object }

const longest = 5 * time.Minute

// simulate runs a test in a bubble with Nodes n1, n2, n3.
func simulate(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seed := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(1, n)) }
		server := func(name string, n uint64) *apiserver.Server {
			return apiserver.New(apiserver.Options{Name: name, Scheme: clusterapi.Scheme(), Random: seed(n)})
		}
		workload, management := server("workload", 1), server("management", 2)
		f := &fixture{WithT: NewWithT(t), ctx: ctx, workload: workload.Client("test"), management: management.Client("test"), paused: map[string]bool{}}
		workload.OnChange(f.record)
		management.OnChange(f.record)
		for _, crd := range crds(f.WithT) {
			f.Expect(f.management.Create(ctx, crd)).To(Succeed())
		}
		options := Options{Random: seed(3), Paused: f.isPaused, OnError: func(model string, err error) { t.Errorf("%s: %v", model, err) }}
		Start(ctx, workload, Workload(WorkloadOptions{Random: seed(4), PodReadyDelay: time.Second, PodDeletionDelay: time.Second, Held: f.isHeld}), options)
		Start(ctx, management, Management(ManagementOptions{
			Random: seed(5), Workload: func(client.ObjectKey) client.Client { return workload.Client("capi-core") },
			Server: func(client.ObjectKey) string { return "http://workload" },
		}), options)
		f.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
		for i := range 3 {
			f.create(controlplane.NewNode(fmt.Sprintf("n%d", i+1)))
		}
		test(f)
		cancel()
		synctest.Wait()
		for _, s := range f.stored {
			f.Expect(apiserver.Equal(s.object, s.copied)).To(BeTrue(), "a model has changed %T %s, which it shares with the server", s.object, s.object.GetName())
		}
	})
}

func crds(g *WithT) []*apiextensionsv1.CustomResourceDefinition {
	all, err := kwok.CRDs()
	g.Expect(err).NotTo(HaveOccurred())
	for _, kind := range []string{"Cluster", "Machine", "MachineSet", "MachineDeployment", "MachineDrainRule"} {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(kind) + "s." + clusterv1.GroupVersion.Group}}
		crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
			Group: clusterv1.GroupVersion.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: strings.ToLower(kind) + "s", Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1beta2", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		}
		all = append(all, crd)
	}
	return all
}

func (f *fixture) record(change apiserver.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if change.New != nil {
		f.stored = append(f.stored, stored{change.New, change.New.DeepCopyObject().(client.Object)})
	}
	object, verb := change.New, "created"
	switch {
	case change.New == nil:
		object, verb = change.Old, "removed"
	case change.Old != nil && change.Old.GetDeletionTimestamp() == nil && change.New.GetDeletionTimestamp() != nil:
		verb = "deleted"
	case change.Old != nil:
		return
	}
	switch object.(type) {
	case *corev1.Pod, *clusterv1.Machine:
		f.events = append(f.events, verb+" "+object.GetName())
	}
}

func (f *fixture) isPaused(model string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paused[model]
}

func (f *fixture) isHeld(string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// fault injects or heals a fault.
func (f *fixture) fault(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// takeEvents returns what was recorded since the previous call.
func (f *fixture) takeEvents() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.events = nil }()
	return f.events
}

func (f *fixture) create(objects ...client.Object) {
	for _, object := range objects {
		f.Expect(f.workload.Create(f.ctx, object)).To(Succeed())
	}
}

func (f *fixture) eventually(condition func(g Gomega)) {
	f.Eventually(condition).WithTimeout(longest).WithPolling(50 * time.Millisecond).Should(Succeed())
}

// pods returns the Pods of an app that are not being deleted.
func (f *fixture) pods(app string) []corev1.Pod {
	pods := &corev1.PodList{}
	f.Expect(f.workload.List(f.ctx, pods, client.MatchingLabels{"app": app})).To(Succeed())
	return slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

func (f *fixture) get(g Gomega, c client.Client, object client.Object) {
	g.Expect(c.Get(f.ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
}

func objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name}
}

func labelsOf(app string) map[string]string { return map[string]string{"app": app} }

func templateOfApp(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(app)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
	}
}

func newDeployment(name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: objectMeta(name), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labelsOf(name)}, Template: templateOfApp(name),
	}}
}

func (f *fixture) isAvailable(name string, replicas int32) {
	f.eventually(func(g Gomega) {
		d := newDeployment(name, 0)
		f.get(g, f.workload, d)
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect(d.Status.AvailableReplicas).To(Equal(replicas))
		g.Expect(d.Status.UpdatedReplicas).To(Equal(replicas))
		g.Expect(d.Status.Replicas).To(Equal(replicas))
	})
}

func TestDeploymentRollingUpdate(t *testing.T) {
	simulate(t, func(f *fixture) {
		d := newDeployment("web", 4)
		f.create(d)
		f.isAvailable("web", 4)
		f.get(f, f.workload, d)
		f.Expect(d.Annotations).To(HaveKeyWithValue(revisionAnnotation, "1"))
		d.Spec.Template.Spec.Containers[0].Image = "v2"
		f.Expect(f.workload.Update(f.ctx, d)).To(Succeed())
		least := 4
		f.eventually(func(g Gomega) {
			pods := f.pods("web")
			count := 0
			for i := range pods {
				count += number(rules.Ready(&pods[i]))
			}
			least = min(least, count)
			g.Expect(pods).To(HaveLen(4))
			for _, pod := range pods {
				g.Expect(pod.Spec.Containers[0].Image).To(Equal("v2"))
			}
		})
		f.Expect(least).To(BeNumerically(">=", 3), "maxUnavailable is 25%")
		f.isAvailable("web", 4)
		f.get(f, f.workload, d)
		f.Expect(d.Annotations).To(HaveKeyWithValue(revisionAnnotation, "2"))
		d.Spec.Replicas = ptr.To[int32](1)
		f.Expect(f.workload.Update(f.ctx, d)).To(Succeed())
		f.isAvailable("web", 1)
	})
}

func TestEvictionRespectsBudget(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.create(newDeployment("web", 3))
		one := intstr.FromInt32(1)
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: objectMeta("web"), Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: labelsOf("web")},
		}}
		f.create(budget)
		f.isAvailable("web", 3)
		allows := func(disruptions int32) {
			f.eventually(func(g Gomega) {
				f.get(g, f.workload, budget)
				g.Expect(budget.Status.DisruptionsAllowed).To(Equal(disruptions))
				g.Expect(budget.Status.ExpectedPods).To(Equal(int32(3)))
			})
		}
		allows(1)
		evicted := f.pods("web")[0]
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: evicted.Spec.NodeName}}
		f.get(f, f.workload, node)
		node.Spec.Unschedulable = true
		f.Expect(f.workload.Update(f.ctx, node)).To(Succeed())
		evict := func(pod *corev1.Pod) error {
			return f.workload.SubResource("eviction").Create(f.ctx, pod, &policyv1.Eviction{})
		}
		f.Expect(evict(evicted.DeepCopy())).To(Succeed())
		f.Expect(apierrors.IsTooManyRequests(evict(f.pods("web")[0].DeepCopy()))).To(BeTrue())
		f.isAvailable("web", 3)
		allows(1)
		for _, pod := range f.pods("web") {
			f.Expect(pod.Spec.NodeName).NotTo(Equal(node.Name))
		}
		f.Expect(budget.Status.DisruptedPods).To(BeEmpty())
	})
}

func TestPausedSchedulerBindsNoPods(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.fault(func() { f.paused["scheduler"] = true })
		f.create(newDeployment("web", 2))
		time.Sleep(time.Minute)
		pods := f.pods("web")
		f.Expect(pods).To(HaveLen(2))
		f.Expect(pods[0].Spec.NodeName).To(BeEmpty())
		f.fault(func() { f.paused["scheduler"] = false })
		f.isAvailable("web", 2)
	})
}

func TestStatefulSetReplacesPodsInOrder(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.create(&appsv1.StatefulSet{ObjectMeta: objectMeta("db"), Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labelsOf("db")}, Template: templateOfApp("db"),
		}})
		readyReplicas := func(count int32) {
			f.eventually(func(g Gomega) {
				set := &appsv1.StatefulSet{ObjectMeta: objectMeta("db")}
				f.get(g, f.workload, set)
				g.Expect(set.Status.ReadyReplicas).To(Equal(count))
				g.Expect(set.Status.UpdatedReplicas).To(Equal(count))
				g.Expect(set.Status.ObservedGeneration).To(Equal(set.Generation))
			})
		}
		readyReplicas(3)
		f.Expect(f.takeEvents()).To(Equal([]string{"created db-0", "created db-1", "created db-2"}))
		f.Expect(f.workload.Delete(f.ctx, &corev1.Pod{ObjectMeta: objectMeta("db-1")})).To(Succeed())
		time.Sleep(10 * time.Second)
		readyReplicas(3)
		f.Expect(f.takeEvents()).To(Equal([]string{"deleted db-1", "removed db-1", "created db-1"}))
		set := &appsv1.StatefulSet{ObjectMeta: objectMeta("db")}
		f.get(f, f.workload, set)
		set.Spec.Template.Spec.Containers[0].Image = "v2"
		f.Expect(f.workload.Update(f.ctx, set)).To(Succeed())
		readyReplicas(3)
		f.Expect(f.takeEvents()).To(Equal([]string{
			"deleted db-2", "removed db-2", "created db-2", "deleted db-1", "removed db-1", "created db-1", "deleted db-0", "removed db-0", "created db-0",
		}))
		f.get(f, f.workload, set)
		set.Spec.Replicas = ptr.To[int32](1)
		f.Expect(f.workload.Update(f.ctx, set)).To(Succeed())
		readyReplicas(1)
		f.Expect(f.takeEvents()).To(Equal([]string{"deleted db-2", "removed db-2", "deleted db-1", "removed db-1"}))
	})
}

func TestDaemonSetAndJobReplaceDeletedPods(t *testing.T) {
	simulate(t, func(f *fixture) {
		set := &appsv1.DaemonSet{ObjectMeta: objectMeta("agent"), Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labelsOf("agent")}, Template: templateOfApp("agent"),
		}}
		job := &batchv1.Job{ObjectMeta: objectMeta("job"), Spec: batchv1.JobSpec{
			Completions: ptr.To[int32](3), Parallelism: ptr.To[int32](2), Template: templateOfApp("job"),
		}}
		job.Spec.Template.Annotations = map[string]string{controlplane.PodCompleteAfterAnnotation: "15s"}
		f.create(set, job)
		runs := func() {
			f.eventually(func(g Gomega) {
				f.get(g, f.workload, set)
				g.Expect(set.Status.NumberReady).To(Equal(int32(3)))
				g.Expect(set.Status.DesiredNumberScheduled).To(Equal(int32(3)))
			})
		}
		runs()
		f.eventually(func(g Gomega) { g.Expect(f.pods("job")).To(HaveLen(2)) })
		pod := f.pods("agent")[0]
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
		f.get(f, f.workload, node)
		node.Spec.Unschedulable = true
		f.Expect(f.workload.Update(f.ctx, node)).To(Succeed())
		f.Expect(f.workload.Delete(f.ctx, &pod)).To(Succeed())
		f.Expect(f.workload.Delete(f.ctx, &f.pods("job")[0])).To(Succeed())
		time.Sleep(10 * time.Second)
		runs()
		f.eventually(func(g Gomega) {
			f.get(g, f.workload, job)
			g.Expect(job.Status.Succeeded).To(Equal(int32(3)))
			g.Expect(job.Status.CompletionTime).NotTo(BeNil())
		})
	})
}

func TestUnreachableAndDeletedNodes(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.create(newDeployment("web", 3))
		f.isAvailable("web", 3)
		f.Expect(f.workload.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{})).To(Succeed())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.pods("web")[0].Spec.NodeName}}
		label := func(value string) {
			f.get(f, f.workload, node)
			node.Labels[controlplane.KubeletLabel] = value
			f.Expect(f.workload.Update(f.ctx, node)).To(Succeed())
		}
		label("stopped")
		f.eventually(func(g Gomega) {
			f.get(g, f.workload, node)
			g.Expect(node.Spec.Taints).To(HaveLen(2))
			d := newDeployment("web", 0)
			f.get(g, f.workload, d)
			g.Expect(d.Status.ReadyReplicas).To(Equal(int32(2)))
		})
		label(controlplane.KubeletLabelValue)
		f.eventually(func(g Gomega) {
			f.get(g, f.workload, node)
			g.Expect(node.Spec.Taints).To(BeEmpty())
		})
		f.isAvailable("web", 3)
		f.Expect(f.workload.Delete(f.ctx, node)).To(Succeed())
		f.eventually(func(g Gomega) {
			for _, pod := range f.pods("web") {
				g.Expect(pod.Spec.NodeName).NotTo(Equal(node.Name))
			}
		})
		f.isAvailable("web", 3)
		nodes := &corev1.NodeList{}
		f.Expect(f.workload.List(f.ctx, nodes)).To(Succeed())
		for i := range nodes.Items {
			f.Expect(f.workload.Delete(f.ctx, &nodes.Items[i])).To(Succeed())
		}
		f.eventually(func(g Gomega) {
			for _, pod := range f.pods("web") {
				condition := podCondition(&pod, corev1.PodScheduled)
				g.Expect(condition).NotTo(BeNil())
				g.Expect(condition.Reason).To(Equal(corev1.PodReasonUnschedulable))
			}
		})
	})
}

func TestVolumeStaysAttachedWhileHeld(t *testing.T) {
	simulate(t, func(f *fixture) {
		volume, claim := storage.Volume("default", "data")
		d := newDeployment("web", 1)
		storage.Mount(&d.Spec.Template.Spec, "data")
		f.create(volume, claim, d)
		f.isAvailable("web", 1)
		first := f.pods("web")[0]
		nodes := func(g Gomega) (names []string) {
			all := &storagev1.VolumeAttachmentList{}
			g.Expect(f.workload.List(f.ctx, all)).To(Succeed())
			for _, attachment := range all.Items {
				g.Expect(attachment.Status.Attached).To(BeTrue())
				names = append(names, attachment.Spec.NodeName)
			}
			return names
		}
		f.eventually(func(g Gomega) { g.Expect(nodes(g)).To(ConsistOf(first.Spec.NodeName)) })
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first.Spec.NodeName}}
		f.eventually(func(g Gomega) {
			f.get(g, f.workload, node)
			g.Expect(node.Status.VolumesAttached).To(HaveLen(1))
		})
		f.fault(func() { f.held = true })
		node.Spec.Unschedulable = true
		f.Expect(f.workload.Update(f.ctx, node)).To(Succeed())
		f.Expect(f.workload.Delete(f.ctx, &first)).To(Succeed())
		time.Sleep(20 * time.Second)
		f.Expect(nodes(f)).To(ConsistOf(first.Spec.NodeName, f.pods("web")[0].Spec.NodeName))
		f.fault(func() { f.held = false })
		f.eventually(func(g Gomega) { g.Expect(nodes(g)).To(ConsistOf(f.pods("web")[0].Spec.NodeName)) })
	})
}
