package differential

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/core/reconcilers/machine/drain"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// theirs is Cluster API's drain.
type theirs struct{}

func (theirs) helper(f fixture) (*drain.Helper, *recorder) {
	recorder := &recorder{}
	helper := &drain.Helper{Client: objects{fixture: f}, RemoteClient: objects{fixture: f, evictions: recorder}, GracePeriodSeconds: -1}
	if f.unreachable { // as Cluster API's Machine controller does: see drainNode
		helper.SkipWaitForDeleteTimeoutSeconds, helper.GracePeriodSeconds = 1, 1
	}
	return helper, recorder
}

func (t theirs) ask(f fixture) (verdicts, error) {
	helper, _ := t.helper(f)
	list, err := helper.GetPodsForEviction(context.Background(), f.cluster, f.machine, nodeName)
	if err != nil {
		return nil, errors.Wrap(err, "Cluster API")
	}
	answers := verdicts{}
	for _, pod := range list.SkippedPods() {
		answers[key(pod)] = leaves
	}
	for _, pod := range list.Pods() {
		answers[key(pod)] = evicts
	}
	// Only the eviction's result says which of the latter must complete.
	result := helper.EvictPods(context.Background(), list)
	for _, pod := range slices.Concat(result.PodsToWaitCompletedNow, result.PodsToWaitCompletedLater) {
		answers[key(pod)] = waits
	}
	return answers, nil
}

func (t theirs) evictedNow(f fixture) []string {
	helper, recorder := t.helper(f)
	list, err := helper.GetPodsForEviction(context.Background(), f.cluster, f.machine, nodeName)
	if err != nil {
		return nil
	}
	helper.EvictPods(context.Background(), list)
	slices.Sort(recorder.evicted)
	return recorder.evicted
}

func (t theirs) left(f fixture) bool {
	helper, _ := t.helper(f)
	list, err := helper.GetPodsForEviction(context.Background(), f.cluster, f.machine, nodeName)
	return err != nil || len(list.Pods()) > 0
}

// recorder collects evictions.
type recorder struct{ evicted []string }

// objects serves the part of a fixture that Cluster API's drain reads. Other calls panic with a nil pointer.
type objects struct {
	client.Client
	fixture   fixture
	evictions *recorder
}

// List implements client.Reader.
func (o objects) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *corev1.PodList:
		for _, pod := range o.fixture.pods {
			list.Items = append(list.Items, *pod)
		}
	case *corev1.NamespaceList:
		for name, labels := range o.fixture.namespaces {
			list.Items = append(list.Items, corev1.Namespace{ObjectMeta: metaOf("", name, labels)})
		}
	case *clusterv1.MachineDrainRuleList:
		for _, rule := range o.fixture.rules {
			if rule.Namespace == machineNamespace { // Cluster API lists no other namespace
				list.Items = append(list.Items, rule.MachineDrainRule)
			}
		}
	default:
		return errors.Errorf("unexpected list of %T", list)
	}
	return nil
}

// Get implements client.Reader.
func (o objects) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	daemonSet, ok := object.(*appsv1.DaemonSet)
	if !ok {
		return errors.Errorf("unexpected get of %T", object)
	}
	if o.fixture.unreadable {
		return apierrors.NewServiceUnavailable("no response")
	}
	uid, found := o.fixture.daemonSets[key.String()]
	if !found {
		return apierrors.NewNotFound(appsv1.Resource("daemonsets"), key.Name)
	}
	daemonSet.Namespace, daemonSet.Name, daemonSet.UID = key.Namespace, key.Name, uid
	return nil
}

// SubResource implements client.Client.
func (o objects) SubResource(name string) client.SubResourceClient {
	return evictionClient{name: name, recorder: o.evictions}
}

type evictionClient struct {
	client.SubResourceClient
	name     string
	recorder *recorder
}

// Create implements client.SubResourceWriter.
func (c evictionClient) Create(_ context.Context, pod, _ client.Object, _ ...client.SubResourceCreateOption) error {
	if c.name != "eviction" {
		return errors.Errorf("unexpected create of %s", c.name)
	}
	c.recorder.evicted = append(c.recorder.evicted, client.ObjectKeyFromObject(pod).String())
	return nil
}

func describe(events []event) string {
	lines := make([]string, 0, len(events))
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("  %s %s", e.what, strings.Join(e.pods, ", ")))
	}
	return strings.Join(lines, "\n")
}

func daemonSetKey(namespace, name string) string {
	return types.NamespacedName{Namespace: namespace, Name: name}.String()
}
