package outcome_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

func TestTurn(t *testing.T) {
	const timeout = time.Minute
	read := func(after time.Duration, pods v1alpha1.EvictedPods) *v1alpha1.DrainOutcome {
		of := &v1alpha1.DrainOutcome{EndTime: metav1.NewTime(end), ReadTime: ptr.To(metav1.NewTime(end.Add(after))), Pods: pods}
		if pods.Ready < pods.Evicted {
			of.Applications = []v1alpha1.EvictedApplication{{Controller: "Deployment shop/web", Pods: pods}}
		}
		return of
	}
	pending := v1alpha1.EvictedPods{Evicted: 1, Pending: 1}
	unread := read(0, pending)
	unread.ReadTime = nil
	for _, test := range []struct {
		name    string
		outcome *v1alpha1.DrainOutcome
		timeout time.Duration
		at      time.Duration // after the end
		due     bool
	}{
		{"M155: an outcome for which the next drain waits is read at once", unread, timeout, time.Second, true},
		{"M155: and every ten seconds", read(20*time.Second, pending), timeout, 30 * time.Second, true},
		{"M155: not before", read(20*time.Second, pending), timeout, 29 * time.Second, false},
		{"M155: less often the longer that lasts", read(30*time.Minute, pending), time.Hour, 34*time.Minute + 59*time.Second, false},
		{"M155: but at least every ten minutes", read(30*time.Minute, pending), time.Hour, 35 * time.Minute, true},
		{"M155: until it is complete", read(20*time.Second, v1alpha1.EvictedPods{Evicted: 1, Ready: 1}), timeout, 40 * time.Second, false},
		{"M155: until no drain waits for it", read(20*time.Second, pending), timeout, timeout, false},
		{"M155: not if none does", read(20*time.Second, pending), 0, 40 * time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, now := NewWithT(t), end.Add(test.at)
			g.Expect(outcome.DueForTurn(test.outcome, test.timeout, now)).To(Equal(test.due))
			next := outcome.NextForTurn(test.outcome, test.timeout, now)
			switch isAwaited := outcome.IsAwaited(test.outcome, test.timeout, now); {
			case test.due:
				g.Expect(next).To(BeTemporally(">", now), "also if it could not be read")
			case isAwaited:
				g.Expect(outcome.DueForTurn(test.outcome, test.timeout, next)).To(BeTrue(), "at %s", next)
			default:
				g.Expect(next).To(BeZero())
			}
		})
	}
}
