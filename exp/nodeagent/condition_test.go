package nodeagent

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

func TestConditionIsWrittenAgain(t *testing.T) {
	for name, tc := range map[string]struct{ proxy, events int }{
		"S94: the agent writes a condition that the API server refuses less and less often":                                 {proxy: http.StatusServiceUnavailable},
		"S94: the agent writes a condition that the watch does not deliver less and less often, and creates a single event": {events: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, server := NewWithT(t), &apiServer{proxy: tc.proxy}
				agent := agentOf(t, server)
				agent.node, agent.observed.Runtime.Known = nodeOf("u1"), true
				agent.Keeper.DelayFor(time.Minute, "") // nothing answers
				go agent.reportCondition(t.Context())
				time.Sleep(13 * time.Second)
				synctest.Wait()
				g.Expect(server.conditions).To(Equal(1))
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				g.Expect(server.conditions).To(BeNumerically("~", 15, 4), "one a minute at last")
				g.Expect(server.events).To(HaveLen(tc.events))
			})
		})
	}
	t.Run("S94: the agent writes another condition at once, and one that was removed after a long time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, server := NewWithT(t), &apiServer{}
			agent, writes, wanted := agentOf(t, server), conditionWrites{}, corev1.NodeCondition{Reason: "One"}
			agent.node = nodeOf("u1")
			for range 5 {
				agent.setCondition(t.Context(), agent.node, wanted, &writes)
			}
			g.Expect(server.conditions).To(Equal(1))
			wanted.Reason = "Two"
			for range 5 {
				agent.setCondition(t.Context(), agent.node, wanted, &writes)
			}
			g.Expect(server.conditions).To(Equal(2))
			time.Sleep(time.Hour)
			agent.setCondition(t.Context(), agent.node, wanted, &writes)
			g.Expect(server.conditions).To(Equal(3))
			g.Expect(server.events).To(HaveLen(3), "the condition was removed")
		})
	})
}
