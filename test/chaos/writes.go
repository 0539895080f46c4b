package chaos

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// longestBody limits how much of a request is printed.
const longestBody = 400

// tellWrites adds what the manager wrote to what happened. Of consecutive requests that differ only in their times, it
// adds the first and their number.
func (r *run) tellWrites(history *History) {
	events := slices.Concat(history.Management.Audit, history.Workload.Audit).WithUserAgent(fleet.ManagerAgent).Writes()
	slices.SortStableFunc(events, func(a, b controlplane.Event) int { return a.Requested.Compare(b.Requested) })
	r.lock.Lock()
	defer r.lock.Unlock()
	last, repeated := "", 0
	for _, event := range events {
		told := told(event)
		if event.Requested.Before(r.started) || event.Resource == "events" {
			continue
		}
		if told == last {
			repeated++
			r.lines[len(r.lines)-1].what = fmt.Sprintf("%s (and %d times more)", told, repeated)
			continue
		}
		last, repeated = told, 0
		r.lines = append(r.lines, logLine{event.Requested, told})
	}
}

func told(event controlplane.Event) string {
	resource, name := event.Resource, event.Name
	if event.Subresource != "" {
		resource += "/" + event.Subresource
	}
	if event.Namespace != "" {
		name = event.Namespace + "/" + name
	}
	body := string(event.RequestObject)
	if conditions := toldConditions(event.RequestObject); conditions != "" {
		body = conditions
	} else if len(body) > longestBody {
		body = body[:longestBody] + "…"
	}
	return strings.TrimSpace(fmt.Sprintf("manager: %s %s %s: %d %s %s", event.Verb, resource, name, event.Code, event.Message, body))
}

// toldConditions returns the conditions that a request sets, without their times.
func toldConditions(body []byte) string {
	var object struct {
		Status struct{ Conditions []metav1.Condition }
	}
	if json.Unmarshal(body, &object) != nil {
		return ""
	}
	var all []string
	for _, c := range object.Status.Conditions {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)))
	}
	return strings.Join(all, "; ")
}
