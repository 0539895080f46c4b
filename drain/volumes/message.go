package volumes

import (
	"fmt"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxNames is how many volumes of each kind Message names.
const maxNames = 3

// Message describes the volumes that must detach in the style of Cluster API's own wait: one line for each kind, with at most three
// names in each.
func (d Decision) Message(since time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Waiting for Node volumes to be detached (started at %s)", since.UTC().Format(time.RFC3339))
	for _, kind := range kinds {
		names := d.Waiting[kind]
		if len(names) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n* %s: %s", kind, text.List(names, maxNames))
	}
	if n := len(d.Ignored); n > 0 {
		fmt.Fprintf(&b, "\nIgnored, because only skipped Pods use them: %d", n)
	}
	return b.String()
}
