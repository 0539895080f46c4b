package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func drainFrame() frame {
	return frame{
		Elapsed: 3200 * time.Millisecond, Machine: "workers-1", Node: "workers-1", WebReady: 58,
		Condition:   "False Draining: Drain not completed yet",
		Maintenance: maintenanceView{Name: "workers-1-ab12", Stage: "Drain", Drained: "False", Message: "Evacuating", Blocking: "web/web-2: Waiting for PodDisruptionBudget web/web", Evacuating: 2, Pending: 1, Skipped: 1},
		Pods: []podRow{
			{Pod: "web-1", Verdict: "Drain", Rule: "(none)", Order: "0", State: stateTerminating, uid: "1"},
			{Pod: "web-2", Verdict: "Drain", Rule: "(none)", Order: "0", State: stateEvacuating, Why: "Waiting for PodDisruptionBudget web/web: 58 healthy Pods required", uid: "2"},
			{Pod: "storage-0", Verdict: "Drain", Rule: "machine-drain-rule/storage-last", Order: "100", State: stateWaiting, Why: "Pods with drain order 0 must terminate first", uid: "3"},
			{Pod: "monitoring-1", Verdict: "Skip", Rule: "machine-drain-rule/monitoring-stays", State: stateStays, uid: "4"},
		},
	}
}

func TestRenderIsText(t *testing.T) {
	g := NewWithT(t)
	lines := render(drainFrame(), 160, 40, style{})
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	g.Expect(strings.Join(lines, "\n")).To(Equal(strings.TrimPrefix(`
Machine          workers-1   3.2 s
  NodeMaintenance  False Draining: Drain not completed yet
NodeMaintenance  workers-1-ab12   stage Drain, Drained False   2 evacuating, 1 pending, 1 skipped
  drain            Evacuating. web/web-2: Waiting for PodDisruptionBudget web/web
Deployment web   58 of 60 Pods ready, 58 required

POD           VERDICT  RULE              ORDER  STATE        WHY
web-1         Drain    (none)            0      terminating
web-2         Drain    (none)            0      evacuating   Waiting for PodDisruptionBudget web/web: 58 healthy Pods required
storage-0     Drain    storage-last      100    waiting      Pods with drain order 0 must terminate first
monitoring-1  Skip     monitoring-stays         skipped`, "\n")))
}

// The output is never wider or higher than the terminal: either would break redrawing in place.
func TestRenderFits(t *testing.T) {
	for _, s := range []style{{}, {Unicode: true}} {
		for width := 1; width < 200; width++ {
			for _, height := range []int{1, 5, 9, 12, 40} {
				lines := render(drainFrame(), width, height, s)
				for _, line := range lines {
					if utf8.RuneCountInString(line) > width {
						t.Fatalf("width %d: %q", width, line)
					}
				}
				if least := 9; len(lines) > max(height, least) {
					t.Fatalf("height %d: %d lines", height, len(lines))
				}
			}
		}
	}
}

func TestNarrowTerminalsLoseTheLeastImportantColumns(t *testing.T) {
	for width, expected := range map[int]string{
		160: "POD VERDICT RULE ORDER STATE WHY",
		80:  "POD VERDICT ORDER STATE WHY", // the reason is more important than the name of the rule
		50:  "POD VERDICT ORDER STATE",
		38:  "POD VERDICT STATE",
		28:  "POD STATE",
		10:  "POD",
	} {
		g := NewWithT(t)
		rows := drainFrame().Pods
		g.Expect(strings.Fields(table(rows, rows, width, style{})[0])).To(Equal(strings.Fields(expected)), "width %d", width)
	}
}

func TestLowTerminalsSayHowMuchIsHidden(t *testing.T) {
	g := NewWithT(t)
	lines := render(drainFrame(), 100, 10, style{})
	g.Expect(lines).To(HaveLen(10))
	g.Expect(lines[9]).To(Equal("and 2 more"))
}

func TestColors(t *testing.T) {
	g := NewWithT(t)
	g.Expect(strings.Join(render(drainFrame(), 100, 40, style{}), "")).NotTo(ContainSubstring("\x1b"))
	g.Expect(strings.Join(render(drainFrame(), 100, 40, style{Colors: true}), "")).To(ContainSubstring("\x1b[33mweb-1"))
}

func TestRulesAreShortenedByTheirStart(t *testing.T) {
	g := NewWithT(t)
	rows := drainFrame().Pods
	lines := table(rows, rows, 89, style{Unicode: true})
	g.Expect(lines[3]).To(MatchRegexp(`Drain    storage-last +100    waiting`))
	g.Expect(lines[4]).To(MatchRegexp(`Skip     …oring-stays         skipped`))
	g.Expect(clipStart("abcdef", 5, style{})).To(Equal("...ef"))
}

func TestClip(t *testing.T) {
	g := NewWithT(t)
	g.Expect(clip("abcdef", 6, style{})).To(Equal("abcdef"))
	g.Expect(clip("abcdef", 5, style{})).To(Equal("ab..."))
	g.Expect(clip("abcdef", 5, style{Unicode: true})).To(Equal("abcd…"))
	g.Expect(clip("abcdef", 2, style{})).To(Equal("ab"))
	g.Expect(clip("abcdef", 0, style{})).To(BeEmpty())
}

func TestChangesAreOnlyWhatHasChanged(t *testing.T) {
	g := NewWithT(t)
	before, now := drainFrame(), drainFrame()
	g.Expect(changes(before, now)).To(BeEmpty())

	now.Elapsed = 4 * time.Second
	now.Condition = "False Draining: Drain not completed yet, but a little more" // counts are no change
	now.Pods[0].State = stateGone
	now.Pods[1].Why = "" // neither is the end of a wait
	g.Expect(changes(before, now)).To(Equal([]string{"  4.0 s  deleted      web-1"}))

	now.Condition = "True Drained: The Node is drained"
	now.Maintenance.Stage = "Complete"
	g.Expect(changes(before, now)).To(Equal([]string{
		"  4.0 s  NodeMaintenance: stage Complete",
		"  4.0 s  Machine: True Drained: The Node is drained",
		"  4.0 s  deleted      web-1",
	}))
}

func TestWhatIsDrainedIsNoNewsOnceAMaintenanceIsComplete(t *testing.T) {
	g := NewWithT(t)
	before, now := drainFrame(), drainFrame()
	before.Maintenance.Stage, now.Maintenance.Stage = "Complete", "Complete"
	now.Maintenance.Drained = "True"
	g.Expect(changes(before, now)).To(BeEmpty())
}

func TestPodsThatChangeAlikeShareALine(t *testing.T) {
	g := NewWithT(t)
	var rows []podRow
	for i := range 6 {
		rows = append(rows, podRow{Pod: fmt.Sprintf("web/web-%d", i), State: stateEvacuating, Why: "100% busy", uid: types.UID(fmt.Sprint(i))})
	}
	g.Expect(podChanges(nil, rows)).To(Equal([]string{"evacuating   web/web-0 web/web-1 and 4 more: 100% busy"}))
}
