package main

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// changes returns a line for each change between two frames, for output that cannot be redrawn. Pods with the same change share a
// line. It is a pure function.
func changes(before, now frame) []string {
	var lines []string
	at := fmt.Sprintf("%7s  ", seconds(now.Elapsed))
	b, m := before.Maintenance, now.Maintenance
	if m.Name != "" && (b.Name != m.Name || stageText(b) != stageText(m)) {
		lines = append(lines, at+"NodeMaintenance: "+stageText(m))
	}
	if reasonOf(now.Condition) != reasonOf(before.Condition) && now.Condition != "" {
		lines = append(lines, at+"Machine: "+now.Condition)
	}
	if m.Message != b.Message && m.Message != "" {
		lines = append(lines, at+"drain: "+m.Message)
	}
	for _, group := range podChanges(before.Pods, now.Pods) {
		lines = append(lines, at+group)
	}
	return lines
}

// reasonOf removes the counts from a condition.
func reasonOf(condition string) string {
	reason, _, _ := strings.Cut(condition, ":")
	return reason
}

// podChanges returns a text for each group of Pods that have changed to the same state, or wait for the same reason.
func podChanges(before, now []podRow) []string {
	was := map[types.UID]podRow{}
	for _, row := range before {
		was[row.uid] = row
	}
	type kind struct {
		state podState
		why   string
	}
	var kinds []kind
	pods := map[kind][]string{}
	for _, row := range now {
		old := was[row.uid]
		if row.State == stateUnknown || old.State == row.State && (old.Why == row.Why || row.Why == "") {
			continue
		}
		k := kind{row.State, row.Why}
		if len(pods[k]) == 0 {
			kinds = append(kinds, k)
		}
		pods[k] = append(pods[k], row.Pod)
	}
	texts := make([]string, 0, len(kinds))
	for _, k := range kinds {
		text := fmt.Sprintf("%-11s  %s", k.state, few(pods[k]))
		if k.why != "" {
			text += ": " + k.why
		}
		texts = append(texts, text)
	}
	return texts
}

// few lists the first of many names.
func few(names []string) string {
	const shown = 2
	if len(names) <= shown+1 {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], " "), len(names)-shown)
}
