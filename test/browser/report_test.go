// Package browser tests the report of the kubectl plugin in Chromium.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

const (
	pods = 1000
	// hostile is the name of a Pod, as no API server would accept it.
	hostile = `x/<img src=x onerror="document.title='attacked'"><script>document.title='attacked'</script>`
	// soon is the time in which the page with all Pods reacts.
	soon = time.Second
)

// recordingOf writes a recording of Pods on ten Nodes, and returns its name.
func recordingOf(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	lines := []recording.Line{{Time: begin, Start: &recording.Start{Version: recording.Version, Context: "context " + hostile}}}
	for node := range 10 {
		name := fmt.Sprintf("n%d", node)
		lines = append(lines, recording.Line{Time: begin, Drain: &recording.Maintenance{Name: name, Stage: "Drain", Nodes: []string{name}}})
	}
	var waits, ends []recording.Line
	for i := range pods {
		pod := recording.Pod{Name: fmt.Sprintf("shop/web-84bf6b4d44-%05d", i), UID: fmt.Sprint(i), Node: fmt.Sprintf("n%d", i%10), Reason: history.WaitEviction}
		if i == 7 {
			pod.Name = hostile
		}
		blocked, free := pod, pod
		blocked.Reason, blocked.Object = "BudgetExhausted", "PodDisruptionBudget shop/web"
		free.Gone = true
		lines = append(lines, recording.Line{Time: begin, Pod: &pod})
		waits = append(waits, recording.Line{Time: at(1), Pod: &blocked})
		ends = append(ends, recording.Line{Time: at(2 + i), Pod: &free})
	}
	budget := recording.Line{Time: at(1), Budget: &recording.Budget{Name: "shop/web", Allowed: 2}}
	search := recording.Application{Kind: "Deployment", Name: "shop/search-with-a-name-that-is-longer-than-a-narrow-screen", Replicas: 2}
	for second, ready := range map[int]int32{1: 2, 2: 0, 500: 2} {
		of := search
		of.Ready = ready
		waits = append(waits, recording.Line{Time: at(second), Application: &of})
	}
	slices.SortStableFunc(waits, func(a, b recording.Line) int { return a.Time.Compare(b.Time) })
	outcome := recording.Line{Time: at(2 + pods), Outcome: &recording.Outcome{
		Maintenance: "n0", Ended: at(pods), Pods: v1alpha1.EvictedPods{Evicted: 3, Ready: 1, Pending: 2},
		Controllers: []recording.OutcomeOfController{{Controller: "Deployment shop/search", Pods: v1alpha1.EvictedPods{Evicted: 2, Pending: 2}}},
	}}
	ends = append(ends, outcome)
	lines = append(append(append(append(lines, budget), waits...), ends...), recording.Line{Time: at(2 + pods), End: recording.EndStopped})
	file, err := os.Create(filepath.Join(t.TempDir(), "recording.jsonl"))
	g.Expect(err).NotTo(HaveOccurred())
	encoder := json.NewEncoder(file)
	for _, line := range lines {
		g.Expect(encoder.Encode(line)).To(Succeed())
	}
	g.Expect(file.Close()).To(Succeed())
	return file.Name()
}

// page writes the report of a recording, and returns its address.
func page(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	command := exec.CommandContext(t.Context(), "go", "run", "./cmd/kubectl-node_maintenance", "report", recordingOf(t))
	command.Dir, command.Stderr = "../..", os.Stderr
	output, err := command.Output()
	g.Expect(err).NotTo(HaveOccurred())
	name := filepath.Join(t.TempDir(), "report.html")
	g.Expect(os.WriteFile(name, output, 0o600)).To(Succeed())
	return "file://" + name
}

func TestReport(t *testing.T) {
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("SKIPPED: chromium is not installed")
	}
	address := page(t)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1200, 1400))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()

	var problems, requests []string
	chromedp.ListenTarget(ctx, func(event any) {
		switch event := event.(type) {
		case *runtime.EventExceptionThrown:
			problems = append(problems, event.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			problems = append(problems, string(event.Type))
		case *log.EventEntryAdded:
			problems = append(problems, event.Entry.Text)
		case *network.EventRequestWillBeSent:
			requests = append(requests, event.Request.URL)
		}
	})
	run := func(t *testing.T, actions ...chromedp.Action) {
		t.Helper()
		NewWithT(t).Expect(chromedp.Run(ctx, actions...)).To(Succeed())
	}
	value := func(t *testing.T, script string) (result any) {
		t.Helper()
		run(t, chromedp.Evaluate(script, &result))
		return result
	}
	// Other programs of the machine don't count: the CPU time of the page does.
	run(t, performance.Enable().WithTimeDomain(performance.EnableTimeDomainThreadTicks), network.Enable(), log.Enable(), chromedp.Navigate(address),
		chromedp.WaitVisible("#count"))

	t.Run("K27, K29: the page renders without errors, and runs no script of a name", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(value(t, "document.title")).To(HavePrefix("Drains of the context x/<img"))
		g.Expect(value(t, "document.images.length + document.scripts.length")).To(BeEquivalentTo(1))
		g.Expect(value(t, "document.querySelectorAll('.pods .row').length")).To(BeEquivalentTo(pods))
		g.Expect(value(t, "document.querySelectorAll('.pods rect.k0').length")).To(BeEquivalentTo(pods))
		g.Expect(value(t, "[...document.querySelectorAll('.pods .row')].find(row => row.textContent.includes('attacked')).querySelector('img')")).To(BeNil())
		g.Expect(problems).To(BeEmpty())
		g.Expect(requests).To(Equal([]string{address}))
	})

	t.Run("K28: a page with 1,000 Pods is shown and filtered within a second", func(t *testing.T) {
		g := NewWithT(t)
		var busy float64 // seconds
		run(t, chromedp.ActionFunc(func(ctx context.Context) error {
			metrics, err := performance.GetMetrics().Do(ctx)
			for _, metric := range metrics {
				if metric.Name == "TaskDuration" {
					busy = metric.Value
				}
			}
			return err
		}))
		loaded := value(t, "performance.getEntriesByType('navigation')[0].loadEventEnd")
		filtered := value(t, `(() => { const start = performance.now(); const filter = document.getElementById("filter");
			filter.value = "00042"; filter.dispatchEvent(new Event("input")); document.body.offsetHeight; return performance.now() - start })()`)
		t.Logf("loaded after %.0f ms, of which %.0f ms of CPU time; filtered after %.0f ms", loaded, 1000*busy, filtered)
		g.Expect(busy).To(And(BeNumerically(">", 0), BeNumerically("<", soon.Seconds())))
		g.Expect(filtered).To(BeNumerically("<", soon.Milliseconds()))
		g.Expect(value(t, "document.getElementById('count').textContent")).To(Equal("1 of 1000 waits"))
		g.Expect(value(t, "[...document.querySelectorAll('.pods .row')].filter(row => !row.hidden).length")).To(BeEquivalentTo(1))
	})

	t.Run("K29: the table is filtered and sorted with the keyboard", func(t *testing.T) {
		g := NewWithT(t)
		first := "[...document.querySelectorAll('tbody tr')].find(row => !row.hidden).cells[1].textContent"
		run(t, chromedp.Evaluate(`document.getElementById("filter").value = ""`, nil), chromedp.Focus("#filter"), chromedp.KeyEvent("n3"))
		g.Expect(value(t, "document.getElementById('count').textContent")).To(Equal("100 of 1000 waits"))
		g.Expect(value(t, first)).To(Equal("shop/web-84bf6b4d44-00993"), "the longest wait comes first")
		run(t, chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter)) // past the kind to the first column
		g.Expect(value(t, "document.activeElement.textContent")).To(Equal("Waited"))
		g.Expect(value(t, "document.activeElement.parentElement.getAttribute('aria-sort')")).To(Equal("ascending"))
		g.Expect(value(t, first)).To(Equal("shop/web-84bf6b4d44-00003"))
		run(t, chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent(kb.Enter))
		g.Expect(value(t, first)).To(Equal("shop/web-84bf6b4d44-00993"), "by name, descending")
		run(t, chromedp.Focus("#kind"), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowDown))
		g.Expect(value(t, "document.getElementById('count').textContent")).To(Equal("0 of 1000 waits"))
		g.Expect(problems).To(BeEmpty())
	})

	t.Run("K76: the charts are legible on a narrow screen", func(t *testing.T) {
		const width = 400
		run(t, emulation.SetDeviceMetricsOverride(width, 800, 1, true))
		defer run(t, emulation.ClearDeviceMetricsOverride())
		NewWithT(t).Expect(value(t, narrow)).To(And(HaveKeyWithValue("page", BeNumerically("<=", width)), HaveKeyWithValue("chart", BeNumerically(">", width/2)),
			HaveKeyWithValue("labels", BeNumerically(">=", 3)), HaveKeyWithValue("overlaps", BeZero())))
	})

	t.Run("K29: the page has a light and a dark theme, in which its text is legible", func(t *testing.T) {
		g := NewWithT(t)
		for theme, back := range map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"} {
			var picture []byte
			run(t, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}),
				chromedp.CaptureScreenshot(&picture))
			g.Expect(value(t, "getComputedStyle(document.body).backgroundColor")).To(Equal(back))
			for _, element := range []string{"body", ".faint", "a", ".took", ".took.hurt"} {
				g.Expect(value(t, fmt.Sprintf(contrast, element))).To(BeNumerically(">=", 4.5), "%s in the %s theme", element, theme)
			}
			if directory := os.Getenv("SCREENSHOTS"); directory != "" {
				g.Expect(os.WriteFile(filepath.Join(directory, theme+".png"), picture, 0o600)).To(Succeed())
			}
		}
	})
}

// narrow are the labels of the time axis that overlap, and the widths of what must fit a narrow screen.
const narrow = `(() => {
	const boxes = axis => [...axis.children].map(label => label.getBoundingClientRect()).filter(label => label.width > 0);
	const labels = [...document.querySelectorAll(".axis div")].map(boxes);
	return {
		page: document.documentElement.scrollWidth,
		chart: Math.min(...[...document.querySelectorAll("svg")].filter(chart => chart.clientWidth > 0).map(chart => chart.clientWidth)),
		labels: Math.min(...labels.map(axis => axis.length)),
		overlaps: labels.flatMap(axis => axis.slice(1).filter((label, i) => label.left < axis[i].right || label.height > 30)).length,
	};
})()`

// contrast is the contrast of an element's text, as WCAG defines it.
const contrast = `(() => {
	const luminance = color => {
		const [r, g, b] = color.match(/\d+/g).map(Number).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const [a, b] = [getComputedStyle(document.querySelector(%q)).color, getComputedStyle(document.body).backgroundColor].map(luminance);
	return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})()`
