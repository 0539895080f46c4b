package main

// result is the outcome of a comparison.
type result struct {
	Scenario string
	About    string
	Options  options
	Load     load
	// Candidates in the order of the scenario, including those that did not run.
	Candidates []candidate
	Samples    []sample
	Ratio      float64 // of the limit
	Evacuating float64 // of the limit that also creates Evacuations
	Failures   []string
}

func newResult(s scenario, l load, candidates []candidate, o options, samples []sample) *result {
	return &result{
		Scenario: s.name, About: s.about, Options: o, Load: l, Candidates: candidates,
		Samples: samples, Ratio: ratioOf(samples, limitCandidate), Evacuating: ratioOf(samples, evacuatingCandidate), Failures: judge(o, l, samples),
	}
}

func (r *result) title() string { return r.Scenario }

func (r *result) failures() []string { return r.Failures }

// flat returns the medians. The key "absent" has the candidates that were not measured.
func (r *result) flat() map[string]any {
	content := map[string]any{
		"about": r.About, "runs": r.Options.runs, "samples": r.Samples,
		"nodes": r.Load.nodes, "nodes_drained": r.Load.drained, "pods_per_node": r.Load.podsPerNode,
	}
	if r.Ratio > 0 {
		content["ratio"] = round(r.Ratio)
	}
	if r.Evacuating > 0 {
		content["evacuating_ratio"] = round(r.Evacuating)
	}
	absent := []string{}
	for _, c := range r.Candidates {
		seconds := values(r.Samples, c.name, func(s sample) float64 { return s.Seconds })
		if len(seconds) == 0 {
			absent = append(absent, c.name)
			continue
		}
		content[c.name+"_runs"] = len(seconds)
		content[c.name+"_seconds"] = round(median(seconds))
		content[c.name+"_evictions"] = median(values(r.Samples, c.name, func(s sample) float64 { return float64(s.Evictions) }))
		content[c.name+"_refused"] = median(values(r.Samples, c.name, func(s sample) float64 { return float64(s.Refused) }))
		content[c.name+"_writes_per_pod"] = round(median(values(r.Samples, c.name, func(s sample) float64 { return s.WritesPerPod })))
		content[c.name+"_all_writes_per_pod"] = round(median(values(r.Samples, c.name, func(s sample) float64 { return s.AllWritesPerPod })))
		content[c.name+"_cpu_milliseconds_per_pod"] = round(median(values(r.Samples, c.name, func(s sample) float64 { return s.CPUPerPod })))
		content[c.name+"_evictions_per_pod"] = round(median(values(r.Samples, c.name, sample.evictionsPerPod)))
		content[c.name+"_evicted_per_pod"] = round(median(values(r.Samples, c.name, func(s sample) float64 { return s.EvictedPerPod })))
		content[c.name+"_breakdown"] = r.breakdownOf(c.name)
	}
	content["absent"] = absent
	return content
}

// breakdownOf returns the median of each number.
func (r *result) breakdownOf(name string) breakdown {
	of := func(number func(breakdown) float64) float64 {
		return round(median(values(r.Samples, name, func(s sample) float64 { return number(s.Breakdown) })))
	}
	return breakdown{
		Start:       of(func(b breakdown) float64 { return b.Start }),
		Rounds:      int(of(func(b breakdown) float64 { return float64(b.Rounds) })),
		RoundMedian: of(func(b breakdown) float64 { return b.RoundMedian }),
		RoundMax:    of(func(b breakdown) float64 { return b.RoundMax }),
		Idle:        of(func(b breakdown) float64 { return b.Idle }),
		Calls:       of(func(b breakdown) float64 { return b.Calls }),
		End:         of(func(b breakdown) float64 { return b.End }),
		Own:         of(func(b breakdown) float64 { return b.Own }),
	}
}
