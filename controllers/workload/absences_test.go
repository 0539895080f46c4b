package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// answersLikeAPIServer answers reads of DaemonSets as kube-apiserver does where none exists: 404 for a name, and 406 for the list, since a
// client that reads one object does not accept the metadata of a list (asPartialObjectMetadata in
// k8s.io/apiserver/pkg/endpoints/handlers/response.go).
func answersLikeAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	daemonSets := schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := apierrors.NewNotFound(daemonSets, "gone").Status()
		if r.URL.Path == "/apis/apps/v1/namespaces/tenant/daemonsets" {
			answer = apierrors.NewGenericServerResponse(http.StatusNotAcceptable, http.MethodGet, daemonSets, "", "the requested object is a list", 0, false).Status()
		}
		answer.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(answer.Code))
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func TestDaemonSetThatCannotExist(t *testing.T) {
	for name, owner := range map[string]string{
		"E66: the DaemonSet does not exist":                                "gone",
		"E76: no DaemonSet can have the name that the owner reference has": ".",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ref := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: owner, UID: "any", Controller: ptr.To(true)}
			g.Expect(apivalidation.ValidateOwnerReferences([]metav1.OwnerReference{ref}, field.NewPath("metadata"))).To(BeEmpty(), "the API server accepts the Pod")
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "p", OwnerReferences: []metav1.OwnerReference{ref}}}

			from, err := metadata.NewForConfig(answersLikeAPIServer(t))
			g.Expect(err).NotTo(HaveOccurred())
			w := &drainWatch{daemonSets: cache.NewSharedIndexInformer(cachetesting.NewFakeControllerSource(), &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			w.absences = newAbsences(ctx, daemonSetReader(from), func() {})
			go w.daemonSets.RunWithContext(ctx)
			g.Eventually(w.daemonSets.HasSynced).WithTimeout(time.Minute).Should(BeTrue())
			g.Eventually(func(g Gomega) { // the Pod is decided about: evicted, and deleted before the drain timeout if onTimeout is Delete
				podType, known := rules.PodTypeOf(pod, w.DaemonSetExists)
				g.Expect(known).To(BeTrue())
				g.Expect(podType).To(Equal(v1alpha1.PodTypeDefault))
			}).WithTimeout(time.Minute).Should(Succeed())
		})
	}
}

func TestDaemonSetThatIsAskedForWithoutAnAnswer(t *testing.T) {
	t.Run("E66: requests for DaemonSets that get no answer end, so that others are asked for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			a := newAbsences(t.Context(), func(ctx context.Context, daemonSet types.NamespacedName) (types.UID, error) {
				if daemonSet.Name == "gone" {
					return "", nil
				}
				<-ctx.Done()
				return "", ctx.Err()
			}, func() {})
			has := func(name string) bool {
				return a.has(types.NamespacedName{Namespace: "tenant", Name: name}, types.UID(name))
			}
			for i := range maxAsked {
				g.Expect(has(fmt.Sprint("hangs-", i))).To(BeFalse())
			}
			for range 60 {
				time.Sleep(time.Second)
				if has("gone") {
					return
				}
			}
			t.Error("the Pods of a DaemonSet that no longer exists are not decided about: the drain waits for as long as the requests hang")
		})
	})
}
