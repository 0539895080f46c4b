package nodeagent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
)

func TestConfigs(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	write := func(file, content string) {
		g.Expect(os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600)).To(Succeed())
	}
	configs := nodeagent.Configs{File: filepath.Join(dir, "config.yaml")}
	label := func(value string) map[string]string { return map[string]string{v1alpha1.ShutdownConfigLabel: value} }
	var present nodeagent.Settings

	t.Run("S17: uses the defaults without a ConfigMap", func(t *testing.T) {
		g := NewWithT(t)
		present = configs.For(nil, present)
		g.Expect(present.ShutdownGracePeriod.Duration).To(Equal(30 * time.Second))
		g.Expect(present.Problem).To(BeEmpty())
	})
	write("config.yaml", "shutdownGracePeriod: 60s")
	write("patient.yaml", "shutdownGracePeriod: 600s")
	write("mistyped.yaml", "shutdownGracePeriods: 600s")
	for name, test := range map[string]struct {
		labels  map[string]string
		want    time.Duration
		chosen  string
		problem types.GomegaMatcher
	}{
		"S17: uses the configuration for all Nodes on a Node without the label": {nil, time.Minute, "", BeEmpty()},
		"S17: uses the configuration that the label of the Node selects":        {label("patient"), 10 * time.Minute, "patient", BeEmpty()},
		"S17: falls back from a configuration that does not exist":              {label("gpu"), time.Minute, "", ContainSubstring("gpu.yaml")},
		"S17: falls back from an invalid configuration":                         {label("mistyped"), time.Minute, "", ContainSubstring("shutdownGracePeriods")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := configs.For(test.labels, present)
			g.Expect(got.ShutdownGracePeriod.Duration).To(Equal(test.want))
			g.Expect(got.Name).To(Equal(test.chosen))
			g.Expect(got.Problem).To(test.problem)
		})
	}
	t.Run("S17: keeps the present configuration while that for all Nodes is invalid", func(t *testing.T) {
		g := NewWithT(t)
		present := configs.For(label("patient"), present)
		write("config.yaml", "shutdownGracePeriod: -1s")
		for _, labels := range []map[string]string{nil, label("gpu")} {
			got := configs.For(labels, present)
			g.Expect(got.ShutdownGracePeriod.Duration).To(Equal(10 * time.Minute))
			g.Expect(got.Problem).NotTo(BeEmpty())
		}
		g.Expect(configs.For(label("patient"), present).Problem).To(BeEmpty())
	})
}

func TestCondition(t *testing.T) {
	held := logind.State{Held: true, DelayMax: 20 * time.Minute}
	observed := func(settings nodeagent.Settings) nodeagent.Observed {
		return nodeagent.Observed{Settings: settings, Runtime: nodeagent.RuntimeState{}.Observe(nil)}
	}
	patient := nodeagent.Settings{Name: "patient"}
	patient.ShutdownGracePeriod.Duration = 10 * time.Minute
	t.Run("S17: reports the configuration and its time", func(t *testing.T) {
		g := NewWithT(t)
		condition := observed(patient).Condition(held)
		g.Expect(condition.Reason).To(Equal(v1alpha1.ReasonShutdownDelayed))
		g.Expect(condition.Message).To(And(ContainSubstring("10m0s"), ContainSubstring(`configuration "patient"`)))
	})
	t.Run("S17: reports an invalid configuration", func(t *testing.T) {
		g := NewWithT(t)
		invalid := patient
		invalid.Problem = "Cannot use it."
		condition := observed(invalid).Condition(held)
		g.Expect(condition.Status).To(Equal(corev1.ConditionTrue))
		g.Expect(condition.Reason).To(Equal(v1alpha1.ReasonInvalidConfiguration))
		g.Expect(condition.Message).To(Equal("Cannot use it."))
	})
	t.Run("S2: is False where logind allows no delay, although it grants the lock", func(t *testing.T) {
		g := NewWithT(t)
		none := logind.State{Held: true, Problem: "logind delays a shutdown for at most 0s"}
		g.Expect(observed(patient).Condition(none)).To(And(HaveField("Status", corev1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonShutdownNotDelayed),
			HaveField("Message", HaveSuffix(none.Problem))))
		g.Expect(observed(patient).Ready(none)).To(BeFalse())
	})
	t.Run("S60: is neither True nor ready while the container runtime does not answer", func(t *testing.T) {
		g := NewWithT(t)
		o := observed(patient)
		g.Expect(o.Ready(held)).To(BeTrue())
		refused := errors.New("connection refused")
		o.Runtime = o.Runtime.Observe(refused)
		g.Expect(o.Condition(held).Status).To(Equal(corev1.ConditionTrue), "a runtime restarts within seconds")
		o.Runtime = o.Runtime.Observe(refused)
		g.Expect(o.Condition(held)).To(And(HaveField("Status", corev1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonContainerRuntimeUnavailable),
			HaveField("Message", ContainSubstring("connection refused"))))
		g.Expect(o.Ready(held)).To(BeFalse())
		o.Runtime = o.Runtime.Observe(errors.New("deadline exceeded"))
		g.Expect(o.Condition(held).Message).To(ContainSubstring("connection refused"), "the message must not change with each request")
		o.Runtime = o.Runtime.Observe(nil)
		g.Expect(o.Condition(held).Status).To(Equal(corev1.ConditionTrue))
		g.Expect(o.Ready(held)).To(BeTrue())
	})
	t.Run("S62: is False while the agent cannot stop the kubelet, which does not matter where the kubelet terminates the Pods", func(t *testing.T) {
		g := NewWithT(t)
		o := observed(patient)
		o.Kubelet.Problem = "it runs, but not as kubelet.service"
		g.Expect(o.Condition(held)).To(And(HaveField("Status", corev1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonKubeletCannotBeStopped),
			HaveField("Message", ContainSubstring(o.Kubelet.Problem))))
		o.Kubelet.TerminatesPods = true
		g.Expect((nodeagent.Observed{Settings: patient, Kubelet: o.Kubelet}).Ready(held)).To(BeTrue(), "it needs no container runtime")
		g.Expect(o.Condition(held).Reason).To(Equal(v1alpha1.ReasonKubeletGracefulShutdown))
	})
	t.Run("S82: is False while the agent has not read the kubelet's configuration and Pods", func(t *testing.T) {
		g := NewWithT(t)
		o := observed(patient)
		o.Unread = "requesting /pods from the kubelet: 403 Forbidden"
		g.Expect(o.Condition(held)).To(And(HaveField("Status", corev1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonKubeletUnavailable),
			HaveField("Message", HaveSuffix(o.Unread))))
	})
	t.Run("S63: is False and ready where the configuration disables the delay", func(t *testing.T) {
		g := NewWithT(t)
		disabled := patient
		disabled.ShutdownGracePeriod.Duration = 0
		condition := observed(disabled).Condition(logind.State{})
		g.Expect(condition).To(And(HaveField("Status", corev1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonShutdownDelayDisabled)))
		g.Expect(observed(disabled).Ready(logind.State{})).To(BeTrue())
		disabled.Problem = "Cannot use another."
		g.Expect(observed(disabled).Condition(logind.State{}).Message).To(HaveSuffix("Cannot use another."))
	})
	t.Run("S66: reports a shutdown once its NodeMaintenance exists", func(t *testing.T) {
		g := NewWithT(t)
		o, preparing := observed(patient), held
		preparing.Preparing = true
		g.Expect(o.Condition(preparing).Reason).To(Equal(v1alpha1.ReasonShutdownDelayed))
		o.Requested = true
		g.Expect(o.Condition(preparing)).To(And(HaveField("Status", corev1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonNodeShutdown),
			HaveField("Message", ContainSubstring("10m0s"))))
		g.Expect(o.Condition(held).Reason).To(Equal(v1alpha1.ReasonShutdownDelayed), "after a cancellation")
	})
	t.Run("S60: is not ready before the container runtime has answered, and a first failure is reported at once", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(nodeagent.Observed{Settings: patient}.Ready(held)).To(BeFalse())
		o := nodeagent.Observed{Settings: patient, Runtime: nodeagent.RuntimeState{}.Observe(errors.New("no such file"))}
		g.Expect(o.Condition(held).Status).To(Equal(corev1.ConditionFalse))
	})
}
