package main

import (
	"regexp"
	"slices"
	"strings"
)

// vocabulary is what this repository doesn't say, and what it says instead. In a pattern, a space is any white space and ~ is up
// to two words.
var vocabulary = compile(map[string]string{
	`(nobody|somebody|whoever|anybody|everybody)`:             "another actor, another controller, a user, anyone who",
	`(has|have|had|no|make|makes|making|made|gets|take) room`: "the budget allows N disruptions; capacity; add replicas first",
	`room is (taken|given)`:                                   "the budget allows N disruptions",
	`flights?`:                                                "in-flight eviction",
	`under way`:                                               "in progress, in flight",
	`(its|their|whose) turns?`:                                "waiting for ...; active",
	`turns? comes?`:                                           "waiting for Pods with a lower drain order to terminate",
	`broken`:                                                  "invalid",
	`mend(s|ed|ing)?`:                                         "fix",
	`(take|takes|taken|took|taking|give|gives|given|gave|giving)~ back`: "restore, revert, clean up, remove",
	`as (it|they) (was|were|has been|have been) found`:                  "restored to its recorded state",
	`(leave|leaves|left) as found`:                                      "restore",
	`minds?`:                                                            "own, watch, handle; note that",
	`(hold|holds|held|holding)~ up`:                                     "block, wait for",
	`(hang|hangs|hung) on`:                                              "wait for, depend on",
	`anew`:                                                              "again, recreate",
	`(make|makes|made|making) again`:                                    "recreate",
	`(look|looks|looked|looking) again`:                                 "reconcile again, requeue",
	`(try|tries|tried) again at`:                                        "retry after",
	`(call|calls|called|calling)~ off`:                                  "cancel, withdraw",
	`(time|times) (is|are|was|were) (up|over)`:                          "deadline exceeded, timed out",
	`out of time`:                                                       "timed out",
	`known as it was written`:                                           "stale cache, not yet observed",
	`last calls?`:                                                       "final eviction attempt",
	`side by side`:                                                      "concurrent, in parallel",
	`by (itself|themselves)`:                                            "automatically",
	`of (its|their|his) own`:                                            "separate, own",
	`likewise`:                                                          "also, so is",
	`is none`:                                                           "is not, there is no",
	`(goes|go|went) by`:                                                 "use, follow",
	`must go`:                                                           "must be evacuated, must be drained",
	`(leave|leaves|left|let|lets|leaving)~ alone`:                       "skip, leave unchanged",
	`be had`:                     "is available",
	`(is|are|was|were) had gone`: "is deleted",
})

// allowed are phrases that a pattern matches and that mean what they say in Kubernetes and elsewhere.
var allowed = regexp.MustCompile(`(?i)in[- ]flight|(keep|bear) in mind|never mind|there is none|Static Pods alone`)

type entry struct {
	pattern *regexp.Regexp
	say     string
}

type finding struct {
	offset    int
	text, say string
}

func compile(patterns map[string]string) []entry {
	var entries []entry
	for pattern, say := range patterns {
		pattern = strings.ReplaceAll(strings.ReplaceAll(pattern, " ", `\s+`), "~", `(\s+[\w']+){0,2}`)
		entries = append(entries, entry{regexp.MustCompile(`(?i)\b` + pattern + `\b`), say})
	}
	return entries
}

// findings returns what the text should say differently, in the order of the text.
func findings(text string) []finding {
	text = allowed.ReplaceAllStringFunc(text, blank)
	var found []finding
	for _, entry := range vocabulary {
		for _, at := range entry.pattern.FindAllStringIndex(text, -1) {
			found = append(found, finding{at[0], text[at[0]:at[1]], entry.say})
		}
	}
	slices.SortFunc(found, func(a, b finding) int { return a.offset - b.offset })
	return found
}
