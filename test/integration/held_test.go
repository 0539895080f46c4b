package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// TestHeldMachines shows what must not hold a Machine longer than its drain timeout, and that what holds it is named.
func TestHeldMachines(t *testing.T) {
	t.Parallel()
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 500 * time.Millisecond})
	all.withMachines("fast")

	t.Run("M40: a workload cluster whose API server answers slowly does not slow the drain in another workload cluster", func(t *testing.T) {
		s := all.sub(t)
		slow := s.slowCluster(300)
		s.runOn("fast", "web", 5, deployment("web", 5), budget("web", 1))
		s.waitForRoom("web", 1)
		s.deleteMachine("fast")
		s.expectGone("fast")
		s.Expect(len(slow.asked)).To(BeNumerically("<", 300), "the drain had to wait until every NodeMaintenance of the slow workload cluster was reconciled")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(5))
		s.expectInvariants()
		close(slow.released)
		s.Eventually(func(g Gomega) {
			list := &v1alpha1.NodeMaintenanceList{}
			g.Expect(s.fleet.Client.List(s.Context(), list)).To(Succeed())
			for _, m := range list.Items {
				g.Expect(m.Status.ObservedGeneration).To(Equal(m.Generation), m.Name)
			}
		}, eventually, time.Second).Should(Succeed())
	})
}

// slowCluster adds a Cluster whose API server doesn't answer writes of the status of its n NodeMaintenances. The management cluster
// is its own workload cluster.
func (s *scene) slowCluster(n int) *hangingWebhook {
	s.Helper()
	cluster := kwok.NewCluster("slow").WithExternalControlPlane()
	link, err := kwok.Direct(s.fleet.Management)
	s.Expect(err).NotTo(HaveOccurred())
	s.fleet.ConnectOver(cluster, link)
	s.create(s.fleet.Client, cluster.Objects()...)
	s.Eventually(func() error { // the bundle comes with the connection
		return s.fleet.Client.List(s.Context(), &v1alpha1.NodeMaintenanceList{})
	}, eventually, pace).Should(Succeed())
	webhook := s.hang(s.fleet.Client, "slow-", admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"nodemaintenances/status"},
		},
	})
	var group errgroup.Group
	group.SetLimit(20)
	for i := range n {
		group.Go(func() error { return s.fleet.Client.Create(s.Context(), nm(fmt.Sprintf("slow-%d", i), idle, of("none"))) })
	}
	s.Expect(group.Wait()).To(Succeed())
	s.Eventually(func() int { return len(webhook.asked) }, soon, pace).Should(BeNumerically(">=", 20))
	return webhook
}
