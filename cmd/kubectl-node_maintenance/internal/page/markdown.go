package page

import (
	"fmt"
	"io"
	"strings"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// ticketWaits is the number of waits in a ticket.
const ticketWaits = 15

// ticketApplications is the number of applications in a ticket.
const ticketApplications = 15

// ticketOutcomes is the number of drains in a ticket whose outcome is listed.
const ticketOutcomes = 15

// WriteMarkdown writes a history as Markdown for a ticket.
func WriteMarkdown(w io.Writer, h *recording.History) error {
	v := viewOf(h)
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n", escape(v.Title), escape(v.Period))
	for _, sentence := range append(v.Summary, v.Warnings...) {
		fmt.Fprintf(&b, "%s\n", escape(sentence))
	}
	if len(v.Drains) > 0 {
		b.WriteString("\n## Drains\n\n")
	}
	for _, d := range v.Drains {
		fmt.Fprintf(&b, "- **%s**: %s\n", escape(d.Title), escape(strings.Join(d.Summary, " ")))
	}
	v.writeApplications(&b, h)
	v.writeOutcomes(&b)
	if len(v.Advice) > 0 {
		b.WriteString("\n## What could be changed\n\n")
	}
	for _, a := range v.Advice {
		fmt.Fprintf(&b, "- **%s** %s.", escape(a.Name), escape(a.Text))
		if a.Fix != "" {
			b.WriteString(" " + escape(a.Fix))
		}
		if a.Guide != "" {
			fmt.Fprintf(&b, " [Guide](%s)", a.Guide)
		}
		b.WriteByte('\n')
	}
	if len(v.Waits) > 0 {
		b.WriteString("\n## Longest waits\n\n| waited | Pod | Node | for | from (UTC) |\n|---|---|---|---|---|\n")
	}
	for _, wait := range v.Waits[:min(len(v.Waits), ticketWaits)] {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", wait.For, escape(wait.Pod), escape(wait.Node), escape(wait.Name), wait.Start)
	}
	if more := len(v.Waits) + v.MoreWaits - ticketWaits; more > 0 {
		fmt.Fprintf(&b, "\n%d shorter waits are not listed.\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return errors.Wrap(err, "writing the report")
}

// writeApplications writes a line for each affected application, starting with the most affected one.
func (v *view) writeApplications(b *strings.Builder, h *recording.History) {
	if len(h.Effects) > 0 {
		b.WriteString("\n## Applications\n\n")
	}
	unaffected, more := 0, 0
	for i := range h.Effects {
		e := &h.Effects[i]
		switch {
		case !e.IsAffected() && e.Unread == 0:
			unaffected++
		case i-unaffected >= ticketApplications:
			more++
		default:
			fmt.Fprintf(b, "- **%s**: %s\n", escape(v.named(e.Cluster, e.Title())), escape(clean(e.Sentence())))
		}
	}
	if more > 0 {
		fmt.Fprintf(b, "- %d less affected applications are not listed.\n", more)
	}
	if unaffected > 0 {
		when := "all the time"
		if h.IsLate() {
			when = "while they were recorded"
		}
		fmt.Fprintf(b, "- %s had all replicas ready %s.\n", text.Count(unaffected, "application"), when)
	}
}

// escape makes the text of a cluster plain text in Markdown, also in a table: no markup, no links, no mentions.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch r {
		case '\\', '`', '*', '_', '[', ']', '|', '#', '~', '!':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '<', '>', '&', '@', '$': // GitHub and GitLab render mathematics between dollar signs
			fmt.Fprintf(&b, "&#%d;", r)
		default:
			b.WriteRune(r)
		}
	}
	return noLinks.Replace(b.String())
}

// noLinks prevents the links that GitHub and GitLab make of plain addresses.
var noLinks = strings.NewReplacer("://", "&#58;//", "www.", "www&#46;", "mailto:", "mailto&#58;", "xmpp:", "xmpp&#58;")
