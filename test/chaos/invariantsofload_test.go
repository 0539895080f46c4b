package chaos

import (
	"testing"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestInvariantsOfLoad has histories in which the manager does the same again and again, and similar ones in which it does not.
func TestInvariantsOfLoad(t *testing.T) {
	reconcile := func(s *story, counts ...float64) {
		for _, count := range counts {
			s.Reconciliations = append(s.Reconciliations, Reconciliations{s.later(busyPeriod).now, map[string]float64{"machine": 7, "nodemaintenance": count}})
		}
	}
	request := func(s *story, requests int, verb string, names ...string) {
		s.now = s.now.Truncate(time.Minute)
		for i := range requests {
			name := names[i%len(names)]
			s.Workload.Audit = append(s.Workload.Audit, controlplane.Event{
				UserAgent: fleet.ManagerAgent, Verb: verb, Resource: "nodes", Name: name, URI: "/api/v1/nodes/" + name, Requested: s.now, Answered: s.now,
			})
		}
	}
	expectViolations(t, []happening{
		{"R65: a controller reconciles without pause", func(s *story) { reconcile(s, 5000, 5001, 5002+busiest) }, reconciledForReasons},
		{"R65: a controller has reconciled often for long", func(s *story) { reconcile(s, 5000, 5001, 5001+busiest) }, nil},
		{"R65: a request is repeated without pause", func(s *story) { request(s, mostRepeated+1, "patch", "n1") }, requestedForReasons},
		{"R65: many similar requests", func(s *story) { request(s, mostRepeated+1, "patch", "n1", "n2") }, nil},
		{"R65: many watches", func(s *story) { request(s, mostRepeated+1, "watch", "n1") }, nil},
	})
}
