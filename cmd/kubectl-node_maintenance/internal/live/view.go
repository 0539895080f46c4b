package live

import (
	"fmt"
	"strings"
	"time"

	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
	progressbar "charm.land/bubbles/v2/progress"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

// The layout of the screen, from top to bottom: a title, problems, the header of the columns, the rows, the selected row in full, the keys.
const (
	maxProblems  = 2
	detailLines  = 3
	leastDetails = 14 // minimum height of a screen that shows the selected row in full

	gap = "  "
	// wide is the width below which kinds and bars are short and the estimate is omitted, leastForProgress that below which the progress is
	// omitted, too.
	wide             = 110
	leastForProgress = 60
)

// shortKinds are the kinds on narrow screens.
var shortKinds = map[string]string{"MachineDeployment": "MD", "MachinePool": "MP", "ControlPlane": "CP", kindMaintenance: "NM"}

// theme is the set of styles for a dark or a light background.
type theme struct {
	bold, faint, warning, good, selected lipgloss.Style

	bar  progressbar.Model
	help help.Model
}

func newTheme(dark bool) theme {
	pick := lipgloss.LightDark(dark)
	style := func(light, dark string) lipgloss.Style {
		return lipgloss.NewStyle().Foreground(pick(lipgloss.Color(light), lipgloss.Color(dark)))
	}
	t := theme{
		bold: lipgloss.NewStyle().Bold(true), faint: style("#6c6c6c", "#8a8a8a"), warning: style("#af5f00", "#ffaf00"),
		good: style("#008700", "#87d787"), selected: lipgloss.NewStyle().Reverse(true),
		bar: progressbar.New(progressbar.WithoutPercentage(), progressbar.WithFillCharacters('█', '░')), help: help.New(),
	}
	t.bar.FullColor, t.bar.EmptyColor = t.good.GetForeground(), t.faint.GetForeground()
	t.help.Styles.ShortKey, t.help.Styles.ShortDesc, t.help.Styles.ShortSeparator, t.help.Styles.Ellipsis = t.bold, t.faint, t.faint, t.faint
	return t
}

// View draws the screen.
func (m *model) View() tea.View {
	lines := m.treeLines()
	if m.page != nil {
		lines = m.pageLines()
	}
	view := tea.NewView(strings.Join(lines, "\n"))
	view.AltScreen = true
	return view
}

func (m *model) pageLines() []string {
	scroll := key.NewBinding(key.WithKeys("up"), key.WithHelp("↑↓", "scroll"))
	return []string{m.theme.bold.Render(cut(m.page.title, m.width)), m.page.text.View(), m.keys(scroll, keyBack)}
}

func (m *model) treeLines() []string {
	if m.last.status == nil {
		return []string{"Reading …"}
	}
	title := "Drains"
	if m.last.status.Context != "" {
		title += " of the " + m.last.status.Context
	}
	lines := []string{m.theme.bold.Render(cut(title, m.width))}
	for _, problem := range m.problems() {
		lines = append(lines, m.theme.warning.Render(cut("Not read: "+problem, m.width)))
	}
	lines = append(lines, m.theme.faint.Render(m.columns.join(columnTitles)))
	for i := range m.body() {
		line := ""
		if at := m.top + i; at < len(m.rows) {
			line = m.rowLine(m.columns, m.rows[at])
		} else if at == 0 {
			line = m.emptyLine()
		}
		lines = append(lines, line)
	}
	return append(append(lines, m.details()...), m.footer())
}

// body returns the number of lines for rows.
func (m *model) body() int {
	return max(m.height-3-len(m.problems())-len(m.details()), 1)
}

func (m *model) problems() []string {
	if m.last.status == nil {
		return nil
	}
	gaps := m.last.status.Gaps
	named := len(gaps)
	if named > maxProblems {
		named = maxProblems - 1 // the last line says how many more there are
	}
	problems := make([]string, 0, maxProblems)
	for _, gap := range gaps[:named] {
		problems = append(problems, terminal.Clean(gap, maxText))
	}
	if more := len(gaps) - named; more > 0 {
		problems = append(problems, fmt.Sprintf("%d more, which the command status names without --watch", more))
	}
	return problems
}

func (m *model) emptyLine() string {
	switch {
	case m.filter.Value() != "":
		return "Nothing matches the filter."
	case m.last.complete:
		return "There are no Machines and no NodeMaintenances."
	default:
		return "Reading …"
	}
}

// cells are the texts of a row, one for each column.
type cells [columnCount]string

const (
	columnName = iota
	columnProgress
	columnTime
	columnLeft
	columnState
	columnCount
)

var columnTitles = cells{"", "PROGRESS", "TIME", "LEFT", "STATE"}

// columns are the widths of the columns; zero for those that the screen is too narrow for.
type columns [columnCount]int

// fit fits the columns of all rows to the screen, so that they do not move when rows are scrolled.
func (m *model) fit() columns {
	var c columns
	for i := range m.rows {
		for column, cell := range m.cells(m.rows[i]) {
			c[column] = max(c[column], ansi.StringWidth(cell), len(columnTitles[column]))
		}
	}
	c[columnName] = min(c[columnName], m.width*2/5)
	if m.width < wide {
		c[columnLeft] = 0
	}
	if m.width < leastForProgress {
		c[columnProgress] = 0
	}
	c[columnState] = m.width
	for _, width := range c[:columnState] {
		if width > 0 {
			c[columnState] -= width + len(gap)
		}
	}
	c[columnState] = max(c[columnState], 0)
	return c
}

// join returns a line of cells, each as wide as its column.
func (c columns) join(row cells) string {
	var shown []string
	for column, width := range c {
		if width > 0 {
			shown = append(shown, pad(row[column], width))
		}
	}
	return strings.TrimRight(strings.Join(shown, gap), " ")
}

func (m *model) cells(r row) cells {
	mark, title := "  ", r.title()
	switch {
	case r.closed:
		mark = "▸ "
	case len(r.children) > 0:
		mark = "▾ "
	}
	if short, found := shortKinds[r.kind]; found && m.width < wide {
		title = strings.TrimSpace(short + " " + r.name)
	}
	c := cells{columnName: strings.Repeat("  ", r.depth) + mark + title, columnTime: age(r.elapsed), columnLeft: estimate(r.progress.left), columnState: r.text()}
	if r.progress.total > 0 {
		bar := m.theme.bar
		bar.SetWidth(4)
		if m.width >= wide {
			bar.SetWidth(8)
		}
		c[columnProgress] = bar.ViewAs(float64(r.progress.done)/float64(r.progress.total)) + fmt.Sprintf(" %d/%d", r.progress.done, r.progress.total)
	}
	return c
}

func (m *model) rowLine(c columns, r row) string {
	texts := m.cells(r)
	texts[columnName] = middle(texts[columnName], c[columnName])
	if r.id == m.selected {
		return m.theme.selected.Render(pad(ansi.Strip(c.join(texts)), m.width))
	}
	style := lipgloss.NewStyle()
	switch {
	case r.complete:
		style = m.theme.good
	case r.waits != "":
		style = m.theme.warning
	case r.elapsed == 0:
		style = m.theme.faint
	}
	texts[columnTime] = m.theme.faint.Render(texts[columnTime])
	texts[columnState] = style.Render(cut(texts[columnState], c[columnState]))
	return c.join(texts)
}

// details returns the lines with the full text of the selected row.
func (m *model) details() []string {
	if m.height < leastDetails {
		return nil
	}
	lines := make([]string, detailLines)
	lines[0] = m.theme.faint.Render(strings.Repeat("─", max(m.width, 0)))
	if at := m.index(); at >= 0 {
		text := m.rows[at].title()
		if state := m.rows[at].text(); state != "" {
			text += ": " + state
		}
		if left := m.rows[at].progress.left; left > 0 {
			text += " (" + estimate(left) + " left)"
		}
		wrapped := strings.Split(ansi.Wrap(text, max(m.width, 1), ""), "\n")
		if most := detailLines - 1; len(wrapped) > most {
			wrapped = append(wrapped[:most-1], cut(strings.Join(wrapped[most-1:], " "), m.width))
		}
		copy(lines[1:], wrapped)
	}
	return lines
}

// footer returns the filter while it is edited, else the keys.
func (m *model) footer() string {
	if m.filter.Focused() {
		return m.filter.View()
	}
	bySort, byFilter := keySort, keyFilter
	bySort.SetHelp("s", "sort: "+m.order.String())
	if text := m.filter.Value(); text != "" {
		byFilter.SetHelp("/", "filter: "+terminal.Clean(text, maxName))
	}
	return m.keys(keyUp, keyClose, keyWhy, byFilter, bySort, keyQuit)
}

func (m *model) keys(bindings ...key.Binding) string {
	m.theme.help.SetWidth(m.width)
	return m.theme.help.ShortHelpView(bindings)
}

// age returns the elapsed time as text, empty if it is unknown.
func age(elapsed time.Duration) string {
	if elapsed == 0 {
		return ""
	}
	return duration.ShortHumanDuration(elapsed)
}

func estimate(left time.Duration) string {
	if left == 0 {
		return ""
	}
	return "~" + duration.ShortHumanDuration(left)
}

// cut shortens a text to a width.
func cut(text string, width int) string { return ansi.Truncate(text, max(width, 0), "…") }

// pad shortens or extends a text to a width.
func pad(text string, width int) string {
	text = cut(text, width)
	return text + strings.Repeat(" ", max(width-ansi.StringWidth(text), 0))
}

// middle shortens a text in its middle: the names of Machines and Pods differ at their end.
func middle(text string, width int) string {
	total := ansi.StringWidth(text)
	if total <= width || width < 2 {
		return cut(text, width)
	}
	tail := (width - 1) / 3
	return ansi.Truncate(text, width-1-tail, "") + "…" + ansi.TruncateLeft(text, total-tail, "")
}
