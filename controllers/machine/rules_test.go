package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestReplacedRule(t *testing.T) {
	t.Run("M108: a MachineDrainRule that is deleted and created again within three seconds protects its Pods meanwhile", func(t *testing.T) {
		g, begin := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		protected := []v1alpha1.DrainRule{{Name: "machine-drain-rule/protects", Behavior: v1alpha1.DrainBehaviorSkip}}
		var retries []time.Duration
		r := &Reconciler{retryAfter: func(_ types.NamespacedName, after time.Duration) { retries = append(retries, after) }}
		at := func(after time.Duration, wanted []v1alpha1.DrainRule) []v1alpha1.DrainRule {
			s := &scope{machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m"}}, now: begin.Add(after)}
			s.observe(&v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, DrainRules: protected}})
			desired := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{DrainRules: wanted}}
			r.awaitReplacement(s, desired)
			return desired.Spec.DrainRules
		}
		g.Expect(at(0, nil)).To(Equal(protected))
		g.Expect(at(2*time.Second, nil)).To(Equal(protected))
		g.Expect(retries).To(Equal([]time.Duration{rules.GoneCounts, rules.GoneCounts - 2*time.Second}))
		g.Expect(at(2500*time.Millisecond, protected)).To(Equal(protected))
		g.Expect(at(10*time.Second, nil)).To(Equal(protected), "it is gone again")
		g.Expect(at(13*time.Second, nil)).To(BeEmpty())
	})
}
