package realnode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// Entry is an entry of a node's journal: something that its workload or its logind did.
type Entry struct {
	At time.Time
	// Who is the name of a Pod, or spec.Who for logind.
	Who, What string
}

// Journal is what happened on a node, in order.
type Journal []Entry

func parseJournal(content string) Journal {
	var journal Journal
	for line := range strings.Lines(content) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(fields) < 3 {
			continue // the power was cut during the write
		}
		if at, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			journal = append(journal, Entry{At: time.Unix(0, at), Who: fields[1], What: fields[2]})
		}
	}
	slices.SortStableFunc(journal, func(a, b Entry) int { return a.At.Compare(b.At) })
	return journal
}

// Of returns what who did, in order.
func (j Journal) Of(who string) []string {
	var did []string
	for _, entry := range j {
		if entry.Who == who {
			did = append(did, entry.What)
		}
	}
	return did
}

// First returns when who did what for the first time.
func (j Journal) First(who, what string) (time.Time, bool) {
	for _, entry := range j {
		if entry.Who == who && entry.What == what {
			return entry.At, true
		}
	}
	return time.Time{}, false
}

// Count returns how often who did what.
func (j Journal) Count(who, what string) int {
	count := 0
	for _, entry := range j {
		if entry.Who == who && entry.What == what {
			count++
		}
	}
	return count
}

// Since returns the entries at start or later.
func (j Journal) Since(start time.Time) Journal {
	i := slices.IndexFunc(j, func(e Entry) bool { return !e.At.Before(start) })
	if i < 0 {
		return nil
	}
	return j[i:]
}

func (j Journal) String() string {
	var b strings.Builder
	for _, entry := range j {
		fmt.Fprintf(&b, "%s %s %s\n", entry.At.UTC().Format("15:04:05.000"), entry.Who, entry.What)
	}
	return b.String()
}

// Locks returns the holders of logind's locks at the end of the journal.
func (j Journal) Locks() []string {
	held := map[string]int{}
	for _, entry := range j {
		if entry.What == spec.Booted {
			held = map[string]int{}
		}
		if who, taken := strings.CutPrefix(entry.What, spec.LockTaken); taken {
			held[who]++
		} else if who, released := strings.CutPrefix(entry.What, spec.LockReleased); released {
			held[who]--
		}
	}
	var holders []string
	for who, count := range held {
		if count > 0 {
			holders = append(holders, who)
		}
	}
	slices.Sort(holders)
	return holders
}
