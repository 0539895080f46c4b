package lookup_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

func TestCanExist(t *testing.T) {
	for name, tc := range map[string]struct {
		object string
		want   bool
	}{
		"E76: a name":                           {"web-0.shop", true},
		"E76: the longest name":                 {strings.Repeat("a", 253), true},
		"E76: a name that is too long for one":  {strings.Repeat("a", 254), false},
		"E76: the path of the list":             {".", false},
		"E76: the path of the Namespace":        {"..", false},
		"E76: the path of a subresource":        {"web/status", false},
		"E76: the path of an object of a kind":  {"../pods/web", false},
		"E76: a name that a URL would encode":   {"web%2f0", false},
		"E76: a name that the API server reads": {"Web_0", true}, // it answers that no such object exists
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(lookup.CanExist(tc.object)).To(Equal(tc.want))
		})
	}
}
