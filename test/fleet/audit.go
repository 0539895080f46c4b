package fleet

import (
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// ReleasesHook returns whether a request removes our hook from a Machine.
func ReleasesHook(event controlplane.Event) bool {
	return strings.Contains(string(event.RequestObject), `"`+v1alpha1.PreDrainHookAnnotation+`":null`)
}
