package fleet

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

func TestReleasesHook(t *testing.T) {
	for body, want := range map[string]bool{
		`{"metadata":{"annotations":{"` + v1alpha1.PreDrainHookAnnotation + `":null},"resourceVersion":"1"}}`: true,
		`{"metadata":{"annotations":null,"resourceVersion":"1"}}`:                                             true, // the hook was the only annotation
		`{"metadata":{"annotations":{"` + v1alpha1.PreDrainHookAnnotation + `":"us"},"resourceVersion":"1"}}`: false,
		`{"metadata":{"annotations":{"` + v1alpha1.DrainStartedAnnotation + `":null},"resourceVersion":"1"}}`: false,
	} {
		if got := ReleasesHook(controlplane.Event{RequestObject: []byte(body)}); got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
}
