package nodeagent

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
)

func TestApplyActions(t *testing.T) {
	t.Run("S10: a manifest that cannot be released keeps no other from being held and released", func(t *testing.T) {
		g := NewWithT(t)
		agent, store := agentOf(t, &apiServer{}), manifests.Store{Dir: t.TempDir()}
		agent.Manifests = store
		for _, file := range []string{"other", "later"} {
			g.Expect(os.WriteFile(filepath.Join(store.Dir, file), []byte("manifest"), 0o600)).To(Succeed())
		}
		g.Expect(store.Hold(hold.Manifest{File: "other"})).To(Succeed())
		err := agent.applyActions(t.Context(), hold.Actions{
			Release: []hold.Record{{File: "missing", Moved: true}, {File: "other", Moved: true}},
			Finish:  []hold.Hold{{Manifest: hold.Manifest{File: "later"}}},
		}, map[string]bool{})
		g.Expect(err).To(MatchError(ContainSubstring("missing")))
		g.Expect(filepath.Join(store.Dir, "other")).To(BeARegularFile())
		g.Expect(filepath.Join(store.Dir, "later")).NotTo(BeAnExistingFile())
	})
	t.Run("S74: an invalid record keeps no other static Pod held, and the event about its manifest says that it is invalid", func(t *testing.T) {
		g, server := NewWithT(t), &apiServer{}
		agent, store := agentOf(t, server), manifests.Store{Dir: t.TempDir()}
		agent.Manifests, agent.node = store, nodeOf("u1")
		for _, file := range []string{"a", "b"} {
			g.Expect(os.WriteFile(filepath.Join(store.Dir, file), []byte("manifest"), 0o600)).To(Succeed())
			g.Expect(store.Hold(hold.Manifest{File: file})).To(Succeed())
		}
		g.Expect(os.Truncate(filepath.Join(store.Dir, ".held-by-node-maintenance", "a.record"), 0)).To(Succeed())
		_, err := agent.reconcileStaticPods(t.Context(), &staticPodEvacuations{}, map[string]bool{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(filepath.Join(store.Dir, "a")).To(BeARegularFile())
		g.Expect(filepath.Join(store.Dir, "b")).To(BeARegularFile())
		g.Expect(server.events).To(ContainElement(ContainSubstring("released manifest a; the kubelet runs its static Pod, which the invalid record")))
	})
}

func TestManifestCannotBeHeld(t *testing.T) {
	t.Run("S95: the Evacuation says that the manifest cannot be held and why, until it is held", func(t *testing.T) {
		g, server := NewWithT(t), &apiServer{}
		agent, store := agentOf(t, server), manifests.Store{Dir: t.TempDir()}
		agent.Manifests = store
		g.Expect(os.WriteFile(filepath.Join(store.Dir, "web.yaml"), []byte("manifest"), 0o600)).To(Succeed())
		obstacle := filepath.Join(store.Dir, ".held-by-node-maintenance")
		g.Expect(os.WriteFile(obstacle, nil, 0o600)).To(Succeed())
		e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "u1-web", ResourceVersion: "0"}}
		apply := func() error {
			h := hold.Hold{Manifest: hold.Manifest{File: "web.yaml"}, Evacuation: e}
			return agent.applyActions(t.Context(), hold.Actions{Hold: []hold.Hold{h}}, map[string]bool{})
		}
		for range 3 {
			g.Expect(apply()).To(MatchError(ContainSubstring("not a directory")))
		}
		g.Expect(server.evacuations).To(HaveLen(2), "the report before the first attempt, and the failure")
		g.Expect(server.evacuations[1].Message).To(MatchRegexp("^The node agent cannot hold the manifest web.yaml, .*not a directory$"))
		g.Expect(server.evacuations[1].ExpectedEvacuationFinishTime).To(BeNil())

		g.Expect(os.Remove(obstacle)).To(Succeed())
		g.Expect(apply()).To(Succeed())
		g.Expect(server.evacuations).To(HaveLen(3))
		g.Expect(server.evacuations[2].Message).To(HavePrefix("The kubelet terminates the static Pod"))
		g.Expect(server.evacuations[2].ExpectedEvacuationFinishTime).NotTo(BeNil())
	})
}

func TestManifestCannotBeMoved(t *testing.T) {
	t.Run("S97: a report on the Evacuation that was lost is repeated: that the manifest cannot be moved, and later that it is held", func(t *testing.T) {
		elsewhere, err := os.MkdirTemp("/dev/shm", "held") //nolint:usetesting // a file cannot be renamed into another file system
		if err != nil {
			t.Skip("SKIPPED: a second file system is required")
		}
		t.Cleanup(func() { _ = os.RemoveAll(elsewhere) })
		g, server := NewWithT(t), &apiServer{}
		agent, store := agentOf(t, server), manifests.Store{Dir: t.TempDir()}
		agent.Manifests, agent.node = store, nodeOf("u1")
		agent.node.Annotations = map[string]string{v1alpha1.StaticPodTargetsAnnotation: `[{"podType":"Static","podPriority":0}]`}
		write := func(file, content string) { g.Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed()) }
		const record = `{"file":"web.yaml","namespace":"default","name":"web","gracePeriod":60000000000}`
		held := filepath.Join(store.Dir, ".held-by-node-maintenance")
		write(filepath.Join(store.Dir, "web.yaml"), "metadata: {name: web}")
		write(filepath.Join(elsewhere, "web.yaml.record"), record)
		g.Expect(os.Symlink(elsewhere, held)).To(Succeed())
		e := v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "u1-web", Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: "n1"},
			Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
		}}
		e.Spec.PodRef.Name, e.Status.ActiveEvacuatorClass = "web-n1", ptr.To(v1alpha1.EvacuatorClassKubelet)
		g.Expect(hold.Hold{Evacuation: &e}.Report(time.Now())).To(BeTrue(), "the agent has reported that the Pod terminates, and its process has ended")
		reconcile := func() error {
			e.ResourceVersion = strconv.Itoa(len(server.evacuations))
			if n := len(server.evacuations); n > 0 {
				class := e.Status.ActiveEvacuatorClass
				e.Status = server.evacuations[n-1]
				e.Status.ActiveEvacuatorClass = class
			}
			_, err := agent.reconcileStaticPods(t.Context(), &staticPodEvacuations{stop: func() {}, observed: []v1alpha1.Evacuation{e}}, map[string]bool{})
			return err
		}
		for range 3 {
			g.Expect(reconcile()).To(MatchError(ContainSubstring("cross-device")))
		}
		g.Expect(server.evacuations).To(HaveLen(1))
		g.Expect(server.evacuations[0].Message).To(HavePrefix("The node agent cannot hold the manifest web.yaml, so the kubelet runs the static Pod: "))

		g.Expect(os.Remove(held)).To(Succeed())
		g.Expect(os.Mkdir(held, 0o700)).To(Succeed())
		write(filepath.Join(held, "web.yaml.record"), record)
		for range 3 {
			g.Expect(reconcile()).To(Succeed())
		}
		g.Expect(filepath.Join(held, "web.yaml")).To(BeARegularFile())
		g.Expect(server.evacuations).To(HaveLen(2))
		last := server.evacuations[1]
		g.Expect(last.Message).To(HavePrefix("The kubelet terminates the static Pod"))
		g.Expect(last.ExpectedEvacuationFinishTime.Sub(last.EvacuationProgressTimestamp.Time)).To(Equal(time.Minute))
	})
}
