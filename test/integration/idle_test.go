package integration

import (
	"net/url"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// idleActs are the scenes of TestMainJob that check what the manager reads from a workload cluster without a NodeMaintenance.
var idleActs = []act{
	{"M63: watches NodeMaintenances and Evacuations only, and lists no Nodes but cordoned ones", (*scene).idleIsHardlyWatched},
	{"M63: watches Nodes while there is a NodeMaintenance, from its creation on", (*scene).nodesAreWatchedOnDemand},
	{"S70: the NodeMaintenance of a shutdown ends when its Node is gone, and drains no later Node of its name", (*scene).shutdownEndsWithNode},
}

func (s *scene) watching(watched string) func() float64 {
	return func() float64 {
		return s.metrics().Sum("capnm_watching_clusters", map[string]string{"watched": watched})
	}
}

func (s *scene) idleIsHardlyWatched() {
	s.fleet.KillManager()
	s = s.sub(s.T)
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	ours := func() controlplane.Events { return s.audited().WithUserAgent(fleet.ManagerAgent) }
	s.Eventually(func() controlplane.Events { return ours().Verb("list").Resource("nodes") }, soon, pace).ShouldNot(BeEmpty())
	watched := func() []string {
		watched := sets.New[string]()
		for _, event := range ours().Verb("watch") {
			watched.Insert(event.Resource)
		}
		return sets.List(watched)
	}
	s.Eventually(watched, soon, pace).Should(HaveLen(2))
	s.Consistently(watched, aMoment, pace).Should(Equal([]string{"evacuations", "nodemaintenances"}))
	for _, list := range ours().Verb("list").Resource("nodes") {
		uri, err := url.Parse(list.URI)
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(uri.Query().Get("fieldSelector")).To(Equal("spec.unschedulable=true"), list.URI)
	}
}

func (s *scene) nodesAreWatchedOnDemand() {
	s.maintain(nm("any", idle, ofNodes("m1")))
	s.Eventually(s.watching("nodes"), soon, pace).Should(BeEquivalentTo(1))
	s.Expect(s.watching("surges")()).To(BeZero())
	s.deleteMaintenances("any")
	s.Eventually(s.watching("nodes"), eventually, pace).Should(BeZero())

	s.withNodes("other")
	s.maintain(nm("again", cordoned, ofNodes("other")))
	s.expectCordoned("other")
	s.Eventually(s.watching("nodes"), soon, pace).Should(BeEquivalentTo(1))
	s.setUnschedulable("other", false)
	s.expectCordoned("other")
	s.deleteMaintenances("again")
}

// shutdownEndsWithNode shuts a Node down as the node agent does, deletes the Node as Cluster API does with the Machine, and registers
// another one of its name, as the replacement of a Machine on the same host.
func (s *scene) shutdownEndsWithNode() {
	s.withNodes("reused")
	m := shutdown.Maintenance(s.node("reused"), shutdown.Defaults())
	s.maintain(m)
	s.expectCordoned("reused")
	s.Expect(s.workload.Client.Delete(s.Context(), s.node("reused"))).To(Succeed())
	s.Eventually(func() error {
		return s.workload.Client.Get(s.Context(), keyOf(m.Name), &v1alpha1.NodeMaintenance{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.withNodes("reused")
	s.Consistently(func() bool { return s.node("reused").Spec.Unschedulable }, aMoment, pace).Should(BeFalse())
	s.Eventually(s.watching("nodes"), eventually, pace).Should(BeZero())

	late := shutdown.Maintenance(s.node("reused"), shutdown.Defaults())
	late.Annotations[v1alpha1.NodeUIDAnnotation] = "11111111-2222-3333-4444-555555555555" // of the Node before
	s.create(s.workload.Client, late)
	s.Eventually(func() error {
		return s.workload.Client.Get(s.Context(), keyOf(m.Name), &v1alpha1.NodeMaintenance{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.Expect(s.node("reused").Spec.Unschedulable).To(BeFalse())
}
