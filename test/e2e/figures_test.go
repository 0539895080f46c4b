package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// `make bench SCENARIO=kind` runs it. It compares figures of one run, and asserts only that both drains have evicted every Pod.
var _ = Describe("Figures", Ordered, Label("figures"), func() {
	It("compares a drain by Cluster API alone with one by this provider", func(ctx context.Context) {
		w := newWorkloadCluster(ctx, "figures", 1, 2)
		w.apply(ctx, loaded)
		capi := w.measure(ctx)
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.waitHooks(ctx)
		ours := w.measure(ctx)
		Expect(capi.evicted).To(Equal(replicas))
		Expect(ours.evicted).To(Equal(replicas))

		table := fmt.Sprintf(`| %d Pods, maxUnavailable: 2 | Cluster API alone | this provider |
|---|---|---|
| from the deletion of the Machine until the last Pod was removed | %s | %s |
| evictions | %d | %d |
| refused evictions | %d | %d |
| failed requests of a client of the Service | %d of %d | %d of %d |
`, replicas, capi.took, ours.took, capi.evicted, ours.evicted, capi.refused, ours.refused, len(capi.client.failures), capi.client.requests(),
			len(ours.client.failures), ours.client.requests())
		usage := managerUsage(ctx)
		table += fmt.Sprintf("\nThe Pod of the manager, as its kubelet measures it: %d MiB working set, %s of CPU since its start.\n",
			usage.Memory.WorkingSetBytes>>20, time.Duration(usage.CPU.UsageCoreNanoSeconds).Round(10*time.Millisecond))
		dir := filepath.Join(root, "out", "bench")
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(dir, "kind.md"), []byte(table), 0o600)).To(Succeed())
		AddReportEntry("figures", table)
		w.delete(ctx)
	})
})

const replicas = 12

// loaded is an application whose Pods need some seconds until they are ready, with a Service and a budget.
var loaded = fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: single}
spec:
  replicas: %d
  selector: {matchLabels: {app: single}}
  template:
    metadata: {labels: {app: single}}
    spec:
      containers:
      - name: app
        image: capnm.dev/app:e2e
        imagePullPolicy: Never
        args: [-serve=:8080, -grace=8s]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1, initialDelaySeconds: 3}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: single}
spec: {maxUnavailable: 2, selector: {matchLabels: {app: single}}}
---
apiVersion: v1
kind: Service
metadata: {name: single}
spec:
  type: NodePort
  selector: {app: single}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
`, replicas)

// figures are those of a drain.
type figures struct {
	took             time.Duration
	evicted, refused int
	client           *requests
}

// measure deletes the Machine of a Node that has all Pods of the application, while another worker can run them.
func (w *workloadCluster) measure(ctx context.Context) figures {
	GinkgoHelper()
	w.waitAvailable(ctx, 1, 2)
	workers := w.workers(ctx, Default)
	w.cordon(ctx, &workers[1], true)
	Expect(w.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("default"), client.MatchingLabels{"app": "single"})).To(Succeed())
	node := workers[0].Status.NodeRef.Name
	var pods []corev1.Pod
	Eventually(func(g Gomega) {
		pods = w.podsOn(ctx, g, node)
		g.Expect(pods).To(And(HaveLen(replicas), HaveEach(HaveField("DeletionTimestamp", BeNil()))))
	}, eventually, pace).Should(Succeed())
	w.waitReady(ctx)
	w.cordon(ctx, &workers[1], false)

	f, begin, start := figures{client: w.pollSingle(ctx)}, len(w.events()), time.Now()
	Expect(management.client.Delete(ctx, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: workers[0].Name}})).To(Succeed())
	expectGone(ctx, management.client, &workers[0])
	w.waitReady(ctx)
	f.client.stop("the Service")
	events := w.events()[begin:]
	for _, pod := range pods {
		f.took = max(f.took, ended(events, pod).Sub(start).Round(100*time.Millisecond))
	}
	evictions := events.Verb("create").Resource("pods", "eviction").InNamespace("default")
	f.evicted = len(evictions.Where(func(e controlplane.Event) bool { return e.Code == http.StatusCreated }))
	f.refused = len(evictions) - f.evicted
	return f
}

// usage is part of the kubelet's summary of a Pod.
type usage struct {
	PodRef struct{ Namespace, Name string }
	CPU    struct{ UsageCoreNanoSeconds int64 }
	Memory struct{ WorkingSetBytes int64 }
}

// managerUsage returns what the Pod of our manager uses.
func managerUsage(ctx context.Context) usage {
	GinkgoHelper()
	pod := ourPod(ctx, Default)
	var summary struct{ Pods []usage }
	content := run(ctx, tool("kubectl"), "--kubeconfig="+management.kubeconfig, "get", "--raw", "/api/v1/nodes/"+pod.Spec.NodeName+"/proxy/stats/summary")
	Expect(json.NewDecoder(strings.NewReader(content)).Decode(&summary)).To(Succeed())
	for _, u := range summary.Pods {
		if u.PodRef.Namespace == pod.Namespace && u.PodRef.Name == pod.Name {
			return u
		}
	}
	Fail("the kubelet does not report the Pod " + pod.Name)
	return usage{}
}
