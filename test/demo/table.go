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

// style is what the output may use.
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
	// rigid columns have their natural width or are left out, the last one first. RULE and WHY share what they leave.
	rigid = []string{"POD", "STATE", "VERDICT", "ORDER"}
)

const (
	gap = 2
	// elastic columns are left out where they would be narrower than least; RULE is shortened before WHY is narrower than ample.
	least = 12
	ample = 32
)

// render draws a frame into lines of at most width columns, of which there are at most height. It is a pure function.
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

// header says how the Machine, its NodeMaintenance and the application with the tight budget are.
func header(f frame, s style) []string {
	m := f.Maintenance
	maintenance := "not asked for yet"
	if m.Name != "" {
		maintenance = fmt.Sprintf("%s   %s   %d evacuating, %d pending, %d skipped", m.Name, stageText(m), m.Evacuating, m.Pending, m.Skipped)
	}
	return []string{
		fmt.Sprintf("Machine          %s   %s", f.Machine, seconds(f.Elapsed)),
		"  NodeMaintenance  " + orDash(f.Condition, s),
		"NodeMaintenance  " + maintenance,
		"  drain            " + orDash(join(m.Message, m.Blocking), s),
		fmt.Sprintf("Deployment web   %d of %d Pods ready, the budget demands %d", f.WebReady, webReplicas, webNeeded),
	}
}

// stageText leaves out what is drained in stage Complete: it is over then, and the condition doesn't tell.
func stageText(m maintenanceView) string {
	if m.Stage == string(v1alpha1.StageComplete) {
		return "stage " + m.Stage
	}
	return fmt.Sprintf("stage %s, Drained %s", m.Stage, m.Drained)
}

// join puts two sentences together, of which the second may say no more than the first.
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

// table draws rows; the widths are those of all rows, so that the table stands still when some are hidden.
func table(rows, all []podRow, width int, s style) []string {
	widths := fit(all, width)
	lines := []string{colored(line(widths, width, s, func(c column) string { return c.title }), bold, s)}
	for _, row := range rows {
		lines = append(lines, colored(line(widths, width, s, func(c column) string { return c.text(row) }), colorOf(row.State), s))
	}
	return lines
}

// fit decides how wide each column is; one that isn't in the result is left out.
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
			cell = clipStart(text(c), w, s) // rules differ in what their names end with
		}
		b.WriteString(cell + strings.Repeat(" ", w-utf8.RuneCountInString(cell)+gap))
	}
	return clip(strings.TrimRight(b.String(), " "), width, s)
}

// clip shortens a text to so many columns, by its end.
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

// clipStart shortens a text by its start.
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
