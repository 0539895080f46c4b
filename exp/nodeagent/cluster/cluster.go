// Package cluster is the node agent's client for the API server. It watches the agent's own Node, and, while static Pods of the Node are
// drain targets, their Evacuations.
package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
)

// timeout is the timeout of a request. It is short, because the time of a hanging connection is missing for the Pods.
const timeout = 2 * time.Second

// Client is a client for one Node.
type Client struct {
	node        string
	core, group *rest.RESTClient
	// coreWatch and groupWatch have no timeout.
	coreWatch, groupWatch *rest.RESTClient
}

// New returns a client for this Node.
func New(config *rest.Config, node string) (*Client, error) {
	scheme := runtime.NewScheme()
	c := &Client{node: node}
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{}, &corev1.Event{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, errors.Wrap(err, "registering types")
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	for _, each := range []struct {
		into    **rest.RESTClient
		group   schema.GroupVersion
		path    string
		timeout time.Duration
	}{
		{&c.core, corev1.SchemeGroupVersion, "/api", timeout}, {&c.coreWatch, corev1.SchemeGroupVersion, "/api", 0},
		{&c.group, v1alpha1.GroupVersion, "/apis", timeout}, {&c.groupWatch, v1alpha1.GroupVersion, "/apis", 0},
	} {
		own := rest.CopyConfig(config)
		own.GroupVersion, own.APIPath, own.NegotiatedSerializer, own.Timeout = &each.group, each.path, codecs, each.timeout
		own.UserAgent = "capnm-node-agent"
		var err error
		if *each.into, err = rest.RESTClientFor(own); err != nil {
			return nil, errors.Wrap(err, "creating a client")
		}
	}
	return c, nil
}

// Node returns the Node, or nil if it does not exist.
func (c *Client) Node(ctx context.Context) (*corev1.Node, error) {
	nodes := &corev1.NodeList{}
	err := c.core.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{FieldSelector: c.itself()}, metav1.ParameterCodec).Do(ctx).Into(nodes)
	if err != nil || len(nodes.Items) == 0 {
		return nil, errors.Wrapf(err, "getting Node %s", c.node)
	}
	return &nodes.Items[0], nil
}

// itself returns the field selector of the Node. The agent may list and watch Nodes only.
func (c *Client) itself() string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, c.node).String()
}

// WatchNode calls changed with each observed state of the Node until ctx is done.
func (c *Client) WatchNode(ctx context.Context, changed func(*corev1.Node)) {
	c.watch(ctx, c.coreWatch, "nodes", &corev1.Node{}, &corev1.NodeList{}, metav1.ListOptions{FieldSelector: c.itself()}, func(store cache.Store) {
		for _, object := range store.List() {
			if node, ok := object.(*corev1.Node); ok {
				changed(node)
			}
		}
	})
}

// WatchEvacuations calls changed with all Evacuations of the Node's static Pods, whenever one changes, until ctx is done.
func (c *Client) WatchEvacuations(ctx context.Context, changed func([]v1alpha1.Evacuation)) {
	selector := v1alpha1.StaticPodsOfLabel + "=" + v1alpha1.StaticPodsOf(c.node)
	c.watch(ctx, c.groupWatch, "evacuations", &v1alpha1.Evacuation{}, &v1alpha1.EvacuationList{}, metav1.ListOptions{LabelSelector: selector},
		func(store cache.Store) {
			var evacuations []v1alpha1.Evacuation
			for _, object := range store.List() {
				if e, ok := object.(*v1alpha1.Evacuation); ok {
					evacuations = append(evacuations, *e.DeepCopy())
				}
			}
			changed(evacuations)
		})
}

func (c *Client) watch(ctx context.Context, client *rest.RESTClient, resource string, kind, list runtime.Object, options metav1.ListOptions,
	changed func(cache.Store),
) {
	request := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector, o.LabelSelector = options.FieldSelector, options.LabelSelector
		return client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec)
	}
	var store cache.Store
	notify := func(any) { changed(store) }
	var controller cache.Controller
	store, controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				into := list.DeepCopyObject()
				err := request(o).Do(ctx).Into(into)
				return into, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.Watch = true
				return request(o).Watch(ctx)
			},
		},
		ObjectType: kind,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, object any) { notify(object) }, DeleteFunc: notify,
		},
		Transform: func(object any) (any, error) {
			if m, ok := object.(metav1.Object); ok {
				m.SetManagedFields(nil)
			}
			if node, ok := object.(*corev1.Node); ok {
				node.Status.Images = nil
			}
			return object, nil
		},
	})
	controller.RunWithContext(ctx)
}

// Maintenance returns the NodeMaintenance of this name, or nil if it does not exist.
func (c *Client) Maintenance(ctx context.Context, name string) (*v1alpha1.NodeMaintenance, error) {
	m := &v1alpha1.NodeMaintenance{}
	err := c.group.Get().Resource("nodemaintenances").Name(name).Do(ctx).Into(m)
	if answers.DoesNotExist(err) {
		return nil, nil
	}
	return m, errors.Wrapf(err, "getting NodeMaintenance %s", name)
}

// CreateMaintenance creates a NodeMaintenance. It does nothing if one of this name exists.
func (c *Client) CreateMaintenance(ctx context.Context, m *v1alpha1.NodeMaintenance) error {
	m.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeMaintenance"}
	err := c.group.Post().Resource("nodemaintenances").Body(m).Do(ctx).Error()
	if answers.AlreadyExists(err) {
		return nil
	}
	return errors.Wrapf(err, "creating NodeMaintenance %s", m.Name)
}

// CompleteMaintenance sets the stage of a NodeMaintenance to Complete. It returns false if the NodeMaintenance does not exist.
func (c *Client) CompleteMaintenance(ctx context.Context, name string) (exists bool, err error) {
	patch := fmt.Appendf(nil, `{"spec":{"stage":%q}}`, v1alpha1.StageComplete)
	err = c.group.Patch(types.MergePatchType).Resource("nodemaintenances").Name(name).Body(patch).Do(ctx).Error()
	if answers.DoesNotExist(err) {
		return false, nil
	}
	return err == nil, errors.Wrapf(err, "completing NodeMaintenance %s", name)
}

// DeleteMaintenance deletes a NodeMaintenance. It does nothing if the NodeMaintenance does not exist.
func (c *Client) DeleteMaintenance(ctx context.Context, name string) error {
	err := c.group.Delete().Resource("nodemaintenances").Name(name).Do(ctx).Error()
	if answers.DoesNotExist(err) {
		return nil
	}
	return errors.Wrapf(err, "deleting NodeMaintenance %s", name)
}

// ReportEvacuation writes the evacuator's fields of the status of an Evacuation, and updates its resource version.
func (c *Client) ReportEvacuation(ctx context.Context, e *v1alpha1.Evacuation) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": e.ResourceVersion},
		"status": map[string]any{
			"activeEvacuatorCompleted":     e.Status.ActiveEvacuatorCompleted,
			"evacuationProgressTimestamp":  e.Status.EvacuationProgressTimestamp,
			"expectedEvacuationFinishTime": e.Status.ExpectedEvacuationFinishTime,
			"message":                      e.Status.Message,
		},
	})
	if err != nil {
		return errors.Wrap(err, "encoding a status")
	}
	written := &v1alpha1.Evacuation{}
	err = c.group.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("evacuations").Name(e.Name).SubResource("status").Body(patch).Do(ctx).Into(written)
	if err != nil {
		return errors.Wrapf(err, "writing the status of Evacuation %s/%s", e.Namespace, e.Name)
	}
	e.ResourceVersion = written.ResourceVersion
	return nil
}

// SetCondition sets a condition of the Node.
func (c *Client) SetCondition(ctx context.Context, condition corev1.NodeCondition) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return errors.Wrap(err, "encoding a condition")
	}
	err = c.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.node).SubResource("status").Body(patch).Do(ctx).Error()
	return errors.Wrapf(err, "setting condition %s of Node %s", condition.Type, c.node)
}

// CreateEvent creates an event on the Node.
func (c *Client) CreateEvent(ctx context.Context, node *corev1.Node, eventType, reason, message string) error {
	now := metav1.Now()
	event := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "capnm-node-agent-"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node.Name, UID: types.UID(node.Name)},
		Type:           eventType, Reason: reason, Message: message, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: "capnm-node-agent", Host: node.Name},
	}
	err := c.core.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	return errors.Wrapf(err, "creating event %s", reason)
}

// Answered reports whether the API server has answered a request that returned err: err is nil, the denial of an admission webhook with any
// code, or an API error. Those that a proxy or an overloaded API server sends do not count, such as 404 without a Status, or 502.
func Answered(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err == nil
	}
	return answers.IsDeniedByWebhook(err) || status.Status().Code < http.StatusInternalServerError && !answers.NotServed(err)
}
