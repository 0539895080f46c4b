package observe

import (
	"context"
	"sync"
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

	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// forbidden is how an API server refuses a request.
var forbidden = apierrors.NewForbidden(schema.GroupResource{}, "", nil)

// reads counts the requests of a client: those for objects by name, and pages by field selector.
type reads struct {
	mu    sync.Mutex
	count map[string]int
}

func (r *reads) add(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[what]++
}

// connected returns connections to a cluster with two pages of Nodes and Pods and a claim, where refuse may answer a request by an error.
func connected(refuse func(client.Object, client.ObjectList) error) (*Connections, *reads) {
	r := &reads{count: map[string]int{}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	unbound := claim.DeepCopy()
	claim.Spec.VolumeName, unbound.Name = "pv", "unbound"
	c := fakes.Builder(claim, unbound, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			r.add(key.Name)
			if err := refuse(object, nil); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			applied := (&client.ListOptions{}).ApplyOptions(options)
			list.SetContinue(map[string]string{"": "next", "next": ""}[applied.Continue])
			switch list := list.(type) {
			case *corev1.PodList:
				r.add(applied.FieldSelector.String())
				list.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
			case *corev1.NodeList:
				r.add("nodes")
				list.Items = []corev1.Node{{
					ObjectMeta: metav1.ObjectMeta{Name: "n" + applied.Continue}, Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{SizeBytes: 1}}},
				}}
			}
			return refuse(nil, list)
		},
	}).Build()
	w := newWorkload(&Cluster{Name: "c", gaps: &Gaps{}, WithWatch: c})
	return &Connections{Current: w.Cluster, workloads: map[types.NamespacedName]func() (*Workload, error){{}: func() (*Workload, error) { return w, nil }}}, r
}

func TestPlacement(t *testing.T) {
	nothing := func(client.Object, client.ObjectList) error { return nil }
	data := types.NamespacedName{Namespace: "shop", Name: "data"}
	claims := func() []types.NamespacedName {
		return []types.NamespacedName{data, {Namespace: "shop", Name: "unbound"}, {Namespace: "shop", Name: "gone"}}
	}
	for name, test := range map[string]struct {
		refuse func(client.Object, client.ObjectList) error
		nodes  bool // Nodes and Pods were read
		volume bool
		gaps   []string
	}{
		"reads the Nodes, the Pods and the volumes": {nothing, true, true, nil},
		"names the missing right to list Nodes": {func(_ client.Object, list client.ObjectList) error {
			if _, is := list.(*corev1.NodeList); is {
				return forbidden
			}
			return nil
		}, false, false, []string{"No right to list nodes in c"}},
		"names the missing right to list Pods": {func(_ client.Object, list client.ObjectList) error {
			if _, is := list.(*corev1.PodList); is {
				return forbidden
			}
			return nil
		}, false, false, []string{"No right to list pods in c"}},
		"names why Pods cannot be read, which is no error": {func(_ client.Object, list client.ObjectList) error {
			if _, is := list.(*corev1.PodList); is && list.GetContinue() == "" {
				return errors.New("timed out")
			}
			return nil
		}, false, false, []string{"pods of c cannot be read: timed out"}},
		"names the missing right to read volumes, and warns without them": {func(object client.Object, _ client.ObjectList) error {
			if _, is := object.(*corev1.PersistentVolume); is {
				return forbidden
			}
			return nil
		}, true, false, []string{"No right to get persistentvolumes in c"}},
	} {
		t.Run("K4, K59: plan "+name, func(t *testing.T) {
			g, gaps := NewWithT(t), &Gaps{}
			c, _ := connected(test.refuse)
			placement := c.Placement(t.Context(), "", nil, claims(), gaps)
			g.Expect(gaps.List()).To(Equal(test.gaps))
			g.Expect(c.Current.gaps.List()).To(BeEmpty(), "they would change the exit code")
			g.Expect(placement != nil).To(Equal(test.nodes), "what was read may be a part")
			if test.nodes {
				g.Expect(placement.Volumes[data] != nil).To(Equal(test.volume))
			}
		})
	}
	t.Run("K23: plan lists Nodes, and Pods that use one, once in pages, and reads no volume twice", func(t *testing.T) {
		g := NewWithT(t)
		c, requests := connected(nothing)
		w := c.CurrentWorkload()
		g.Expect(w.readClaim(t.Context(), data, volumes.Facts{Claims: map[types.NamespacedName]volumes.Claim{}, Volumes: map[string]volumes.Volume{}})).To(BeTrue())
		g.Expect(c.Placement(t.Context(), "", nil, claims(), &Gaps{})).NotTo(BeNil())
		g.Expect(requests.count).To(Equal(map[string]int{
			"nodes": 2, "spec.nodeName!=,status.phase!=Failed,status.phase!=Succeeded": 2, "data": 1, "pv": 1, "unbound": 1, "gone": 1,
		}))
		g.Expect(w.Nodes(t.Context())).To(HaveEach(HaveField("Status.Images", BeEmpty())), "images are most of a Node")
	})
}
