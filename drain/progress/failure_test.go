package progress_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestDescribe(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{
			"a refusal", errors.Wrap(apierrors.NewForbidden(nodes, "n", errors.New("frozen.")), "cordoning Node n"), //nolint:revive // API servers end messages so
			`cordoning Node n: nodes "n" is forbidden: frozen. Change the admission policy, webhook, quota or role that refuses the request`,
		},
		{
			"a webhook that answers with the code of a conflict", fakes.DeniedWithConflict(),
			`admission webhook "w" denied the request: no. Change the admission policy, webhook, quota or role that refuses the request`,
		},
		{
			"a conflict", apierrors.NewConflict(nodes, "n", errors.New("changed")),
			`Operation cannot be fulfilled on nodes "n": changed. Another client changes the object continuously: find it in the audit log of the API server`,
		},
		{"another error, on one line", errors.New("no\n  answer"), "no answer. The request is retried; see the log of the manager"},
		{"a long error is cut", errors.New(strings.Repeat("ä", 10000)), strings.Repeat("ä", 359) + "…. The request is retried; see the log of the manager"},
	} {
		t.Run("M39: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(progress.Describe(tc.err)).To(Equal(tc.want))
			g.Expect(text.Cut(progress.Describe(tc.err), text.MaxMessage)).To(Equal(progress.Describe(tc.err)), "what to do is never cut")
		})
	}
}
