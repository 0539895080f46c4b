package volumes

import (
	"fmt"
	"strings"
	"time"
)

// maxNames is how many volumes of a kind are named.
const maxNames = 3

// Message tells people, in the manner of Cluster API's own wait, which volumes are waited for. It is bounded: a line for
// each kind, with three names each.
func (d Decision) Message(since time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Waiting for Node volumes to be detached (started at %s)", since.UTC().Format(time.RFC3339))
	for _, kind := range kinds {
		names := d.Waiting[kind]
		if len(names) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n* %s: %s", kind, strings.Join(names[:min(len(names), maxNames)], ", "))
		if more := len(names) - maxNames; more > 0 {
			fmt.Fprintf(&b, ", ... (%d more)", more)
		}
	}
	if n := len(d.Ignored); n > 0 {
		fmt.Fprintf(&b, "\nNot waited for, since only Pods that stay use them: %d", n)
	}
	return b.String()
}
