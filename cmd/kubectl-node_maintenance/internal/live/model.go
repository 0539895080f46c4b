package live

import (
	"context"
	"slices"
	"time"

	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textinput"
	"charm.land/bubbles/v2/viewport"
	tea "charm.land/bubbletea/v2"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

// model is the state of the view.
type model struct {
	ctx     context.Context //nolint:containedctx // Bubble Tea's commands have no context
	source  Source
	updates <-chan update
	history *history

	last     update
	now      time.Time
	closed   map[string]bool // items whose children are hidden
	order    order
	filter   textinput.Model
	selected string // the id of an item
	rows     []row  // those that are not hidden
	top      int    // the first row on the screen
	columns  columns
	moved    bool // nothing has changed but which row is selected

	width, height int
	theme         theme
	page          *page // nil while the tree is shown
}

// page is the report of the command why.
type page struct {
	title  string
	text   viewport.Model
	cancel context.CancelFunc
}

func newModel(ctx context.Context, source Source, updates <-chan update) *model {
	filter := textinput.New()
	filter.Prompt = "/"
	return &model{
		ctx: ctx, source: source, updates: updates, history: newHistory(), now: source.Clock.Now(), closed: map[string]bool{}, filter: filter,
		width: 80, height: 24, theme: newTheme(true),
	}
}

// The messages of the view's own commands.
type (
	tick      time.Time
	explained struct {
		page *page
		text string
	}
)

// Init starts the clock, waits for the first status, and asks for the color of the terminal's background.
func (m *model) Init() tea.Cmd {
	return tea.Batch(m.await, m.tick(), tea.RequestBackgroundColor)
}

// await waits for the next status.
func (m *model) await() tea.Msg {
	u, open := <-m.updates
	if !open {
		return tea.QuitMsg{}
	}
	return u
}

// tick lets the elapsed times advance.
func (m *model) tick() tea.Cmd {
	return tea.Tick(time.Second, func(time.Time) tea.Msg { return tick(m.source.Clock.Now()) })
}

// Update handles a key, a status or an event of the terminal.
func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	var command tea.Cmd
	m.moved = false
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = message.Width, message.Height
	case tea.BackgroundColorMsg:
		m.theme = newTheme(message.IsDark())
	case tick:
		m.now, command = time.Time(message), m.tick()
	case update:
		m.last, m.now, command = message, message.time, m.await
		m.history.observe(message.status, message.time)
	case explained:
		if message.page == m.page {
			m.page.text.SetContent(message.text)
		}
	case tea.KeyPressMsg:
		command = m.press(message)
	}
	m.layOut()
	return m, command
}

// The keys.
var (
	keyUp     = key.NewBinding(key.WithKeys("up", "k"), key.WithHelp("↑↓", "move"))
	keyDown   = key.NewBinding(key.WithKeys("down", "j"))
	keyPageUp = key.NewBinding(key.WithKeys("pgup", "ctrl+b"))
	keyPageDn = key.NewBinding(key.WithKeys("pgdown", "ctrl+f"))
	keyTop    = key.NewBinding(key.WithKeys("home", "g"))
	keyBottom = key.NewBinding(key.WithKeys("end", "G"))
	keyClose  = key.NewBinding(key.WithKeys("left", "h"), key.WithHelp("←→", "fold"))
	keyOpen   = key.NewBinding(key.WithKeys("right", "l"))
	keyWhy    = key.NewBinding(key.WithKeys("enter"), key.WithHelp("enter", "why"))
	keyFilter = key.NewBinding(key.WithKeys("/"), key.WithHelp("/", "filter"))
	keySort   = key.NewBinding(key.WithKeys("s"), key.WithHelp("s", "sort"))
	keyBack   = key.NewBinding(key.WithKeys("esc"), key.WithHelp("esc", "back"))
	keyQuit   = key.NewBinding(key.WithKeys("q"), key.WithHelp("q", "quit"))
	keyStop   = key.NewBinding(key.WithKeys("ctrl+c"))
)

// press handles a key.
func (m *model) press(k tea.KeyPressMsg) tea.Cmd {
	switch {
	case key.Matches(k, keyStop):
		return tea.Interrupt
	case m.filter.Focused():
		return m.pressInFilter(k)
	case m.page != nil:
		return m.pressOnPage(k)
	}
	return m.pressInTree(k)
}

func (m *model) pressInTree(k tea.KeyPressMsg) tea.Cmd {
	switch {
	case key.Matches(k, keyQuit):
		return tea.Quit
	case key.Matches(k, keyUp):
		m.move(-1)
	case key.Matches(k, keyDown):
		m.move(1)
	case key.Matches(k, keyPageUp):
		m.move(-m.body())
	case key.Matches(k, keyPageDn):
		m.move(m.body())
	case key.Matches(k, keyTop):
		m.move(-len(m.rows))
	case key.Matches(k, keyBottom):
		m.move(len(m.rows))
	case key.Matches(k, keyClose):
		m.fold()
	case key.Matches(k, keyOpen):
		delete(m.closed, m.selected)
	case key.Matches(k, keySort):
		m.order = (m.order + 1) % orders
	case key.Matches(k, keyFilter):
		return m.filter.Focus()
	case key.Matches(k, keyBack):
		m.filter.Reset()
	case key.Matches(k, keyWhy):
		return m.explain()
	}
	return nil
}

// pressInFilter edits the filter. Enter keeps it, and Esc removes it.
func (m *model) pressInFilter(k tea.KeyPressMsg) tea.Cmd {
	switch {
	case key.Matches(k, keyWhy):
		m.filter.Blur()
		return nil
	case key.Matches(k, keyBack):
		m.filter.Reset()
		m.filter.Blur()
		return nil
	}
	var command tea.Cmd
	m.filter, command = m.filter.Update(k)
	return command
}

func (m *model) pressOnPage(k tea.KeyPressMsg) tea.Cmd {
	if key.Matches(k, keyBack, keyQuit) {
		m.page.cancel()
		m.page = nil
		return nil
	}
	var command tea.Cmd
	m.page.text, command = m.page.text.Update(k)
	return command
}

// index returns the position of the selected row, or -1.
func (m *model) index() int {
	return slices.IndexFunc(m.rows, func(r row) bool { return r.id == m.selected })
}

// move selects another row.
func (m *model) move(by int) {
	if len(m.rows) > 0 {
		m.selected = m.rows[min(max(m.index()+by, 0), len(m.rows)-1)].id
	}
	m.moved = true
}

// fold hides what is below the selected row, or selects the row above it that can be folded.
func (m *model) fold() {
	at := m.index()
	if at < 0 {
		return
	}
	if r := m.rows[at]; len(r.children) > 0 && !r.closed {
		m.closed[r.id] = true
		return
	}
	for i := at - 1; i >= 0; i-- {
		if m.rows[i].depth < m.rows[at].depth {
			m.selected = m.rows[i].id
			return
		}
	}
}

// explain opens the page of the selected row.
func (m *model) explain() tea.Cmd {
	at := m.index()
	if at < 0 || m.rows[at].target == (Target{}) {
		return nil
	}
	ctx, cancel := context.WithCancel(m.ctx)
	p := &page{title: "why " + m.rows[at].title(), text: viewport.New(), cancel: cancel}
	p.text.SoftWrap = true
	p.text.SetContent("Reading …")
	m.page = p
	target := m.rows[at].target
	return func() tea.Msg {
		text, err := m.source.Explain(ctx, target)
		if err != nil {
			text = "error: " + terminal.Clean(err.Error(), maxText)
		}
		return explained{p, text}
	}
}

// layOut computes the rows, and keeps the selected one on the screen.
func (m *model) layOut() {
	if m.page != nil {
		m.page.text.SetWidth(m.width)
		m.page.text.SetHeight(max(m.height-2, 1))
	}
	m.filter.SetWidth(max(m.width-2, 1))
	if m.last.status == nil {
		return
	}
	if !m.moved { // there may be thousands of rows, and a key that is held
		m.updateRows()
	}
	at := max(m.index(), 0)
	m.top = min(m.top, at, max(len(m.rows)-m.body(), 0))
	m.top = max(m.top, at-m.body()+1)
}

// updateRows computes the rows and the columns.
func (m *model) updateRows() {
	at := max(m.index(), 0) // the next row is selected if the selected one is gone
	items := tree(m.last.status, m.history, m.now)
	sorted(items, m.order)
	closed := m.closed
	if text := m.filter.Value(); text != "" {
		items, closed = filtered(items, text), nil
	}
	m.rows = rows(items, closed)
	if m.index() < 0 {
		m.selected = ""
		if len(m.rows) > 0 {
			m.selected = m.rows[min(at, len(m.rows)-1)].id
		}
	}
	m.columns = m.fit()
}
