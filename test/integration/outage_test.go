package integration

import (
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// outage is long enough for health probes to fail, and too short for the ClusterCache to give the connection up.
const outage = 30 * time.Second

// maxOutageErrors bounds the lines that an outage may leave in the log as errors: a few requests that were under way, and the
// watches' slow tries to come back. A hot loop leaves thousands.
const maxOutageErrors = 60

func TestWorkloadAPIServerOutage(t *testing.T) {
	t.Parallel()
	all := newScene(t, fleet.Options{PodReadyDelay: time.Second, PodDeletionDelay: time.Second})
	all.withMachines("m1", "m2")

	t.Run("M15: the drain goes on by itself after the API server was away, and the Machine says what it waits for", func(t *testing.T) {
		s := all.sub(t)
		s.runOn("m1", "web", 10, deployment("web", 10), budget("web", 2))
		s.waitForRoom("web", 2)
		s.deleteMachine("m1")
		s.Eventually(func() int { return len(s.evictions().Succeeded()) }, soon, pace).Should(BeNumerically(">=", 2))

		before := len(errorLines(s.fleet.Manager.Log()))
		s.Expect(s.workload.StopComponent(s.Context(), controlplane.APIServer)).To(Succeed())
		s.Consistently(func() map[string]string { return s.machine("m1").Annotations }, outage, time.Second).Should(HaveKey(v1alpha1.PreDrainHookAnnotation))
		s.Eventually(func() string { return s.condition("m1").Reason }, soon, pace).Should(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
		s.Expect(s.condition("m1").Message).To(MatchRegexp("last reached at 20.*Z"))
		errors := errorLines(s.fleet.Manager.Log())[before:]
		s.Expect(len(errors)).To(BeNumerically("<=", maxOutageErrors), strings.Join(errors, "\n"))

		s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer)).To(Succeed())
		s.expectGone("m1")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(10))
		s.expectInvariants()
	})
}

var errorLine = regexp.MustCompile(`(?m)^E\d{4} .*$`)

func errorLines(log string) []string { return errorLine.FindAllString(log, -1) }
