package page

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/net/html"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// historyOf returns a drain in which every text from a cluster is the given one.
func historyOf(text string, pods int) *recording.History {
	h := &recording.History{Context: text, Start: begin, End: begin.Add(time.Hour), Gaps: []string{text}}
	d := recording.Drain{Cluster: text, Machine: text, Maintenance: text, Nodes: []string{text}, Start: begin, End: begin.Add(time.Hour)}
	for i := range pods {
		start := begin.Add(time.Duration(i) * time.Second)
		d.Pods = append(d.Pods, recording.PodCourse{
			Name: fmt.Sprintf("%s-%d", text, i), Node: text, Start: start, End: start.Add(time.Minute), Ended: true, Waits: []history.Wait{
				{Reason: "BudgetExhausted", Object: "PodDisruptionBudget " + text, Message: text, Start: start, End: start.Add(40 * time.Second)},
				{Reason: text, Message: text, Start: start.Add(40 * time.Second), End: start.Add(50 * time.Second)},
				{Reason: history.WaitEviction, Start: start.Add(50 * time.Second), End: start.Add(time.Minute)},
			},
		})
	}
	h.Drains = []recording.Drain{d}
	h.Budgets = []recording.BudgetCourse{{Cluster: text, Name: text, Steps: []recording.BudgetStep{
		{Time: begin, Budget: recording.Budget{Allowed: 2}}, {Time: begin.Add(time.Minute)}, {Time: begin.Add(time.Hour), Budget: recording.Budget{Allowed: 1}},
	}}}
	second := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	h.Effects = []recording.Effect{{
		Cluster: text, Kind: text, Name: text, Budget: text, Least: 2, Of: 4, Short: 10 * time.Second, Below: 10 * time.Second,
		Ready: []recording.Level{
			{From: begin, To: second(10), Value: 4}, {From: second(10), To: second(20), Value: 2}, {From: second(40), To: second(3600), Value: 4},
		},
		Wanted: []recording.Level{
			{From: begin, To: second(10), Value: 4}, {From: second(10), To: second(20), Value: 4}, {From: second(40), To: second(3600), Value: 4},
		},
		Required: []recording.Level{{From: begin, To: second(3600), Value: 3}},
		Hurt:     []recording.Span{{From: second(10), To: second(20)}},
	}}
	h.Outcomes = []recording.Outcome{{
		Cluster: text, Machine: text, Node: text, Ended: begin.Add(-time.Minute), Read: &h.End, Pods: v1alpha1.EvictedPods{Evicted: 3, Ready: 1, Pending: 2},
		Message: text, More: 1, Controllers: []recording.OutcomeOfController{
			{Controller: text, Pods: v1alpha1.EvictedPods{Evicted: 2, Pending: 2}, Why: text},
		},
	}}
	return h
}

func written(t testing.TB, h *recording.History) string {
	t.Helper()
	var out bytes.Buffer
	NewWithT(t).Expect(WriteHTML(&out, h)).To(Succeed())
	return out.String()
}

// shape returns the elements of a page, and the names of their attributes.
func shape(t testing.TB, page string) []string {
	t.Helper()
	var elements []string
	for z := html.NewTokenizer(strings.NewReader(page)); ; {
		switch z.Next() {
		case html.ErrorToken:
			return elements
		case html.StartTagToken, html.SelfClosingTagToken:
			token := z.Token()
			element := token.Data
			for _, attribute := range token.Attr {
				element += " " + attribute.Key
			}
			elements = append(elements, element)
		default:
		}
	}
}

const hostile = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>` + "`${alert(3)}`\x1b[2J\u202e]]>-->{{.}}"

func TestWriteHTML(t *testing.T) {
	t.Run("K27: text from clusters is text, whatever it contains", func(t *testing.T) {
		g := NewWithT(t)
		page := written(t, historyOf(hostile, 3))
		g.Expect(shape(t, page)).To(Equal(shape(t, written(t, historyOf("web", 3)))))
		g.Expect(page).NotTo(ContainSubstring("\x1b"))
		g.Expect(page).NotTo(ContainSubstring("\u202e"))
		g.Expect(page).To(ContainSubstring("&lt;script&gt;alert(1)"))
	})

	t.Run("K28: the page needs no other file, and has less than 1 MB with 1,000 Pods", func(t *testing.T) {
		g := NewWithT(t)
		page := written(t, historyOf("payments/a-deployment-with-a-long-name-5d4f8c7b9-x2x9q", 1000))
		g.Expect(len(page)).To(BeNumerically("<", 1_000_000))
		g.Expect(page).NotTo(MatchRegexp(`(src|href)="?(https?:)?//[^g]`))
		g.Expect(page).To(ContainSubstring("default-src 'none'"))
		for _, element := range shape(t, page) {
			g.Expect(strings.Fields(element)[0]).NotTo(BeElementOf("link", "img", "iframe", "object", "base", "form"))
		}
	})

	t.Run("K26: the page has summary, chart, budgets, waits and what could be changed", func(t *testing.T) {
		page := written(t, historyOf("web", 2))
		for _, text := range []string{
			"Drained in 1 h (2 Pods)", `<rect class="k0" x="0" width="655.7" height="10"/>`, ` 40V0H`, "<td>PodDisruptionBudget web</td>",
			"<strong>PodDisruptionBudget web</strong> blocked 2 Pods in 1 drain for 41 s", "stuck-drains.md#a-poddisruptionbudget-allows-no-disruptions",
		} {
			NewWithT(t).Expect(page).To(ContainSubstring(text))
		}
	})

	t.Run("K49: objects of equal names in several Clusters are distinguished by their Clusters", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 1)
		other := h.Drains[0]
		other.Cluster = "east"
		h.Drains = append(h.Drains, other)
		h.Budgets = append(h.Budgets, recording.BudgetCourse{Cluster: "east", Name: "web", Steps: h.Budgets[0].Steps})
		page := written(t, h)
		for _, text := range []string{
			"<strong>PodDisruptionBudget web of Cluster east</strong> blocked 1 Pod in 1 drain for 40 s", "<strong>PodDisruptionBudget web of Cluster web</strong>",
			"&lrm;east: web</span>", "&lrm;web: web</span>", "<td>east: web-0</td>", "<strong>web</strong> blocked 2 Pods in 2 drains",
		} {
			g.Expect(page).To(ContainSubstring(text))
		}
	})

	t.Run("K66, K67: the page draws the ready replicas beside the drains, with the budget as a line and a gap where they are not known", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 41) // until second 100
		page := written(t, h)
		for _, text := range []string{
			`<path class="ready" d="M 0 3H100V20H200M 400 3H1000"/>`, `<path class="required" d="M 0 11.5H1000"/>`, `<path class="none" d="M 100 0V40H200V0Z"/>`,
			`<path class="drains" d="M 0 0V40H1000V0Z"/>`, "2 of 4 ready at least, budget 3; below the budget for 10 s",
			"Applications with evacuated Pods: 1; below their PodDisruptionBudget for a time: 1; without a ready replica for a time: 0.",
		} {
			g.Expect(page).To(ContainSubstring(text))
		}
		h.Effects[0].IsShared = true
		g.Expect(written(t, h)).To(ContainSubstring(`<path class="required" d=""/>`), "it counts other Pods")
	})

	t.Run("K67: a PodDisruptionBudget that could not be read for a time is not said to have allowed disruptions then", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 1)
		g.Expect(written(t, h)).To(ContainSubstring(">at most 2 allowed; none for 59 min<"))
		h.Budgets[0].Steps[1].Unread = true
		g.Expect(written(t, h)).To(ContainSubstring(">at most 2 allowed; none for 0 s; not read for 59 min<"))
	})

	t.Run("K66: the time axis includes the replacement of the last Pod", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 41)
		e := &h.Effects[0]
		e.Ready[2].Value, e.Ready[2].To = 3, begin.Add(125*time.Second)
		g.Expect(written(t, h)).To(ContainSubstring(`<path class="ready" d="M 0 3H80V20H160M 320 11.5H1000"/>`))
		e.Ready[2].To = begin.Add(time.Hour)
		g.Expect(written(t, h)).To(ContainSubstring(`<path class="ready" d="M 0 3H66.7V20H133.3M 266.7 11.5H1000"/>`), "it does not recover")
	})

	t.Run("K66: the page shows the 50 most affected applications, and says how many others there are", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 1)
		for i := range 60 {
			h.Effects = append(h.Effects, recording.Effect{Kind: "Deployment", Name: fmt.Sprintf("shop/%d", i)})
		}
		page := written(t, h)
		g.Expect(page).To(And(ContainSubstring("Deployment shop/48<"), Not(ContainSubstring("Deployment shop/49<"))))
		g.Expect(page).To(ContainSubstring("11 less affected applications are not shown here."))
	})

	t.Run("K61: the page says what became of the evicted Pods", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 1)
		for range 100 {
			h.Outcomes = append(h.Outcomes, recording.Outcome{Maintenance: "m"})
		}
		page := written(t, h)
		for _, text := range []string{
			"<strong>Machine web, Node web</strong>: 3 evicted: 1 replaced and ready, 2 Pending; read 1 h 1 min after the end of the drain; web; " +
				"the drain had ended before the recording began<ul>",
			"<li><strong>web</strong>: 2 evicted: 2 Pending. web</li>", "<li>Controllers that are not listed: 1</li>",
			"<strong>NodeMaintenance m</strong>: 0 evicted; not read yet", "More drains that are not listed: 1.",
		} {
			g.Expect(page).To(ContainSubstring(text))
		}
	})

	t.Run("K76: the page marks in red which applications were hurt and which drains left Pods without a place, before all else", func(t *testing.T) {
		g, h := NewWithT(t), historyOf("web", 1)
		well := h.Effects[0]
		well.Name, well.Hurt = "well", nil
		h.Effects = append(h.Effects, well)
		h.Outcomes = append(h.Outcomes, recording.Outcome{Maintenance: "unread", Pods: v1alpha1.EvictedPods{Evicted: 1, Unknown: 1}},
			recording.Outcome{Maintenance: "done", Pods: v1alpha1.EvictedPods{Evicted: 2, Ready: 1, NotNeeded: 1}})
		page := written(t, h)
		g.Expect(strings.Count(page, `class="took hurt"`)).To(Equal(1))
		g.Expect(page).To(MatchRegexp(`(?s)>Applications<.*class="took hurt".*>What became of the evicted Pods<.*"swatch bad"></span><strong>Machine web, .*` +
			`"swatch fair"></span><strong>NodeMaintenance unread<.*"swatch fine"></span><strong>NodeMaintenance done<.*>What could be changed<`))
	})

	t.Run("K26: a recording without drains has a page", func(t *testing.T) {
		NewWithT(t).Expect(written(t, &recording.History{Start: begin, End: begin})).To(ContainSubstring("The recording has no drains."))
	})
}

func TestWriteMarkdown(t *testing.T) {
	t.Run("K26: the ticket has the sentences, the longest waits and what could be changed", func(t *testing.T) {
		var out bytes.Buffer
		g := NewWithT(t)
		g.Expect(WriteMarkdown(&out, historyOf("web", 20))).To(Succeed())
		for _, text := range []string{
			"# Drains of the web\n", "- **Machine web**: Drained in 1 h (20 Pods)", "| 40 s | web-0 | web | PodDisruptionBudget web | 12:00:00 |\n",
			"25 shorter waits are not listed.",
		} {
			g.Expect(out.String()).To(ContainSubstring(text))
		}
	})

	t.Run("K66: the ticket has a line for each affected application, and counts the others", func(t *testing.T) {
		var out bytes.Buffer
		g, h := NewWithT(t), historyOf("web", 1)
		for i := range 20 {
			h.Effects = append(h.Effects, recording.Effect{Kind: "Deployment", Name: fmt.Sprintf("shop/%d", i), Least: 1, Of: 2, Short: time.Second})
		}
		h.Effects = append(h.Effects, recording.Effect{Kind: "Deployment", Name: "shop/well", Least: 2, Of: 2})
		g.Expect(WriteMarkdown(&out, h)).To(Succeed())
		g.Expect(out.String()).To(ContainSubstring(`
- **web web**: 2 of 4 ready at least, budget 3; below the budget for 10 s
- **Deployment shop/0**: 1 of 2 ready at least, no budget
`))
		g.Expect(out.String()).To(ContainSubstring(`
- **Deployment shop/13**: 1 of 2 ready at least, no budget
- 6 less affected applications are not listed.
- 1 application had all replicas ready all the time.
`))
	})

	t.Run("K61, K67: the ticket says what became of the evicted Pods, and nothing about the time before the recording", func(t *testing.T) {
		var out bytes.Buffer
		g := NewWithT(t)
		h, err := recording.Read(strings.NewReader(`{"time":"2026-03-01T12:00:00Z","start":{"version":1}}
{"time":"2026-03-01T12:00:00Z","nodeMaintenance":{"name":"m","stage":"Drain","nodes":["n"],"podsEvacuatedBefore":2}}
{"time":"2026-03-01T12:00:01Z","application":{"kind":"Deployment","name":"n/a","readyReplicas":2,"replicas":2}}
{"time":"2026-03-01T12:00:02Z","outcome":{"nodeMaintenance":"m","ended":"2026-03-01T12:00:02Z","read":"2026-03-01T12:00:02Z",` +
			`"pods":{"evicted":2,"pending":1,"ready":1},"controllers":[{"controller":"Deployment n/b","pods":{"evicted":1,"pending":1},"why":"<b>"}]}}
{"time":"2026-03-01T12:00:02Z","end":"Stopped"}`))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(WriteMarkdown(&out, h)).To(Succeed())
		g.Expect(out.String()).To(ContainSubstring(`
- 1 application had all replicas ready while they were recorded.

## What became of the evicted Pods

- **NodeMaintenance m**: 2 evicted: 1 replaced and ready, 1 Pending; read 0 s after the end of the drain
  - **Deployment n/b**: 1 evicted: 1 Pending. &#60;b&#62;
`))
	})

	t.Run("K27: text from clusters is no markup", func(t *testing.T) {
		var out bytes.Buffer
		g := NewWithT(t)
		g.Expect(WriteMarkdown(&out, historyOf("a|b `c` <b> @team [x](http://y) $z$\n# z", 1))).To(Succeed())
		g.Expect(out.String()).NotTo(ContainSubstring("<b>"))
		g.Expect(out.String()).NotTo(ContainSubstring("@team"))
		g.Expect(out.String()).To(ContainSubstring("| a\\|b \\`c\\` &#60;b&#62; &#64;team \\[x\\](http&#58;//y) &#36;z&#36; \\# z-0 |"))
	})
}

func TestMarkdownLinks(t *testing.T) {
	for _, text := range []string{"http://evil.example", "HTTPS://evil.example", "www.evil.example", "mailto:a", "xmpp:a"} {
		t.Run("K27: an address in a text from a cluster is no link: "+text, func(t *testing.T) {
			var out bytes.Buffer
			g := NewWithT(t)
			g.Expect(WriteMarkdown(&out, historyOf(text, 1))).To(Succeed())
			g.Expect(out.String()).NotTo(ContainSubstring(text))
			g.Expect(html.UnescapeString(out.String())).To(ContainSubstring(text))
		})
	}
}

func FuzzWriteHTML(f *testing.F) {
	f.Add(hostile, "BudgetExhausted", int64(0), int64(60))
	f.Add("web", history.WaitOther, int64(-1<<62), int64(1<<62))
	plain := shape(f, written(f, historyOf("web", 1)))
	f.Fuzz(func(t *testing.T, text, reason string, start, end int64) {
		h := historyOf("x"+text, 1)
		if got := shape(t, written(t, h)); !slices.Equal(got, plain) {
			t.Fatalf("%q changes the page: %q", text, got)
		}
		wait := &h.Drains[0].Pods[0].Waits[1]
		wait.Reason, wait.Start, wait.End = reason, begin.Add(time.Duration(start)), begin.Add(time.Duration(end))
		written(t, h)
		var out bytes.Buffer
		NewWithT(t).Expect(WriteMarkdown(&out, h)).To(Succeed())
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"time":"2026-03-01T12:00:00Z","start":{"version":1}}
{"time":"2026-03-01T12:00:00Z","machine":{"cluster":"c","name":"n/m","node":"n","deleted":"2026-03-01T12:00:00Z"}}
{"time":"2026-03-01T12:00:00Z","nodeMaintenance":{"cluster":"c","name":"m","machine":"n/m","stage":"Drain","nodes":["n"]}}
{"time":"2026-03-01T12:00:01Z","budget":{"cluster":"c","name":"n/b","disruptionsAllowed":-1}}
{"time":"2026-03-01T12:00:01Z","pod":{"cluster":"c","name":"n/p","uid":"u","node":"n","reason":"Surge","object":"evacuator x"}}
{"time":"2026-03-01T12:00:01Z","application":{"cluster":"c","kind":"Deployment","name":"n/a","readyReplicas":-1,"replicas":2147483647,"budget":"n/b"}}
{"time":"2026-03-01T12:00:01Z","application":{"cluster":"c","kind":"Deployment","name":"n/a","readyReplicas":5,"replicas":-2,"unread":true}}
{"time":"2026-03-01T12:00:02Z","pod":{"cluster":"c","name":"n/p","uid":"u","gone":true}}
{"time":"2026-03-01T12:00:02Z","outcome":{"machine":"n/m","ended":"2026-03-01T12:00:02Z","controllers":[{"controller":"c","pods":{"evicted":-1}}]}}
{"time":"2026-03-01T12:00:02Z","end":"Stopped"}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := recording.Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		page := written(t, h)
		if strings.Count(page, "<script") != 1 {
			t.Fatal("the recording adds a script")
		}
	})
}

func TestTitle(t *testing.T) {
	t.Run("K26, M75: the title names the context of a recording; traces have no context", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(viewOf(&recording.History{Context: "management cluster"}).Title).To(Equal("Drains of the management cluster"))
		g.Expect(viewOf(&recording.History{}).Title).To(Equal("Drains"))
	})
}
