package workload

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

const (
	// maxAsked is how many DaemonSets are asked for at once. Tenants may create any number of Pods that name a DaemonSet.
	maxAsked = 16
	// maxAbsent is how many absent DaemonSets are kept. If there are more, all are asked for again.
	maxAbsent = 10000
	// askAgain is the interval at which a DaemonSet is asked for that exists or could not be read.
	askAgain = time.Second
	// askTimeout limits a request. Without it, requests that get no answer would keep other DaemonSets from being asked for.
	askTimeout = 10 * time.Second
)

// absences are the DaemonSets that Pods name as their controllers and that do not exist, as the API server has said. The watch of
// DaemonSets may deliver a DaemonSet later than another watch delivers its Pods, so that a DaemonSet which is not in the cache may exist.
type absences struct {
	ctx context.Context //nolint:containedctx // of the drain watch
	// read returns the UID of a DaemonSet, empty if it does not exist.
	read func(ctx context.Context, daemonSet types.NamespacedName) (types.UID, error)
	// changed is called when more is known.
	changed func()

	mu     sync.Mutex
	absent sets.Set[types.UID]
	asked  sets.Set[types.UID]
}

func newAbsences(ctx context.Context, read func(context.Context, types.NamespacedName) (types.UID, error), changed func()) *absences {
	return &absences{ctx: ctx, read: read, changed: changed, absent: sets.New[types.UID](), asked: sets.New[types.UID]()}
}

// has reports whether a DaemonSet is known not to exist. If it is not known, it is asked for in the background.
func (a *absences) has(daemonSet types.NamespacedName, uid types.UID) bool {
	if !lookup.CanExist(daemonSet.Name) {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.absent.Has(uid) {
		return true
	}
	if len(a.asked) < maxAsked && !a.asked.Has(uid) {
		a.asked.Insert(uid)
		go a.ask(daemonSet, uid)
	}
	return false
}

func (a *absences) ask(daemonSet types.NamespacedName, uid types.UID) {
	ctx, cancel := context.WithTimeout(a.ctx, askTimeout)
	defer cancel()
	found, err := a.read(ctx, daemonSet)
	if err == nil && found != uid { // an object of this UID never exists again
		a.record(uid)
		a.changed()
		return
	}
	if err != nil && a.ctx.Err() == nil {
		ctrl.Log.WithName("workload").Error(err, "Failed to find out whether the DaemonSet of a Pod exists", "DaemonSet", daemonSet)
	}
	clock.RealClock{}.AfterFunc(askAgain, func() {
		a.mu.Lock()
		a.asked.Delete(uid)
		a.mu.Unlock()
		if a.ctx.Err() == nil {
			a.changed()
		}
	})
}

func (a *absences) record(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked.Delete(uid)
	if len(a.absent) >= maxAbsent {
		a.absent = sets.New[types.UID]()
	}
	a.absent.Insert(uid)
}

// daemonSetReader returns the function that reads the UID of a DaemonSet from the API server.
func daemonSetReader(from metadata.Interface) func(context.Context, types.NamespacedName) (types.UID, error) {
	daemonSets := from.Resource(appsv1.SchemeGroupVersion.WithResource("daemonsets"))
	return func(ctx context.Context, key types.NamespacedName) (types.UID, error) {
		found, err := daemonSets.Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		switch {
		case answers.DoesNotExist(err):
			return "", nil
		case err != nil:
			return "", errors.Wrapf(err, "getting DaemonSet %s", key)
		default:
			return found.UID, nil
		}
	}
}
