package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// style is the set of features that the output may use.
type style struct {
	Colors  bool
	Unicode bool
}

// column of the table.
type column struct {
	title string
	text  func(podRow) string
}

var (
	columns = []column{
		{"POD", func(r podRow) string { return r.Pod }},
		{"VERDICT", func(r podRow) string { return r.Verdict }},
		{"RULE", func(r podRow) string { return strings.TrimPrefix(r.Rule, rules.MachineDrainRulePrefix) }},
		{"ORDER", func(r podRow) string { return r.Order }},
		{"STATE", func(r podRow) string { return string(r.State) }},
		{"WHY", func(r podRow) string { return r.Why }},
	}
	// rigid columns have their natural width or are omitted, the last one first. RULE and WHY share the remaining width.
	rigid = []string{"POD", "STATE", "VERDICT", "ORDER"}
)

const (
	gap = 2
	// elastic columns are omitted if they would be narrower than least. RULE is shortened before WHY becomes narrower than ample.
	least = 12
	ample = 32
)

// render renders a frame as at most height lines of at most width columns. It is a pure function.
func render(f frame, width, height int, s style) []string {
	lines := header(f, s)
	for i := range lines {
		lines[i] = clip(lines[i], width, s)
	}
	lines = append(lines, "")
	rows := f.Pods
	if room := max(height-len(lines)-1, 1); len(rows) > room {
		rows = rows[:room-1]
	}
	lines = append(lines, table(rows, f.Pods, width, s)...)
	if hidden := len(f.Pods) - len(rows); hidden > 0 {
		lines = append(lines, clip(fmt.Sprintf("and %d more", hidden), width, s))
	}
	return lines
}

// header returns the state of the Machine, its NodeMaintenance and the application with the strict budget.
func header(f frame, s style) []string {
	m := f.Maintenance
	maintenance := "not created yet"
	if m.Name != "" {
		maintenance = fmt.Sprintf("%s   %s   %d evacuating, %d pending, %d skipped", m.Name, stageText(m), m.Evacuating, m.Pending, m.Skipped)
	}
	return []string{
		fmt.Sprintf("Machine          %s   %s", f.Machine, seconds(f.Elapsed)),
		"  NodeMaintenance  " + orDash(f.Condition, s),
		"NodeMaintenance  " + maintenance,
		"  drain            " + orDash(join(m.Message, m.Blocking), s),
		fmt.Sprintf("Deployment web   %d of %d Pods ready, %d required", f.WebReady, webReplicas, webNeeded),
	}
}

// stageText omits the condition Drained in stage Complete, where it has no meaning.
func stageText(m maintenanceView) string {
	if m.Stage == string(v1alpha1.StageComplete) {
		return "stage " + m.Stage
	}
	return fmt.Sprintf("stage %s, Drained %s", m.Stage, m.Drained)
}

// join joins two sentences, unless the second one repeats the first.
func join(message, blocking string) string {
	if blocking == "" || message == "" || blocking == message {
		return cmp.Or(message, blocking)
	}
	return strings.TrimSuffix(message, ".") + ". " + blocking
}

func orDash(text string, s style) string {
	switch {
	case text != "":
		return text
	case s.Unicode:
		return "–"
	default:
		return "-"
	}
}

// table renders rows. The widths are those of all rows, so that the layout is stable when some are hidden.
func table(rows, all []podRow, width int, s style) []string {
	widths := fit(all, width)
	lines := []string{colored(line(widths, width, s, func(c column) string { return c.title }), bold, s)}
	for _, row := range rows {
		lines = append(lines, colored(line(widths, width, s, func(c column) string { return c.text(row) }), colorOf(row.State), s))
	}
	return lines
}

// fit returns the width of each column. Columns that are missing in the result are omitted.
func fit(rows []podRow, width int) map[string]int {
	widths, left := map[string]int{}, width
	for _, title := range rigid {
		wanted := naturalWidth(title, rows)
		if title == "POD" {
			wanted = min(wanted, max(width/2, least), width)
		}
		if wanted > left {
			break
		}
		widths[title] = wanted
		left -= wanted + gap
	}
	if rule := min(naturalWidth("RULE", rows), left-gap-ample); rule >= least {
		widths["RULE"] = rule
		left -= rule + gap
	}
	if left >= least {
		widths["WHY"] = left
	}
	return widths
}

func naturalWidth(title string, rows []podRow) int {
	width := len(title)
	for _, c := range columns {
		if c.title != title {
			continue
		}
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(c.text(row)))
		}
	}
	return width
}

func line(widths map[string]int, width int, s style, text func(column) string) string {
	var b strings.Builder
	for _, c := range columns {
		w, shown := widths[c.title]
		if !shown {
			continue
		}
		cell := clip(text(c), w, s)
		if c.title == "RULE" {
			cell = clipStart(text(c), w, s) // names of rules differ at their end
		}
		b.WriteString(cell + strings.Repeat(" ", w-utf8.RuneCountInString(cell)+gap))
	}
	return clip(strings.TrimRight(b.String(), " "), width, s)
}

// clip shortens a text at its end.
func clip(text string, width int, s style) string {
	runes, keep := []rune(text), width-utf8.RuneCountInString(s.ellipsis())
	switch {
	case len(runes) <= width:
		return text
	case keep < 1:
		return string(runes[:max(width, 0)])
	default:
		return strings.TrimRight(string(runes[:keep]), " ") + s.ellipsis()
	}
}

// clipStart shortens a text at its start.
func clipStart(text string, width int, s style) string {
	runes, keep := []rune(text), width-utf8.RuneCountInString(s.ellipsis())
	if len(runes) <= width || keep < 1 {
		return clip(text, width, s)
	}
	return s.ellipsis() + string(runes[len(runes)-keep:])
}

func (s style) ellipsis() string {
	if s.Unicode {
		return "…"
	}
	return "..."
}

// Colors, as parameters of SGR.
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	green  = "32"
	yellow = "33"
	red    = "31"
	cyan   = "36"
)

func colorOf(state podState) string {
	switch state {
	case stateGone, stateCompleted:
		return green
	case stateTerminating:
		return yellow
	case stateEvacuating:
		return cyan
	case stateStays, stateUnknown:
		return dim
	default:
		return plain
	}
}

func colored(text, color string, s style) string {
	if !s.Colors || color == plain {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
