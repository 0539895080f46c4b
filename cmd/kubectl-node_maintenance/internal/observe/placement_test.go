package observe

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// listing returns connections to a cluster that answers a list in two pages, or by an error.
func listing(refuse func(client.ObjectList) error, lists map[string]int) *Connections {
	c := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			applied := (&client.ListOptions{}).ApplyOptions(options)
			if applied.Continue == "" {
				list.SetContinue("next")
			} else {
				list.SetContinue("")
			}
			if pods, is := list.(*corev1.PodList); is {
				lists[applied.FieldSelector.String()]++
				pods.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
			}
			return refuse(list)
		},
	}).Build()
	w := newWorkload(&Cluster{Name: "c", gaps: &Gaps{}, WithWatch: c})
	return &Connections{Current: w.Cluster, workloads: map[types.NamespacedName]func() (*Workload, error){{}: func() (*Workload, error) { return w, nil }}}
}

func TestPlacement(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		gaps []string
	}{
		"reads all Pods that use a Node, in pages": {nil, nil},
		"names a missing right":                    {apierrors.NewForbidden(schema.GroupResource{}, "", nil), []string{"No right to list pods in c"}},
		"names what fails, which is no error":      {errors.New("timed out"), []string{"pods of c cannot be read: timed out"}},
	} {
		t.Run("K4, K58: plan "+name, func(t *testing.T) {
			g, lists, gaps := NewWithT(t), map[string]int{}, &Gaps{}
			c := listing(func(client.ObjectList) error { return test.err }, lists)
			placement := c.Placement(t.Context(), "", gaps)
			g.Expect(gaps.List()).To(Equal(test.gaps))
			g.Expect(c.Current.gaps.List()).To(BeEmpty(), "they would change the exit code")
			if test.err == nil {
				g.Expect(placement).NotTo(BeNil())
				g.Expect(lists).To(Equal(map[string]int{"spec.nodeName!=,status.phase!=Failed,status.phase!=Succeeded": 2}))
			} else {
				g.Expect(placement).To(BeNil(), "what was read of the Pods may be a part")
			}
		})
	}
}
