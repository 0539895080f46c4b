package main

import (
	"fmt"
	"time"
)

// drainScenario drains one node of ten, whose pods share a tight budget with those of the others: the common case, in which
// all depends on how soon room in the budget is used.
var drainScenario = scenario{
	name:       "drain",
	about:      "20 pods of a Deployment of 200 on one node of 10, maxUnavailable 2, ready after 1 s, gone after 1 s",
	load:       load{nodes: 10, podsPerNode: 20, maxUnavailable: 2, readyDelay: time.Second, deletionDelay: time.Second},
	candidates: []candidate{limitCandidate, capnmCandidate, kubectlCandidate, capiCandidate},
	judge:      judgeDrain,
}

func judgeDrain(o options, samples []sample) []string {
	var wrong []string
	for _, s := range samples {
		if s.Candidate != capnmCandidate.name {
			continue
		}
		if s.Refused > 0 {
			wrong = append(wrong, fmt.Sprintf("%d of our evictions were refused: %v", s.Refused, s.Answers))
		}
		if s.Evictions != s.Pods {
			wrong = append(wrong, fmt.Sprintf("we have made %d evictions for %d pods", s.Evictions, s.Pods))
		}
		wrong = append(wrong, s.Violations...)
	}
	if ratio := ratioOf(samples); o.maxRatio > 0 && ratio > o.maxRatio {
		wrong = append(wrong, fmt.Sprintf("we have taken %.2f times the limit, more than %.2f", ratio, o.maxRatio))
	}
	return wrong
}

// ratioOf is how many times the limit we have taken; 0 if one of the two didn't run.
func ratioOf(samples []sample) float64 {
	limit := median(values(samples, limitCandidate.name, func(s sample) float64 { return s.Seconds }))
	if limit == 0 {
		return 0
	}
	return median(values(samples, capnmCandidate.name, func(s sample) float64 { return s.Seconds })) / limit
}
