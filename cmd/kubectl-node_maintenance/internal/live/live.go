package live

import (
	"context"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/pkg/errors"
	"golang.org/x/term"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// The shortest time between two updates.
const (
	redrawInterval = 200 * time.Millisecond
	lineInterval   = time.Second
)

// ErrInterrupted means that the user pressed Ctrl-C.
var ErrInterrupted = errors.New("interrupted")

// Source is where statuses come from.
type Source struct {
	// Changed receives a value when the status may have changed.
	Changed <-chan struct{}
	// Status returns the present status, and whether it is complete: the first lists of all watches have been read.
	Status func() (status *report.Status, complete bool)
	// Explain returns the report of the command why.
	Explain func(context.Context, Target) (string, error)
	// NoColor disables colors.
	NoColor bool
	// Clock is the time that ages count from.
	Clock clock.WithTicker
}

// update is a status at a time.
type update struct {
	status   *report.Status
	complete bool
	time     time.Time
}

// Run shows the statuses until the context is done or the user ends the view: as a tree if in and out are terminals, else as lines.
func Run(ctx context.Context, source Source, in io.Reader, out io.Writer) error {
	input, isFile := in.(*os.File)
	output, isOutput := out.(*os.File)
	if !isFile || !isOutput || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(input.Fd())) || !term.IsTerminal(int(output.Fd())) {
		return writeLines(ctx, source, out)
	}
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(input), tea.WithOutput(output), tea.WithoutSignalHandler()}
	if source.NoColor {
		options = append(options, tea.WithColorProfile(colorprofile.Ascii))
	}
	_, err := tea.NewProgram(newModel(ctx, source, updates(ctx, source, redrawInterval)), options...).Run()
	switch {
	case errors.Is(err, tea.ErrInterrupted), ctx.Err() != nil:
		return ErrInterrupted
	default:
		return errors.Wrap(err, "drawing the drains")
	}
}

// updates sends the status whenever it has changed, at most once in an interval.
func updates(ctx context.Context, source Source, interval time.Duration) <-chan update {
	channel := make(chan update)
	go func() {
		defer close(channel)
		for {
			select {
			case <-ctx.Done():
				return
			case <-source.Changed:
			}
			u := update{time: source.Clock.Now()}
			u.status, u.complete = source.Status()
			pause := source.Clock.NewTimer(interval)
			select {
			case <-ctx.Done():
				return
			case channel <- u:
			}
			select {
			case <-ctx.Done():
				return
			case <-pause.C():
			}
		}
	}()
	return channel
}
