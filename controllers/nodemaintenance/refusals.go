package nodemaintenance

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// refusals are the writes that the API server has refused in this reconciliation, by description: restoring Nodes, changing their conditions and
// withdrawing from Evacuations. A refused write does not delay the others.
type refusals struct {
	mu     sync.Mutex
	byWhat map[string]error
}

// collect records an error that is the API server's answer to this particular write, and returns nil. It returns other errors, and conflicts,
// after which the next reconciliation reads the object again. doing describes the write, for example "restore Node one".
func (s *scope) collect(ctx context.Context, doing string, err error) error {
	if err == nil || !isAnswer(err) || apierrors.IsConflict(err) {
		return err
	}
	ctrl.LoggerFrom(ctx).Error(err, "Failed to end the maintenance", "doing", doing)
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	if s.refusals.byWhat == nil {
		s.refusals.byWhat = map[string]error{}
	}
	s.refusals.byWhat[doing] = errors.Cause(err)
	return nil
}

// awaitRefused ends the reconciliation if a write was refused. Reconcile repeats it after refusedRetry.
func (r *Reconciler) awaitRefused(_ context.Context, s *scope) (bool, error) {
	return len(s.refusals.byWhat) == 0, nil
}

// message describes the first of the refusals in alphabetical order, and how many others there are. It is empty if there are none.
func (r *refusals) message() string {
	all := slices.Sorted(maps.Keys(r.byWhat))
	if len(all) == 0 {
		return ""
	}
	message := "Cannot " + all[0] + ": " + progress.Describe(r.byWhat[all[0]])
	if more := len(all) - 1; more > 0 {
		message += " (and " + text.Count(more, "more write") + ")"
	}
	return text.Cut(message, text.MaxMessage)
}

// first returns the first of the refusals, nil if there are none.
func (r *refusals) first() error {
	for _, doing := range slices.Sorted(maps.Keys(r.byWhat)) {
		return errors.Wrap(r.byWhat[doing], doing)
	}
	return nil
}
