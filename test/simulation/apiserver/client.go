package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// directClient is a client without HTTP.
type directClient struct {
	server *Server
	user   string
}

// begin returns the operation of a method and the resource of the object.
func (c *directClient) begin(verb, subresource string, object client.Object) (operation, *resource, error) {
	gvk, err := c.GroupVersionKindFor(object)
	if err != nil {
		return operation{}, nil, err
	}
	return c.beginKind(verb, subresource, gvk, object.GetNamespace(), object.GetName())
}

func (c *directClient) beginKind(verb, subresource string, gvk schema.GroupVersionKind, namespace, name string) (operation, *resource, error) {
	k, err := c.server.resourceOf(gvk)
	if err != nil {
		return operation{}, nil, &apimeta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	}
	if !k.namespaced {
		namespace = ""
	}
	return operation{Request: Request{
		User: c.user, Verb: verb, Group: k.gvr.Group, Version: k.gvr.Version, Resource: k.gvr.Resource, Subresource: subresource,
		Namespace: namespace, Name: name,
	}}, k, nil
}

// copyTo copies a stored object to that of a caller.
func copyTo(object client.Object, v *version) error {
	gvk := object.GetObjectKind().GroupVersionKind()
	if reflect.TypeOf(object) == reflect.TypeOf(v.object) {
		reflect.ValueOf(object).Elem().Set(reflect.ValueOf(v.object.DeepCopyObject()).Elem())
		if _, ok := object.(*unstructured.Unstructured); !ok {
			object.GetObjectKind().SetGroupVersionKind(gvk)
		}
		return nil
	}
	if partial, ok := object.(*metav1.PartialObjectMetadata); ok {
		apimeta.AsPartialObjectMetadata(v.object).DeepCopyInto(partial)
		partial.SetGroupVersionKind(gvk)
		return nil
	}
	content, err := toContent(v.object)
	if err != nil {
		return err
	}
	if into, ok := object.(*unstructured.Unstructured); ok {
		into.Object = content
		return nil
	}
	return errors.WithStack(runtime.DefaultUnstructuredConverter.FromUnstructured(content, object))
}

// copyOf returns an object of a caller as it is stored.
func (c *directClient) copyOf(k *resource, object client.Object) (client.Object, error) {
	if _, ok := object.(*unstructured.Unstructured); ok != k.typed {
		return object.DeepCopyObject().(client.Object), nil
	}
	content, err := toContent(object)
	if err != nil {
		return nil, err
	}
	return c.server.fromContent(k, runtime.DeepCopyJSON(content))
}

func (c *directClient) Get(_ context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	gvk, err := c.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	r, k, err := c.beginKind("get", "", gvk, key.Namespace, key.Name)
	if err != nil {
		return err
	}
	stored := c.server.get(k, r.key())
	if stored == nil {
		return k.notFound(key.Name)
	}
	share := ptr.Deref((&client.GetOptions{}).ApplyOptions(options).UnsafeDisableDeepCopy, false)
	if share && reflect.TypeOf(object) == reflect.TypeOf(stored.object) {
		reflect.ValueOf(object).Elem().Set(reflect.ValueOf(stored.object).Elem())
		return nil
	}
	return copyTo(object, stored)
}

// listed returns the resource and the selector of a list.
func (c *directClient) listed(list client.ObjectList, options []client.ListOption) (schema.GroupVersionKind, *resource, watchOptions, error) {
	gvk, err := c.GroupVersionKindFor(list)
	if err != nil {
		return gvk, nil, watchOptions{}, err
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	all := (&client.ListOptions{}).ApplyOptions(options)
	_, k, err := c.beginKind("list", "", gvk, all.Namespace, "")
	if err != nil {
		return gvk, nil, watchOptions{}, err
	}
	chosen := watchOptions{selector: selector{all.Namespace, all.LabelSelector, all.FieldSelector}, direct: true}
	if all.Raw != nil {
		chosen.resourceVersion = all.Raw.ResourceVersion
		chosen.initial = ptr.Deref(all.Raw.SendInitialEvents, false)
	}
	return gvk, k, chosen, nil
}

// newItem returns an object of the type that a list has.
func (c *directClient) newItem(list client.ObjectList, gvk schema.GroupVersionKind) (client.Object, error) {
	switch list.(type) {
	case *unstructured.UnstructuredList:
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvk)
		return object, nil
	case *metav1.PartialObjectMetadataList:
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}}, nil
	}
	object, err := c.server.scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	return object.(client.Object), nil
}

func (c *directClient) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	gvk, k, chosen, err := c.listed(list, options)
	if err != nil {
		return err
	}
	share := ptr.Deref((&client.ListOptions{}).ApplyOptions(options).UnsafeDisableDeepCopy, false)
	if share && chosen.selector == (selector{}) {
		if revision, ok := c.server.shareItems(k, list); ok {
			list.SetResourceVersion(strconv.FormatInt(revision, 10))
			return nil
		}
	}
	objects, revision := c.server.list(k, chosen.selector)
	items := make([]runtime.Object, len(objects))
	shared, err := c.newItem(list, gvk)
	if err != nil {
		return err
	}
	for i, v := range objects {
		if share && reflect.TypeOf(shared) == reflect.TypeOf(v.object) {
			items[i] = v.object // SetList copies the struct
			continue
		}
		item, err := c.newItem(list, gvk)
		if err != nil {
			return err
		}
		if err := copyTo(item, v); err != nil {
			return err
		}
		items[i] = item
	}
	list.SetResourceVersion(strconv.FormatInt(revision, 10))
	return errors.WithStack(apimeta.SetList(list, items))
}

func (c *directClient) Watch(ctx context.Context, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
	gvk, k, chosen, err := c.listed(list, options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := c.server.watch(Request{User: c.user, Verb: "watch"}, k, chosen)
	events := make(chan watch.Event)
	go func() {
		defer close(events)
		defer w.stop()
		for {
			due, err := w.take(ctx)
			if err != nil {
				return
			}
			for _, each := range due {
				event := watch.Event{Type: each.event, Object: each.status}
				if each.object != nil {
					item, err := c.newItem(list, gvk)
					if err != nil || copyTo(item, each.object) != nil {
						return
					}
					event.Object = item
				}
				select {
				case events <- event:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return directWatch{events, cancel}, nil
}

type directWatch struct {
	events chan watch.Event
	cancel func()
}

func (w directWatch) Stop()                          { w.cancel() }
func (w directWatch) ResultChan() <-chan watch.Event { return w.events }

func (c *directClient) Create(_ context.Context, object client.Object, options ...client.CreateOption) error {
	r, k, err := c.begin("create", "", object)
	if err != nil {
		return err
	}
	r.dryRun = len((&client.CreateOptions{}).ApplyOptions(options).DryRun) > 0
	created, err := c.copyOf(k, object)
	if err != nil {
		return err
	}
	r.Name = ""
	stored, err := c.server.create(r, k, created)
	if err != nil {
		return err
	}
	return copyTo(object, stored)
}

func (c *directClient) Update(_ context.Context, object client.Object, options ...client.UpdateOption) error {
	return c.update("", object, object, len((&client.UpdateOptions{}).ApplyOptions(options).DryRun) > 0)
}

func (c *directClient) update(subresource string, object, body client.Object, dryRun bool) error {
	r, k, err := c.begin("update", subresource, object)
	if err != nil {
		return err
	}
	r.dryRun = dryRun
	updated := body // the server copies it
	if _, is := body.(*unstructured.Unstructured); is == k.typed && subresource != "scale" {
		if updated, err = c.copyOf(k, body); err != nil {
			return err
		}
	}
	stored, err := c.server.update(r, k, updated)
	if err != nil || subresource == "scale" {
		return err
	}
	return copyTo(object, stored)
}

func (c *directClient) Patch(_ context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	all := (&client.PatchOptions{}).ApplyOptions(options)
	return c.patch("", object, object, patch, all.FieldManager, len(all.DryRun) > 0)
}

func (c *directClient) patch(subresource string, object, body client.Object, patch client.Patch, manager string, dryRun bool) error {
	data, err := patch.Data(body)
	if err != nil {
		return errors.WithStack(err)
	}
	r, k, err := c.begin("patch", subresource, object)
	if err != nil {
		return err
	}
	r.manager, r.dryRun = manager, dryRun
	stored, _, err := c.server.patch(r, k, patch.Type(), data)
	if err != nil || subresource == "scale" {
		return err
	}
	return copyTo(object, stored)
}

func (c *directClient) Apply(_ context.Context, configuration runtime.ApplyConfiguration, options ...client.ApplyOption) error {
	all := (&client.ApplyOptions{}).ApplyOptions(options)
	return c.apply("", configuration, all.FieldManager, len(all.DryRun) > 0)
}

func (c *directClient) apply(subresource string, configuration runtime.ApplyConfiguration, manager string, dryRun bool) error {
	data, err := json.Marshal(configuration)
	if err != nil {
		return errors.WithStack(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(data); err != nil {
		return errors.WithStack(err)
	}
	r, k, err := c.begin("patch", subresource, object)
	if err != nil {
		return err
	}
	r.manager, r.dryRun = manager, dryRun
	stored, _, err := c.server.patch(r, k, types.ApplyYAMLPatchType, data)
	if err != nil {
		return err
	}
	if data, err = stored.encode(format{}); err != nil {
		return err
	}
	return errors.WithStack(json.Unmarshal(data, configuration))
}

func (c *directClient) Delete(_ context.Context, object client.Object, options ...client.DeleteOption) error {
	r, k, err := c.begin("delete", "", object)
	if err != nil {
		return err
	}
	all := (&client.DeleteOptions{}).ApplyOptions(options).AsDeleteOptions()
	r.dryRun = len(all.DryRun) > 0
	_, err = c.server.delete(r, k, all)
	return err
}

func (c *directClient) DeleteAllOf(_ context.Context, object client.Object, options ...client.DeleteAllOfOption) error {
	all := (&client.DeleteAllOfOptions{}).ApplyOptions(options)
	r, k, err := c.begin("deletecollection", "", object)
	if err != nil {
		return err
	}
	_, err = c.server.deleteAll(r, k, selector{all.Namespace, all.LabelSelector, all.FieldSelector}, all.AsDeleteOptions())
	return err
}

func (c *directClient) Scheme() *runtime.Scheme { return c.server.scheme }

func (c *directClient) RESTMapper() apimeta.RESTMapper {
	mapper := apimeta.NewDefaultRESTMapper(nil)
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for _, k := range c.server.sorted() {
		scope := apimeta.RESTScopeRoot
		if k.namespaced {
			scope = apimeta.RESTScopeNamespace
		}
		mapper.AddSpecific(k.gvk(), k.gvr, k.gvr.GroupVersion().WithResource(k.singular), scope)
	}
	return mapper
}

func (c *directClient) GroupVersionKindFor(object runtime.Object) (schema.GroupVersionKind, error) {
	return apiutil.GVKForObject(object, c.server.scheme)
}

func (c *directClient) IsObjectNamespaced(object runtime.Object) (bool, error) {
	gvk, err := c.GroupVersionKindFor(object)
	if err != nil {
		return false, err
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	k, err := c.server.resourceOf(gvk)
	return k != nil && k.namespaced, err
}

func (c *directClient) Status() client.SubResourceWriter { return c.SubResource("status") }

func (c *directClient) SubResource(name string) client.SubResourceClient {
	return directSubResource{c, name}
}

// directSubResource is a client of a subresource.
type directSubResource struct {
	client *directClient
	name   string
}

func (d directSubResource) Get(ctx context.Context, object, subResource client.Object, _ ...client.SubResourceGetOption) error {
	_, k, err := d.client.begin("get", d.name, object)
	if err != nil {
		return err
	}
	scale, ok := subResource.(*scaleType)
	if !ok || !k.scale || !k.typed {
		return errors.Errorf("%T has no subresource %s", object, d.name)
	}
	if err := d.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return err
	}
	*scale = *scaleOf(object)
	return nil
}

func (d directSubResource) Create(_ context.Context, object, subResource client.Object, _ ...client.SubResourceCreateOption) error {
	r, _, err := d.client.begin("create", d.name, object)
	if err != nil {
		return err
	}
	switch body := subResource.(type) {
	case *policyv1.Eviction:
		return d.client.server.evict(r, body)
	case *corev1.Binding:
		return d.client.server.bind(r, body)
	}
	return errors.Errorf("%T has no subresource %s that can be created", object, d.name)
}

func (d directSubResource) Update(_ context.Context, object client.Object, options ...client.SubResourceUpdateOption) error {
	all := (&client.SubResourceUpdateOptions{}).ApplyOptions(options)
	return d.client.update(d.name, object, cmp.Or(all.SubResourceBody, object), len(all.DryRun) > 0)
}

func (d directSubResource) Patch(_ context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	all := (&client.SubResourcePatchOptions{}).ApplyOptions(options)
	return d.client.patch(d.name, object, cmp.Or(all.SubResourceBody, object), patch, all.FieldManager, len(all.DryRun) > 0)
}

func (d directSubResource) Apply(_ context.Context, configuration runtime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
	all := (&client.SubResourceApplyOptions{}).ApplyOpts(options)
	return d.client.apply(d.name, configuration, all.FieldManager, len(all.DryRun) > 0)
}
