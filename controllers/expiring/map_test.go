package expiring

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

var clusterA, clusterB = types.NamespacedName{Namespace: "fleet", Name: "a"}, types.NamespacedName{Namespace: "fleet", Name: "b"}

func TestMap(t *testing.T) {
	t.Run("M101: removes expired values that are not looked up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, m := NewWithT(t), NewMap[int, string](t.Context())
			for i := range 1000 {
				m.Set(clusterA, i, "value", time.Minute)
			}
			m.Set(clusterB, 1, "lasts", time.Hour)
			g.Expect(m.Len()).To(Equal(1001))
			time.Sleep(time.Minute + sweepInterval)
			g.Expect(m.Len()).To(Equal(1))
			g.Expect(m.clusters).To(HaveLen(1))
			_, found := m.Get(clusterB, 1)
			g.Expect(found).To(BeTrue())
		})
	})

	t.Run("does not return a value that has expired and is not removed yet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, m := NewWithT(t), NewMap[int, string](t.Context())
			m.Set(clusterA, 1, "value", time.Second)
			value, found := m.Get(clusterA, 1)
			g.Expect(found).To(BeTrue())
			g.Expect(value).To(Equal("value"))
			time.Sleep(time.Second)
			_, found = m.Get(clusterA, 1)
			g.Expect(found).To(BeFalse())
			m.Update(clusterA, 1, func(_ string, found bool) (string, time.Duration) {
				g.Expect(found).To(BeFalse())
				return "next", time.Second
			})
			value, _ = m.Get(clusterA, 1)
			g.Expect(value).To(Equal("next"))
		})
	})

	t.Run("M101: limits the values of a workload cluster, without those of others", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, m := NewWithT(t), NewMap[int, string](t.Context())
			m.Set(clusterB, 1, "of another workload cluster", time.Second)
			m.Set(clusterA, -1, "expires last", time.Hour)
			m.Set(clusterA, -2, "expires first", time.Second)
			for i := range Limit {
				m.Set(clusterA, i, "value", time.Minute)
			}
			g.Expect(m.Len()).To(BeNumerically("<=", Limit+1))
			for key, kept := range map[int]bool{-1: true, -2: false, Limit - 1: true} {
				_, found := m.Get(clusterA, key)
				g.Expect(found).To(Equal(kept), "%d", key)
			}
			_, found := m.Get(clusterB, 1)
			g.Expect(found).To(BeTrue())
		})
	})

	t.Run("removes a value whose time is zero", func(t *testing.T) {
		g, m := NewWithT(t), NewMap[int, string](t.Context())
		m.Set(clusterA, 1, "value", time.Minute)
		m.Set(clusterA, 1, "", 0)
		g.Expect(m.Len()).To(BeZero())
	})
}
