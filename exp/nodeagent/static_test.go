package nodeagent

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
			Finish:  []hold.Record{{File: "later"}},
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
