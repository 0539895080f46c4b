package deployment

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// findPodsToReplace finds the Pods of the Deployment whose active evacuator is this one.
func (s *scope) findPodsToReplace(ctx context.Context) (known bool, err error) {
	found, known, err := s.finder.Find(ctx, s.key.Namespace, s.belongs)
	if err != nil || !known {
		return known, err
	}
	maintenances := s.finder.Maintenances
	s.observed.Drains = surge.DrainsOf(nil, maintenances)
	for _, assigned := range found {
		pod, e := assigned.Pod, assigned.Evacuation
		ref, isMarked := surge.PodRef{Name: pod.Name, UID: pod.UID}, pod.DeletionTimestamp == nil && surge.Marked(pod)
		switch {
		case assigned.Passed && isMarked:
			s.observed.Passed = append(s.observed.Passed, ref)
		case assigned.Expired && isMarked:
			s.observed.Abandoned = append(s.observed.Abandoned, ref)
		}
		if assigned.Passed || assigned.Expired {
			continue
		}
		s.assignments[pod.UID] = assigned
		s.observed.Leaving = append(s.observed.Leaving, surge.Leaving{
			PodRef: ref, Policy: surge.PolicyFor(pod, assigned.Terms.Maintenances), Suspended: assigned.Suspended,
			Restart: surge.RestartsFor(pod, assigned.Terms.Maintenances), Drains: surge.DrainsOf(pod, maintenances),
			Asked: evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer),
			Ready: rules.Ready(pod), Marked: surge.Marked(pod),
			Progress: assigned.Progress, Deadline: assigned.Deadline, RenewAt: evacuation.RenewAt(assigned.Progress, assigned.Deadline),
			Message: e.Status.Message, Surged: surge.SurgedIn(e),
		})
	}
	return true, nil
}

// belongs reports whether a Pod seems to be one of the Deployment.
func (s *scope) belongs(pod *corev1.Pod) bool { return rules.DeploymentOf(pod) == s.key.Name }

// observe reads the Deployment and the related objects that the next decision needs.
func (s *scope) observe(ctx context.Context) error {
	d, err := get(ctx, s.live, s.key, &appsv1.Deployment{})
	if err != nil {
		return err
	}
	s.observed.Deployment = d
	if d == nil {
		return s.findRecordedAutoscalers(ctx)
	}
	b, invalid := surge.BaselineOf(d)
	switch {
	case invalid != nil:
		return nil //nolint:nilerr // Decide drops it; the next reconciliation reads the rest
	case b == nil && len(s.observed.Leaving) == 0:
		return s.findRecordedAutoscalers(ctx)
	case b == nil:
		return s.observeBeforeSurge(ctx)
	default:
		return s.observeSurge(ctx, b)
	}
}

// observeBeforeSurge reads the objects that determine whether the Deployment may surge.
func (s *scope) observeBeforeSurge(ctx context.Context) error {
	d, sets := s.observed.Deployment, map[string]*appsv1.ReplicaSet{}
	for i := range s.observed.Leaving {
		leaving := &s.observed.Leaving[i]
		pod := s.assignments[leaving.UID].Pod
		name := metav1.GetControllerOfNoCopy(pod).Name // DeploymentOf has found one
		if _, read := sets[name]; !read {
			set, err := get(ctx, s.live, types.NamespacedName{Namespace: s.key.Namespace, Name: name}, &appsv1.ReplicaSet{})
			if err != nil {
				return err
			}
			sets[name] = set
		}
		if leaving.Owned = surge.Controls(d, sets[name], pod); leaving.Owned {
			leaving.Restarted = sets[name].Spec.Template.Annotations[v1alpha1.RestartedAt]
			leaving.Recorded = sets[name].Annotations[v1alpha1.SurgeAnnotation]
		}
	}
	s.observed.Claims = map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range surge.ClaimsOf(d.Spec.Template) {
		claim, err := get(ctx, s.live, types.NamespacedName{Namespace: s.key.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		s.observed.Claims[name] = claim
	}
	return s.findAutoscalers(ctx)
}

// observeSurge reads the objects that the baseline names.
func (s *scope) observeSurge(ctx context.Context, b *surge.Baseline) error {
	for _, ref := range b.Pods {
		pod := s.assignments[ref.UID].Pod
		if pod == nil { // its drain was cancelled: its Node may not be watched any more, or the watch may not have delivered its mark yet
			var err error
			if pod, err = s.livePod(ctx, ref); err != nil {
				return err
			}
		} else if pod.Name != ref.Name { // a tenant may have written the baseline
			continue
		}
		if pod != nil && pod.DeletionTimestamp == nil && surge.Marked(pod) {
			s.observed.Marked = append(s.observed.Marked, ref)
		}
	}
	if err := s.observeUnready(ctx, b); err != nil {
		return err
	}
	if surge.AwaitsPods(s.observed) {
		s.observed.Unscheduled = s.unscheduled(ctx)
	}
	if b.Autoscaler == nil {
		return nil
	}
	h, err := get(ctx, s.live, types.NamespacedName{Namespace: s.key.Namespace, Name: b.Autoscaler.Name}, &autoscalingv2.HorizontalPodAutoscaler{})
	if h != nil {
		s.observed.Autoscalers = append(s.observed.Autoscalers, h)
	}
	return err
}

// observeUnready finds the Pods of the baseline that have not been ready for surge.UnreadyTime. It reads them from the API server, and
// after the Deployment: the availableReplicas that were read before do not count such a Pod.
func (s *scope) observeUnready(ctx context.Context, b *surge.Baseline) error {
	for i := range s.observed.Leaving {
		pod := &s.observed.Leaving[i]
		if pod.Ready || !slices.Contains(b.Pods, pod.PodRef) {
			continue
		}
		live, err := s.livePod(ctx, pod.PodRef)
		if err != nil {
			return err
		}
		pod.Unready = live != nil && rules.UnreadyFor(live, surge.UnreadyTime, s.observed.Now)
	}
	return nil
}

const (
	// maxUnscheduled is how many Pods without a Node are read. One that is unschedulable is enough.
	maxUnscheduled = 10
	// readingTTL is how long a reading is kept after the last attempt to read. It must exceed ReadInterval: the reading counts while attempts
	// fail.
	readingTTL = 2 * time.Minute
)

// reading is what was last read of the Pods of a Deployment that have no Node.
type reading struct {
	surge.Unscheduled
	triedAt time.Time // also if it failed
}

// unscheduled returns what is known of the Pods of the Deployment that have no Node. They are not watched. It reads them once in
// ReadInterval, however many events the Deployment has. If that fails, the last reading counts, whose time says how old it is.
func (s *scope) unscheduled(ctx context.Context) surge.Unscheduled {
	last, found := s.readings.Get(s.cluster, s.observed.Deployment.UID)
	if found && s.observed.Now.Before(last.triedAt.Add(surge.ReadInterval)) {
		return last.Unscheduled
	}
	last.triedAt = s.observed.Now
	if pods, err := s.listUnscheduled(ctx); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to find out whether new Pods of a surge are unschedulable")
	} else {
		last.Unscheduled = surge.UnscheduledIn(pods, s.observed.Now)
	}
	s.readings.Set(s.cluster, s.observed.Deployment.UID, last, readingTTL)
	return last.Unscheduled
}

// listUnscheduled reads Pods of the Deployment that have no Node.
func (s *scope) listUnscheduled(ctx context.Context) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(s.observed.Deployment.Spec.Selector)
	if err != nil {
		return nil, errors.Wrapf(err, "reading the selector of Deployment %s", s.key)
	}
	list := &corev1.PodList{}
	if err := s.live.List(ctx, list, client.InNamespace(s.key.Namespace), client.MatchingLabelsSelector{Selector: selector},
		client.MatchingFields{"spec.nodeName": ""}, client.Limit(maxUnscheduled)); err != nil {
		return nil, errors.Wrapf(err, "listing the Pods of Deployment %s", s.key)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if rules.DeploymentOf(&list.Items[i]) == s.key.Name {
			pods = append(pods, &list.Items[i])
		}
	}
	return pods, nil
}

// maxRecorded is how many autoscalers with a record of the same Deployment are read. This manager writes only one.
const maxRecorded = 5

// findRecordedAutoscalers reads the watched autoscalers that have a record of the Deployment.
func (s *scope) findRecordedAutoscalers(ctx context.Context) error {
	recorded, err := listMetadata(ctx, s.client, autoscalingv2.SchemeGroupVersion, "HorizontalPodAutoscaler", s.key.Namespace)
	if err != nil {
		return err
	}
	recorded = slices.DeleteFunc(recorded, func(h metav1.PartialObjectMetadata) bool { return surge.TargetOf(&h) != s.key.Name })
	for i := range recorded[:min(len(recorded), maxRecorded)] {
		h, err := get(ctx, s.live, client.ObjectKeyFromObject(&recorded[i]), &autoscalingv2.HorizontalPodAutoscaler{})
		if err != nil {
			return err
		}
		if h != nil && surge.RaisedFor(h, s.key.Name) {
			s.observed.Autoscalers = append(s.observed.Autoscalers, h)
		}
	}
	return nil
}

// autoscalersPage is how many HorizontalPodAutoscalers of a namespace are read at once.
const autoscalersPage = 250

// findAutoscalers reads all autoscalers that scale the Deployment.
func (s *scope) findAutoscalers(ctx context.Context) error {
	list := &autoscalingv2.HorizontalPodAutoscalerList{}
	for {
		if err := s.live.List(ctx, list, client.InNamespace(s.key.Namespace), client.Limit(autoscalersPage), client.Continue(list.Continue)); err != nil {
			return errors.Wrapf(err, "listing the HorizontalPodAutoscalers of Namespace %s", s.key.Namespace)
		}
		s.addAutoscalers(list.Items)
		if list.Continue == "" {
			return nil
		}
	}
}

func (s *scope) addAutoscalers(all []autoscalingv2.HorizontalPodAutoscaler) {
	for i := range all {
		if surge.Scales(&all[i], s.key.Name) {
			s.observed.Autoscalers = append(s.observed.Autoscalers, all[i].DeepCopy())
		}
	}
}

func (s *scope) autoscaler(uid types.UID) *autoscalingv2.HorizontalPodAutoscaler {
	at := slices.IndexFunc(s.observed.Autoscalers, func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return h.UID == uid })
	return s.observed.Autoscalers[at] // decisions are about what was observed
}

// livePod reads a Pod from the API server. It returns nil if the Pod does not exist.
func (s *scope) livePod(ctx context.Context, ref surge.PodRef) (*corev1.Pod, error) {
	pod, err := get(ctx, s.live, types.NamespacedName{Namespace: s.key.Namespace, Name: ref.Name}, &corev1.Pod{})
	if err != nil || pod == nil || pod.UID != ref.UID {
		return nil, err
	}
	return pod, nil
}

// get reads an object. It returns nil if the object does not exist.
func get[T client.Object](ctx context.Context, reader client.Reader, key types.NamespacedName, object T) (T, error) {
	var none T
	if err := reader.Get(ctx, key, object); answers.DoesNotExist(err) {
		return none, nil
	} else if err != nil {
		return none, errors.Wrapf(err, "getting %T %s", object, key)
	}
	return object, nil
}
