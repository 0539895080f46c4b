package fleet

import (
	"encoding/json"
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// ReleasesHook returns whether a request removes our hook from a Machine, which may be its only annotation.
func ReleasesHook(event controlplane.Event) bool {
	return strings.Contains(string(event.RequestObject), `"`+v1alpha1.PreDrainHookAnnotation+`":null`) ||
		strings.Contains(string(event.RequestObject), `"annotations":null`)
}

// Unschedulable returns the value that a write of a Node sets spec.unschedulable to. says is false if it sets none. An update without the
// field makes the Node schedulable.
func Unschedulable(event controlplane.Event) (unschedulable, says bool) {
	var operations []struct {
		Op, Path string
		Value    any
	}
	if json.Unmarshal(event.RequestObject, &operations) == nil { // a JSON patch, as ours are
		for _, operation := range operations {
			if operation.Path == "/spec/unschedulable" && operation.Op != "test" {
				unschedulable, _ = operation.Value.(bool)
				return unschedulable, true
			}
		}
		return false, false
	}
	var node struct {
		Spec map[string]any `json:"spec"`
	}
	if json.Unmarshal(event.RequestObject, &node) != nil {
		return false, false
	}
	value, says := node.Spec["unschedulable"]
	unschedulable, _ = value.(bool)
	return unschedulable, says || event.Verb == "update"
}
