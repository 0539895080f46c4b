// Package maintain requests stages of the maintenance of Machines and Nodes, and waits until they are reached.
//
// It is the only package of the plugin that writes. For a Machine it writes the stage annotation, for a Node a NodeMaintenance. The manager
// does the rest, so a drain continues without the plugin.
package maintain

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Target is a Machine or a Node that a command maintains, or a NodeMaintenance of several Nodes.
type Target struct {
	// Resource is "machine", "node" or "nodemaintenance", and Name the name, as a message of kubectl has them.
	Resource, Name string
	// Key is the object that is written and watched.
	Key types.NamespacedName
}

func (t Target) String() string { return t.Resource + "/" + t.Name }

// Written is what a request has done.
type Written struct {
	// Kind and Name are those of the object.
	Kind schema.GroupKind
	Name string
	// Action is "created", "annotated", "configured", "unchanged" or "deleted".
	Action string
}

// Progress is how far the maintenance of a target is.
type Progress struct {
	// Reached means that the requested stage has been carried out.
	Reached bool
	// Failed is why the stage will not be reached. It is empty while that is possible.
	Failed string
	// Message is what the maintenance waits for.
	Message string
}

// Kind is how Machines or Nodes are maintained.
type Kind interface {
	// Stage returns the stage that has been requested for a target, or nothing.
	Stage(ctx context.Context, target Target) (v1alpha1.NodeMaintenanceStage, error)
	// Request requests a stage. It changes nothing if the stage has been requested already.
	Request(ctx context.Context, target Target, stage v1alpha1.NodeMaintenanceStage, reason string) (Written, error)

	// newList returns an empty list of the objects that are watched.
	newList() client.ObjectList
	// progress returns how far a target is. object is nil if it does not exist.
	progress(target Target, object client.Object, stage v1alpha1.NodeMaintenanceStage) Progress
	cluster() client.WithWatch
}

// Reporter reports what happens.
type Reporter interface {
	Wrote(written Written)
	// Waits is called when what a target waits for has changed.
	Waits(target Target, message string)
	Reached(target Target, stage v1alpha1.NodeMaintenanceStage)
	Failed(target Target, message string)
	// Reconnects is called when the watch has failed and is started again.
	Reconnects(err error)
}

// Run is the maintenance of several targets.
type Run struct {
	Kind     Kind
	Targets  []Target
	Stage    v1alpha1.NodeMaintenanceStage
	Reason   string
	Reporter Reporter
	// MaxParallel limits how many targets are drained at the same time. The others are cordoned first. 0 is no limit.
	MaxParallel int

	queue    []Target
	active   map[types.NamespacedName]Target
	messages map[types.NamespacedName]string
	failed   sets.Set[types.NamespacedName]
}

// Request requests the stage for all targets, or for as many as MaxParallel allows. The error is that of the context.
func (r *Run) Request(ctx context.Context) error {
	r.active, r.messages, r.failed = map[types.NamespacedName]Target{}, map[types.NamespacedName]string{}, sets.New[types.NamespacedName]()
	if r.MaxParallel == 0 || r.MaxParallel >= len(r.Targets) {
		r.queue = slices.Clone(r.Targets)
		return r.next(ctx)
	}
	for _, target := range r.Targets {
		stage, err := r.Kind.Stage(ctx, target)
		switch {
		case err != nil:
			r.fail(target, err.Error())
		case stage == r.Stage: // by an earlier run of the command
			r.active[target.Key] = target
		case r.request(ctx, target, v1alpha1.StageCordon):
			r.queue = append(r.queue, target)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return r.next(ctx)
}

// request requests a stage for a target and returns whether it could.
func (r *Run) request(ctx context.Context, target Target, stage v1alpha1.NodeMaintenanceStage) bool {
	written, err := r.Kind.Request(ctx, target, stage, r.Reason)
	switch {
	case err == nil:
		r.Reporter.Wrote(written)
	case ctx.Err() == nil:
		r.fail(target, err.Error())
	}
	return err == nil
}

func (r *Run) fail(target Target, message string) {
	r.failed.Insert(target.Key)
	r.Reporter.Failed(target, message)
}

// next requests the stage for queued targets.
func (r *Run) next(ctx context.Context) error {
	for len(r.queue) > 0 && (r.MaxParallel == 0 || len(r.active) < r.MaxParallel) {
		target := r.queue[0]
		requested := r.request(ctx, target, r.Stage)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.queue = r.queue[1:]
		if requested {
			r.active[target.Key] = target
		}
	}
	return nil
}

// Active returns the targets for which the stage was requested and that have not reached it.
func (r *Run) Active() []Target {
	var active []Target
	for _, target := range r.Targets {
		if _, found := r.active[target.Key]; found {
			active = append(active, target)
		}
	}
	return active
}

// Queued returns the targets for which the stage was not requested yet.
func (r *Run) Queued() []Target { return r.queue }

// Failures returns how many targets will not reach the stage.
func (r *Run) Failures() int { return r.failed.Len() }

// observe reports how far a target is. object is nil if it does not exist.
func (r *Run) observe(ctx context.Context, key types.NamespacedName, object client.Object) error {
	target, found := r.active[key]
	if !found {
		return nil
	}
	progress := r.Kind.progress(target, object, r.Stage)
	switch {
	case progress.Reached:
		r.Reporter.Reached(target, r.Stage)
	case progress.Failed != "":
		r.fail(target, progress.Failed)
	default:
		if progress.Message != "" && progress.Message != r.messages[key] {
			r.messages[key] = progress.Message
			r.Reporter.Waits(target, progress.Message)
		}
		return nil
	}
	delete(r.active, key)
	return r.next(ctx)
}
