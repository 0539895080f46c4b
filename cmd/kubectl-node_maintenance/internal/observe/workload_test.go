package observe

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// visibleTo returns a workload cluster with Node n, its Pods in the Namespaces shop and bank, and NodeMaintenances that drain it: one by
// name, one by label. The user may read no Nodes, and only the Namespace shop if that is true.
func visibleTo(t *testing.T, onlyShop bool) *Workload {
	t.Helper()
	byName := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "by-name", Annotations: map[string]string{v1alpha1.NodeUIDAnnotation: "uid"}}}
	byName.Spec.Stage, byName.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("n")
	byLabel := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "by-label"}}
	byLabel.Spec.Stage = v1alpha1.StageDrain
	byLabel.Spec.NodeSelector.NodeSelectorTerms = []v1alpha1.NodeSelectorTerm{{
		MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
	}}
	byLabel.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
		{NodeRef: v1alpha1.NodeReference{Name: "n"}}, {NodeRef: v1alpha1.NodeReference{Name: "other"}},
	}
	pod := func(namespace string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.PodSpec{NodeName: "n"}}
	}
	refused := func(namespace string, object any) error {
		_, nodes := object.(*corev1.NodeList)
		_, node := object.(*corev1.Node)
		if nodes || node || onlyShop && namespace != "shop" {
			return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		}
		return nil
	}
	c := fakes.Builder().WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string {
		return []string{object.(*corev1.Pod).Spec.NodeName}
	}).WithObjects(byName, byLabel, pod("shop"), pod("bank")).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := refused(key.Namespace, object); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := refused((&client.ListOptions{}).ApplyOptions(options).Namespace, list); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	return newWorkload(&Cluster{Name: "c", HasMaintenances: true, gaps: &Gaps{}, WithWatch: c})
}

func forecastPods(t *testing.T, w *Workload) []string {
	t.Helper()
	g := NewWithT(t)
	node, err := w.Node(t.Context(), "n")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(IsUnread(node)).To(BeTrue())
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("n")
	observed, err := w.Forecast(t.Context(), m, node, time.Now())
	g.Expect(err).NotTo(HaveOccurred())
	var pods []string
	for _, pod := range forecast.Of(observed).Pods {
		pods = append(pods, pod.Namespace+"/"+pod.Name)
	}
	return pods
}

func TestInterruptedLists(t *testing.T) {
	t.Run("K71: after a list that has failed in the middle, the next Machine is predicted with all objects, each once", func(t *testing.T) {
		g := NewWithT(t)
		failing := true
		budget := func(name string) *policyv1.PodDisruptionBudget {
			return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		}
		c := fakes.Builder(budget("a"), budget("b"), &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, &v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"},
		}).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				isNext := (&client.ListOptions{}).ApplyOptions(options).Continue != ""
				if failing && isNext {
					return errors.New("timeout")
				}
				err := c.List(ctx, list, options...)
				if found, is := list.(*policyv1.PodDisruptionBudgetList); is && failing {
					found.Items = found.Items[:1] // a page
				}
				if failing {
					list.SetContinue("next")
				}
				return err
			},
		}).Build()
		w := newWorkload(&Cluster{Name: "c", HasMaintenances: true, gaps: &Gaps{}, WithWatch: c})
		pods := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
		_, err := w.budgetsOf(t.Context(), pods)
		g.Expect(err).To(MatchError(ContainSubstring("timeout")))
		_, _, err = w.Maintenances(t.Context())
		g.Expect(err).To(MatchError(ContainSubstring("timeout")))
		failing = false
		_, err = w.budgetsOf(t.Context(), pods)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.budgets["shop"]).To(HaveLen(2))
		maintenances, evacuations, err := w.Maintenances(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(maintenances).To(HaveLen(1))
		g.Expect(evacuations).To(HaveLen(1))
	})
}

func TestUnreadNodes(t *testing.T) {
	t.Run("K4: a Node that may not be read is a gap, and the rest is read", func(t *testing.T) {
		g := NewWithT(t)
		w := visibleTo(t, false)
		g.Expect(forecastPods(t, w)).To(ConsistOf("shop/web", "bank/web"))
		g.Expect(w.gaps.List()).To(ConsistOf("No right to get nodes in c", "No right to list nodes in c"))
		decision, err := w.Volumes(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(decision).To(BeNil(), "which volumes are attached is not known")
	})

	t.Run("K4: the status of NodeMaintenances says which Nodes they select if these may not be read", func(t *testing.T) {
		g := NewWithT(t)
		maintenances, _, err := visibleTo(t, false).Maintenances(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		for i := range maintenances {
			g.Expect(Selects(&maintenances[i], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})).To(BeTrue(), maintenances[i].Name)
			g.Expect(Selects(&maintenances[i], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "another"}})).To(BeFalse(), maintenances[i].Name)
		}
	})

	t.Run("K4: a user who may read one Namespace gets an explanation of its Pods", func(t *testing.T) {
		g := NewWithT(t)
		w := visibleTo(t, true).In("shop")
		g.Expect(forecastPods(t, w)).To(ConsistOf("shop/web"))
		g.Expect(w.MaintenancesUnread()).To(BeTrue())
		g.Expect(w.gaps.List()).To(ContainElements(
			"No right to get nodes in c", "No right to list nodemaintenances.maintenance.cluster.x-k8s.io in c",
			"No right to list pods of all Namespaces in c: only those of Namespace shop are considered",
		))
	})

	t.Run("K4: Pods that may not be read are not said to be none", func(t *testing.T) {
		g := NewWithT(t)
		_, err := visibleTo(t, true).Forecast(t.Context(), &v1alpha1.NodeMaintenance{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, time.Now())
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
	})
}

func TestStatefulSets(t *testing.T) {
	const parallel = "parallel"
	pod := func(set string) *corev1.Pod {
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set, Controller: ptr.To(true)}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: strings.ReplaceAll(set, "/", "-") + "-0", UID: types.UID(set), OwnerReferences: []metav1.OwnerReference{owner},
			},
			Spec: corev1.PodSpec{NodeName: "n"},
		}
	}
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Spec.Stage, m.Spec.NodeSelector, m.Spec.Evacuation.StatefulSetPods = v1alpha1.StageDrain, v1alpha1.SelectNodes("n"), v1alpha1.StatefulSetPodsOrdered
	observed := func(g *WithT, answer error) (*Workload, forecast.Observation, map[string]int) {
		var mu sync.Mutex // several are read at the same time
		reads := map[string]int{}
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: parallel}}
		set.Spec.PodManagementPolicy, set.Spec.Replicas = appsv1.ParallelPodManagement, ptr.To[int32](7)
		c := fakes.Builder(set, pod(parallel), pod("gone"), pod("no/name")).WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string {
			return []string{object.(*corev1.Pod).Spec.NodeName}
		}).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if _, is := object.(*appsv1.StatefulSet); is {
					mu.Lock()
					reads[key.Name]++
					mu.Unlock()
					if strings.Contains(key.Name, "/") {
						return errors.New("invalid resource name") // as of the client of an API server
					}
					if answer != nil {
						return answer
					}
				}
				return c.Get(ctx, key, object, options...)
			},
		}).Build()
		w := newWorkload(&Cluster{Name: "c", HasMaintenances: true, gaps: &Gaps{}, WithWatch: c})
		o, err := w.Forecast(t.Context(), m, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		return w, o, reads
	}
	t.Run("K47: reads each StatefulSet once", func(t *testing.T) {
		g := NewWithT(t)
		w, o, reads := observed(g, nil)
		g.Expect(w.gaps.List()).To(BeEmpty())
		for _, p := range forecast.Of(o).Pods {
			g.Expect(p.Evacuators).To(BeEmpty(), p.Name)
		}
		c := &Connections{Current: w.Cluster, workloads: map[types.NamespacedName]func() (*Workload, error){{}: func() (*Workload, error) { return w, nil }}}
		g.Expect(c.Replicas(t.Context(), "", "StatefulSet", types.NamespacedName{Namespace: "shop", Name: parallel})).To(BeEquivalentTo(7))
		g.Expect(reads).To(Equal(map[string]int{parallel: 1, "gone": 1}), "no StatefulSet has the name no/name, and the request for it is invalid")
	})
	t.Run("K4, K47: names the missing right to read StatefulSets, and does not say that they require no order", func(t *testing.T) {
		g := NewWithT(t)
		w, o, _ := observed(g, apierrors.NewForbidden(schema.GroupResource{}, "", nil))
		g.Expect(w.gaps.List()).To(ConsistOf("No right to get statefulsets.apps in c"))
		for _, p := range forecast.Of(o).Pods {
			g.Expect(p.SetUnread).To(Equal(p.Name != "no-name-0"), p.Name)
		}
	})
}
