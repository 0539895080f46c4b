package observe

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// budgetsOf returns the PodDisruptionBudgets of the Namespaces of Pods, nil if they may not be read.
func (w *Workload) budgetsOf(ctx context.Context, pods []corev1.Pod) (*budgets.Index, error) {
	names := sets.New[string]()
	for i := range pods {
		names.Insert(pods[i].Namespace)
	}
	missing := sets.List(names.Difference(sets.KeySet(w.budgets)))
	if len(missing) > manyNamespaces {
		clear(w.budgets)
		missing = []string{metav1.NamespaceAll}
	}
	complete := true
	if err := each(ctx, missing, func(ctx context.Context, namespace string) error {
		found, ok, err := w.listBudgets(ctx, namespace)
		w.mu.Lock()
		defer w.mu.Unlock()
		complete = complete && ok
		for _, pdb := range found {
			w.budgets[pdb.Namespace] = append(w.budgets[pdb.Namespace], pdb)
		}
		return err
	}); err != nil || !complete {
		return nil, err
	}
	var all []*policyv1.PodDisruptionBudget
	for name := range names {
		all = append(all, w.budgets[name]...)
		if w.budgets[name] == nil {
			w.budgets[name] = []*policyv1.PodDisruptionBudget{} // known to have none
		}
	}
	return budgets.NewIndex(all, nil), nil
}

func (w *Workload) listBudgets(ctx context.Context, namespace string) (found []*policyv1.PodDisruptionBudget, read bool, err error) {
	list := &policyv1.PodDisruptionBudgetList{}
	read, err = w.tolerate(w.listAll(ctx, list, func() {
		for i := range list.Items {
			found = append(found, list.Items[i].DeepCopy())
		}
	}, client.InNamespace(namespace)), "list", "poddisruptionbudgets.policy")
	if !read {
		found = nil // a page of them would count as all
	}
	return found, read, errors.Wrapf(err, "listing the PodDisruptionBudgets of %s", w.Name)
}
