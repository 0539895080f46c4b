package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pkg/errors"
)

// figures is the outcome of a scenario without candidates.
type figures struct {
	name, about string
	rows        []figure
	failed      []string
}

// figure is a number or another JSON value.
type figure struct {
	key, about string
	value      any
}

// add adds a figure.
func (f *figures) add(key string, value any, about string) {
	if number, ok := value.(float64); ok {
		value = round(number)
	}
	f.rows = append(f.rows, figure{key, about, value})
}

// promise records a failure unless kept is true.
func (f *figures) promise(kept bool, format string, args ...any) {
	if !kept {
		f.failed = append(f.failed, fmt.Sprintf(format, args...))
	}
}

// number returns the value of a figure.
func (f *figures) number(key string) (float64, bool) {
	at := slices.IndexFunc(f.rows, func(row figure) bool { return row.key == key })
	if at < 0 {
		return 0, false
	}
	switch value := f.rows[at].value.(type) {
	case float64:
		return value, true
	case int:
		return float64(value), true
	}
	return 0, false
}

func (f *figures) title() string { return f.name }

func (f *figures) failures() []string { return f.failed }

func (f *figures) flat() map[string]any {
	content := map[string]any{"about": f.about}
	for _, row := range f.rows {
		content[row.key] = row.value
	}
	return content
}

func (f *figures) print(w io.Writer) error {
	rows := &strings.Builder{}
	for _, row := range f.rows {
		fmt.Fprintf(rows, "%v\t%s\t%s\t\n", row.value, row.key, row.about)
	}
	_, err := fmt.Fprintf(w, "\n%s: %s\n\n%s", f.name, f.about, align(rows.String(), 0))
	return errors.Wrap(err, "writing the figures")
}
