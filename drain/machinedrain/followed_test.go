package machinedrain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestFollowed(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type seen struct {
		after    time.Duration
		policy   string // that selects the Machine, empty if none does
		settles  time.Duration
		isFormer bool // another policy than that which the Machine follows selects it
	}
	for name, tc := range map[string]struct {
		recorded string
		seen     []seen
	}{
		"M156: a Machine follows the first policy that selects it at once": {seen: []seen{{policy: "a"}, {after: time.Second, policy: "a"}}},
		"M156: it follows another one after three seconds": {seen: []seen{
			{policy: "a"}, {after: time.Minute, policy: "b", settles: time.Minute + 3*time.Second, isFormer: true},
			{after: time.Minute + 2*time.Second, policy: "b", settles: time.Minute + 3*time.Second, isFormer: true},
			{after: time.Minute + 3*time.Second, policy: "b", isFormer: true},
		}},
		"M156: the time begins again when its own policy is restored, and with each other one": {seen: []seen{
			{policy: "a"}, {after: time.Minute, policy: "b", settles: time.Minute + 3*time.Second, isFormer: true},
			{after: time.Minute + time.Second, policy: "a"},
			{after: time.Minute + 2*time.Second, policy: "b", settles: time.Minute + 5*time.Second, isFormer: true},
			{after: time.Minute + 4*time.Second, policy: "c", settles: time.Minute + 7*time.Second, isFormer: true},
		}},
		"M156: no policy in between changes nothing": {seen: []seen{
			{policy: "a"}, {after: time.Minute}, {after: time.Hour, policy: "b", settles: time.Hour + 3*time.Second, isFormer: true},
			{after: 2 * time.Hour, policy: "a"},
		}},
		"M156, M126: after a restart, it follows the policy whose limit it has recorded": {recorded: "1,a/m", seen: []seen{
			{policy: "b", settles: 3 * time.Second, isFormer: true}, {after: time.Second, policy: "a"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g, m, followed := NewWithT(t), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{UID: "m", Annotations: map[string]string{}}}, machinedrain.Followed{}
			if tc.recorded != "" {
				m.Annotations[v1alpha1.TurnLimitAnnotation] = tc.recorded
			}
			for _, seen := range tc.seen {
				var policy *v1alpha1.MachineDrainPolicy
				if seen.policy != "" {
					policy = &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: seen.policy}}
				}
				var until, want time.Time
				followed, until = followed.Next(m, policy, start.Add(seen.after))
				if seen.settles > 0 {
					want = start.Add(seen.settles)
				}
				g.Expect(until).To(Equal(want), "after %s", seen.after)
				g.Expect(followed.Other().IsZero()).To(Equal(!seen.isFormer), "after %s", seen.after)
			}
			settled, until := followed.Settled().Next(m, &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: tc.seen[len(tc.seen)-1].policy}}, start)
			g.Expect(until).To(BeZero())
			g.Expect(settled.Other()).To(BeZero())
		})
	}
}
