package recording

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/pkg/errors"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

// The limits of what is read of a recording, which is untrusted.
const (
	maxLine  = 1 << 20
	maxPods  = 20_000
	maxSteps = 5_000
	maxGaps  = 100
)

// History is what a recording says.
type History struct {
	Context    string
	Start, End time.Time
	Drains     []Drain
	Budgets    []BudgetCourse
	// Effects are what happened to each application, the most affected one first. Traces have none.
	Effects []Effect
	// Outcomes are what became of the evicted Pods of each drain that had ended, those with most Pods without a place first.
	Outcomes []Outcome
	Gaps     []string
	// Incomplete is why the recording may lack something at its end, or empty.
	Incomplete string
}

// Drain is the drain of the Node of a Machine, or a NodeMaintenance.
type Drain struct {
	Cluster string
	// Machine is "namespace/name", empty for a NodeMaintenance without a Machine.
	Machine, Maintenance string
	Nodes                []string
	// Deleted is when the deletion of the Machine was requested, zero if it was not.
	Deleted time.Time
	// Start is when the stage Drain started. End is when the Nodes were drained, or when the drain ended otherwise; zero if neither.
	Start, End time.Time
	// Cancelled is when the maintenance was completed, or its NodeMaintenance deleted, before the Nodes were drained, or zero.
	Cancelled time.Time
	// Gone is when the Machine or NodeMaintenance was observed to be deleted, or zero.
	Gone time.Time
	// Phases are the reasons of the condition of the Machine, in turn.
	Phases []history.Wait
	Pods   []PodCourse

	ended  time.Time // of the recording
	before before
	late   late

	// The following fields are set while a recording is read.
	observed time.Time // the last observation of the NodeMaintenance
	isKnown  bool      // the NodeMaintenance was being observed when the Machine got its result
	drained  time.Time // the End when the Machine got its result
}

// before says whether the Nodes had been drained when a drain got another result than that. It is empty for other drains.
type before string

const (
	wasDrained  before = "Drained"
	notDrained  before = "NotDrained"
	notRecorded before = "NotRecorded" // it is not known
)

// PodCourse is the evacuation of a Pod.
type PodCourse struct {
	Name, Node string
	Start, End time.Time
	// Ended is false if the recording ended before the evacuation.
	Ended    bool
	Refusals int32
	Waits    []history.Wait
}

// Read reads a recording, or traces of the manager as OTLP JSON. It returns an error if the file is neither, or has a version that this
// program does not know.
func Read(file io.Reader) (*History, error) {
	buffered := bufio.NewReader(file)
	if isTraces(buffered) {
		return readTraces(buffered)
	}
	return readRecording(buffered)
}

func readRecording(file io.Reader) (*History, error) {
	b := &builder{
		drains: map[string]*Drain{}, pods: map[string]*podBuilder{}, machines: map[string]*Drain{}, outcomes: map[string]Outcome{}, courses: newCourses(),
	}
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, maxLine)
	for number := 1; scanner.Scan(); number++ {
		var line Line
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			if number == 1 {
				return nil, errors.New("the file is not a recording of `status --watch --record`: the first line is not JSON")
			}
			b.history.Incomplete = "line " + itoa(number) + " of the recording is damaged; what follows it is missing"
			break
		}
		if number == 1 {
			if err := b.start(line); err != nil {
				return nil, err
			}
			continue
		}
		b.add(line)
	}
	if err := scanner.Err(); err != nil {
		return nil, errors.Wrap(err, "reading the recording")
	}
	if b.history.Start.IsZero() {
		return nil, errors.New("the recording is empty")
	}
	return b.finish(), nil
}

// builder builds a History from the lines of a recording.
type builder struct {
	history  History
	order    []*Drain
	drains   map[string]*Drain // by cluster and NodeMaintenance
	machines map[string]*Drain // by Machine
	pods     map[string]*podBuilder
	allPods  []*podBuilder
	outcomes map[string]Outcome // by drain
	courses  courses
	lastGap  time.Time
	ended    bool
}

type podBuilder struct {
	PodCourse

	cluster string
}

func (b *builder) start(line Line) error {
	switch {
	case line.Start == nil || line.Start.Version == 0:
		return errors.New("the file is not a recording of `status --watch --record`: the first line has no version")
	case line.Start.Version > Version:
		return errors.Errorf("the recording has version %d of the format, and this program knows version %d: use a newer version of the plugin", line.Start.Version,
			Version)
	case line.Time.IsZero():
		return errors.New("the first line of the recording has no time")
	}
	b.history.Context, b.history.Start, b.history.End = line.Start.Context, line.Time, line.Time
	return nil
}

func (b *builder) add(line Line) {
	if line.Time.Before(b.history.End) { // a clock that was set back
		line.Time = b.history.End
	}
	b.history.End = line.Time
	switch {
	case line.Machine != nil:
		b.machine(line.Machine, line.Time)
	case line.Drain != nil:
		b.maintenance(line.Drain, line.Time)
	case line.Pod != nil:
		b.pod(line.Pod, line.Time)
	case line.Budget != nil:
		b.gap(b.courses.budget(line.Budget, line.Time))
	case line.Application != nil:
		b.gap(b.courses.application(line.Application, line.Time))
	case line.Outcome != nil:
		b.outcome(*line.Outcome)
	case line.Gap != "":
		b.lastGap = line.Time
		b.gap(line.Gap)
	case line.End != "":
		b.ended = true
		if line.End == EndLimitReached {
			b.history.Incomplete = "the recording ended at its maximum size"
		}
	}
}

func (b *builder) machine(m *Machine, now time.Time) {
	d := b.drainOfMachine(m.Cluster, m.Name)
	if m.Node != "" && len(d.Nodes) == 0 {
		d.Nodes = []string{m.Node}
	}
	if m.Deleted != nil {
		d.Deleted = *m.Deleted
	}
	if m.Gone {
		d.Gone = now
	}
	if isFirst := len(d.Phases) == 0; slices.Contains(results, m.Reason) && (isFirst || d.Phases[len(d.Phases)-1].Reason != m.Reason) {
		d.isKnown, d.drained = b.isObserved(d, isFirst), d.End
	}
	// The condition may have had other reasons before the first observation, so m.Since is not the start of the first phase.
	d.Phases = proceed(d.Phases, history.Wait{Reason: m.Reason, Message: m.Message, Start: now}, now, m.Gone)
}

// isObserved reports whether the recording knows the NodeMaintenance of a Machine, or that there is none. isFirst means that the Machine is
// observed for the first time.
func (b *builder) isObserved(d *Drain, isFirst bool) bool {
	isDraining := func(phase history.Wait) bool {
		return phase.Reason == v1alpha1.ReasonMachineDraining || phase.Reason == v1alpha1.ReasonWaitingForVolumeDetach
	}
	switch {
	case b.lastGap.After(d.observed): // the connection may have been lost
		return false
	case !d.Start.IsZero():
		return true
	default:
		return !slices.ContainsFunc(d.Phases, isDraining) && (!isFirst || !d.Deleted.Before(b.history.Start))
	}
}

func (b *builder) drainOfMachine(cluster, name string) *Drain {
	id := cluster + " " + name
	d := b.machines[id]
	if d == nil || !d.Gone.IsZero() {
		d = &Drain{Cluster: cluster, Machine: name}
		b.machines[id] = d
		b.order = append(b.order, d)
	}
	return d
}

// drainFor returns the drain of a NodeMaintenance that is observed for the first time. It may be observed before its Machine.
func (b *builder) drainFor(m *Maintenance) *Drain {
	if m.Machine != "" {
		if d := b.drainOfMachine(m.Cluster, m.Machine); d.Maintenance == "" {
			return d
		}
	}
	d := &Drain{Cluster: m.Cluster, Machine: m.Machine}
	if m.Machine != "" {
		b.machines[m.Cluster+" "+m.Machine] = d
	}
	b.order = append(b.order, d)
	return d
}

func (b *builder) maintenance(m *Maintenance, now time.Time) {
	id := m.Cluster + " " + m.Name
	d := b.drains[id]
	if d == nil {
		d = b.drainFor(m)
		d.Maintenance = m.Name
		b.drains[id] = d
	}
	if d.observed.IsZero() {
		d.late = lateOf(m, now)
	}
	d.observed = now
	if len(m.Nodes) > 0 {
		d.Nodes = m.Nodes
	}
	if m.Stage == string(v1alpha1.StageDrain) && d.Start.IsZero() {
		d.Start = startOf(m.Since, now)
	}
	if m.Drained && d.End.IsZero() {
		d.End = now
	}
	if !m.Drained && m.Stage == string(v1alpha1.StageDrain) && !m.Gone {
		d.End = time.Time{} // Pods were created on the Node
	}
	if m.Gone || m.Stage == string(v1alpha1.StageComplete) {
		d.cancel(now)
	}
	if m.Gone {
		delete(b.drains, id)
		if d.Machine == "" {
			d.Gone = now
		}
	}
}

// cancel ends the drain if its Nodes have not been drained.
func (d *Drain) cancel(now time.Time) {
	if !d.Start.IsZero() && d.End.IsZero() && d.Cancelled.IsZero() {
		d.Cancelled = now
	}
}

func (b *builder) pod(p *Pod, now time.Time) {
	id := p.Cluster + " " + cmp.Or(p.UID, p.Name)
	course := b.podFor(id, p)
	if course == nil && p.Gone {
		return // it goes on with its Evacuation
	}
	if course == nil {
		if len(b.allPods) >= maxPods {
			b.history.Incomplete = "the recording has more than " + itoa(maxPods) + " Pods; the others are missing"
			return
		}
		course = &podBuilder{PodCourse{Name: p.Name, Node: p.Node, Start: startOf(p.Since, now)}, p.Cluster}
		b.pods[id] = course
		b.allPods = append(b.allPods, course)
	}
	course.Node, course.Refusals = cmp.Or(course.Node, p.Node), max(course.Refusals, p.Refusals)
	wait := history.Wait{Reason: p.Reason, Object: p.Object, Message: p.Message, NeverAllows: p.NeverAllows, Start: now}
	if p.UID == "" { // the time of its wait, and not of its Evacuation, which may have waited for something else before
		wait.Start = course.Start
	}
	course.Waits = proceed(course.Waits, wait, now, p.Gone)
	if p.Gone {
		course.End, course.Ended = now, true
		delete(b.pods, id)
	}
}

// podFor returns the course of a Pod, nil if it is new. A Pod that blocks a drain before it has an Evacuation is known by its name.
func (b *builder) podFor(id string, p *Pod) *podBuilder {
	name := p.Cluster + " " + p.Name
	if before := b.pods[name]; b.pods[id] == nil && before != nil && before.Node == p.Node && !p.Gone {
		delete(b.pods, name)
		b.pods[id] = before
	}
	return b.pods[id]
}

// proceed adds a wait that is observed now, unless its object is gone. The first wait begins at its own start, the others now.
func proceed(waits []history.Wait, next history.Wait, now time.Time, gone bool) []history.Wait {
	if len(waits) == 0 || !gone {
		if len(waits) > 0 {
			next.Start = now
		}
		waits = history.Proceed(waits, next)
	}
	waits[len(waits)-1].End = now
	return waits
}

// startOf returns when something started, see history.Instant.
func startOf(recorded *time.Time, now time.Time) time.Time {
	return history.Instant(ptr.Deref(recorded, now), now)
}

// gap adds a gap once, unless it is empty. One that comes and goes is a line of the recording each time.
func (b *builder) gap(gap string) {
	switch {
	case gap == "":
	case slices.Contains(b.history.Gaps, gap):
	case len(b.history.Gaps) < maxGaps:
		b.history.Gaps = append(b.history.Gaps, gap)
	case len(b.history.Gaps) == maxGaps:
		b.history.Gaps = append(b.history.Gaps, "and more")
	}
}

// finish assigns the Pods to drains, and ends what had not ended.
func (b *builder) finish() *History {
	h := &b.history
	if !b.ended && h.Incomplete == "" {
		h.Incomplete = "the recording was cut off"
	}
	for _, pod := range b.allPods {
		if !pod.Ended {
			pod.End = h.End
			pod.Waits[len(pod.Waits)-1].End = h.End
		}
		d := b.drainOf(pod)
		if d == nil {
			b.gap("Pods of Nodes whose drains are not recorded; of a NodeMaintenance, " + itoa(maxNodes) + " Nodes are")
			continue
		}
		d.Pods = append(d.Pods, pod.PodCourse)
	}
	for _, d := range b.order {
		d.ended = h.End
		d.finish(h.End)
		if !d.Start.IsZero() || len(d.Pods) > 0 || len(d.Phases) > 0 {
			h.Drains = append(h.Drains, *d)
		}
	}
	slices.SortStableFunc(h.Drains, func(a, b Drain) int { return a.begin().Compare(b.begin()) })
	h.Budgets, h.Effects = b.courses.finish(h.End)
	h.Outcomes = sorted(b.outcomes)
	return h
}

// finish ends what had not ended when the recording ended, and sorts the Pods.
func (d *Drain) finish(end time.Time) {
	if n := len(d.Phases); n > 0 && d.Gone.IsZero() {
		d.Phases[n-1].End = end
	}
	d.settle(d.isKnown)
	d.late.isLate = d.late.isLate || d.beganUnobserved()
	slices.SortStableFunc(d.Pods, func(a, b PodCourse) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Start.Compare(b.Start), cmp.Compare(a.Name, b.Name))
	})
}

// drainOf returns the last drain of the Node that had started when the evacuation of the Pod ended.
func (b *builder) drainOf(pod *podBuilder) *Drain {
	var found *Drain
	for _, d := range b.order {
		if d.Cluster == pod.cluster && slices.Contains(d.Nodes, pod.Node) && (found == nil || !d.begin().After(pod.End)) {
			found = d
		}
	}
	return found
}

// begin returns when a drain, or the wait for it, began.
func (d *Drain) begin() time.Time {
	switch {
	case !d.Deleted.IsZero():
		return d.Deleted
	case !d.Start.IsZero():
		return d.Start
	case len(d.Phases) > 0:
		return d.Phases[0].Start
	default:
		return d.ended
	}
}
