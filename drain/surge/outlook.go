package surge

// Outlook is what the evacuator is expected to do for a Pod.
type Outlook struct {
	// Refusal is why the Pod is evicted without a surge. It is empty if the Deployment surges.
	Refusal Refusal
	// Message is the one that the evacuator reports. It is empty while the controllers of the Deployment have not observed its last change.
	Message string
}

// OutlookOf returns what Decide does if the evacuator becomes active for a Pod now, and for no other Pod of the Deployment. It ignores the
// Pods of the observation.
func OutlookOf(o Observation, pod Leaving) Outlook {
	o.Leaving = []Leaving{pod}
	if !pod.isRequested() {
		return outlookOf(Decision{Reports: refuseAll(o.Leaving, NotRequested, notRequested)})
	}
	if d := Decide(o); len(d.Reports) > 0 && d.Reports[0].Refusal != "" { // also the end of a surge that another actor has edited
		return outlookOf(d)
	}
	b, err := BaselineOf(o.Deployment)
	if err != nil { // Decide removes the annotation first
		o.Deployment = o.Deployment.DeepCopy()
		SetBaseline(o.Deployment, nil)
	}
	if b == nil {
		outlook := outlookOf(begin(o))
		if pod.Restart && outlook == (Outlook{}) { // what it waits for is reported
			outlook.Message = pod.Message
		}
		return outlook
	}
	inProgress := &surging{Observation: o, b: b}
	if !inProgress.b.includes(pod.UID) {
		return Outlook{Message: inProgress.laterRoundMessage()}
	}
	return Outlook{Message: inProgress.scalingMessage()}
}

// outlookOf returns the outlook that a decision about a single Pod contains.
func outlookOf(d Decision) Outlook {
	if len(d.Reports) > 0 {
		return Outlook{d.Reports[0].Refusal, d.Reports[0].Message}
	}
	switch {
	case d.Deployment == nil:
		return Outlook{}
	case d.Event != nil && d.Event.Reason == EventRestarted:
		return Outlook{Message: d.Event.Message}
	}
	b, err := BaselineOf(d.Deployment)
	if b == nil || err != nil {
		return Outlook{}
	}
	return Outlook{Message: (&surging{Observation: Observation{Deployment: d.Deployment}, b: b}).scalingMessage()}
}
