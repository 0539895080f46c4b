package setaside

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Source is where informers list and watch.
type Source struct {
	Config     *rest.Config
	HTTPClient *http.Client
	Scheme     *runtime.Scheme
	Namespace  string // empty: all namespaces
	// Kinds are the custom resources of which objects are set aside.
	Kinds []client.Object
}

// ListerWatcher returns a ListerWatcher of the objects of a kind that can be decoded. For another kind, it returns the one that is passed.
func (o *Objects) ListerWatcher(source Source, object runtime.Object, other cache.ListerWatcher) (cache.ListerWatcher, error) {
	var kind client.Object
	for _, each := range source.Kinds {
		if reflect.TypeOf(each) == reflect.TypeOf(object) {
			kind = each
		}
	}
	if kind == nil {
		return other, nil
	}
	gvk, err := apiutil.GVKForObject(kind, source.Scheme)
	if err != nil {
		return nil, errors.Wrapf(err, "finding the kind of %T", kind)
	}
	l := &lister{objects: o, gvk: gvk, scheme: source.Scheme, namespace: source.Namespace}
	l.resource, _ = meta.UnsafeGuessKindToResource(gvk)
	config := rest.CopyConfig(source.Config)
	groupVersion := gvk.GroupVersion()
	config.GroupVersion, config.APIPath = &groupVersion, "/apis"
	config.NegotiatedSerializer = negotiated{serializer.WithoutConversionCodecFactory{CodecFactory: serializer.NewCodecFactory(source.Scheme)}, l}
	l.client, err = rest.RESTClientForConfigAndClient(config, source.HTTPClient)
	return l, errors.Wrapf(err, "creating a client of %s", gvk.Kind)
}

// NewInformer creates the informers of a cache: see NewInformer of ctrlcache.Options.
func (o *Objects) NewInformer(source Source) func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer {
	return func(other cache.ListerWatcher, object runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		lw, err := o.ListerWatcher(source, object, other)
		if err != nil {
			lw = other // the cache has created a client from the same configuration, so this doesn't happen
		}
		informer := cache.NewSharedIndexInformer(lw, object, resync, indexers)
		if l, is := lw.(*lister); is {
			delivered := func(object any) {
				if object, is := object.(client.Object); is {
					o.Delivered(l.gvk.Kind, object)
				}
			}
			_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: delivered, UpdateFunc: func(_, after any) { delivered(after) }})
		}
		return informer
	}
}

// lister lists and watches one kind.
type lister struct {
	objects   *Objects
	client    rest.Interface
	scheme    *runtime.Scheme
	gvk       schema.GroupVersionKind
	resource  schema.GroupVersionResource
	namespace string

	listed sets.Set[types.NamespacedName] // what the present list has set aside so far; an informer lists in one goroutine
}

// IsWatchListSemanticsUnSupported makes informers list and then watch, because a watch does not say which objects that were set aside no
// longer exist.
func (l *lister) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.ListerWatcher.
func (l *lister) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (l *lister) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (l *lister) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.Continue == "" {
		l.listed = sets.New[types.NamespacedName]()
	}
	list, err := l.scheme.New(l.gvk.GroupVersion().WithKind(l.gvk.Kind + "List"))
	if err != nil {
		return nil, errors.Wrap(err, "creating a list")
	}
	if err := l.request(options).Do(ctx).Into(list); err != nil {
		return nil, err //nolint:wrapcheck // the informer inspects it
	}
	if accessor, err := meta.ListAccessor(list); err == nil && accessor.GetContinue() == "" {
		l.objects.remove(l.gvk.Kind, func(key types.NamespacedName) bool {
			return (l.namespace == "" || key.Namespace == l.namespace) && !l.listed.Has(key)
		})
	}
	return list, nil
}

// WatchWithContext implements cache.ListerWatcherWithContext. An object that can no longer be decoded is deleted from the cache.
func (l *lister) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch, options.AllowWatchBookmarks = true, true
	events, err := l.request(options).Watch(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // the informer inspects it
	}
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		aside, is := event.Object.(*standIn)
		if !is {
			return event, true
		}
		if event.Type == watch.Deleted {
			key := client.ObjectKeyFromObject(aside)
			l.objects.remove(l.gvk.Kind, func(each types.NamespacedName) bool { return each == key })
		} else {
			l.objects.add(&aside.PartialObjectMetadata, aside.err)
		}
		deleted, err := l.withoutSpec(&aside.PartialObjectMetadata)
		return watch.Event{Type: watch.Deleted, Object: deleted}, err == nil
	}), nil
}

func (l *lister) request(options metav1.ListOptions) *rest.Request {
	request := l.client.Get().Resource(l.resource.Resource).VersionedParams(&options, runtime.NewParameterCodec(l.scheme))
	if l.namespace != "" {
		request.Namespace(l.namespace)
	}
	return request
}

// withoutSpec returns an object of the kind that has only metadata, to delete it from a cache.
func (l *lister) withoutSpec(metadata *metav1.PartialObjectMetadata) (runtime.Object, error) {
	object, err := l.scheme.New(l.gvk)
	if err != nil {
		return nil, errors.Wrap(err, "creating an object")
	}
	data, err := json.Marshal(metadata)
	if err != nil {
		return nil, errors.Wrap(err, "encoding metadata")
	}
	return object, errors.Wrap(json.Unmarshal(data, object), "decoding metadata")
}

// standIn stands for an object that cannot be decoded.
type standIn struct {
	metav1.PartialObjectMetadata
	err error
}

// DeepCopyObject implements runtime.Object.
func (s *standIn) DeepCopyObject() runtime.Object {
	return &standIn{*s.DeepCopy(), s.err}
}

// negotiated decodes what the kind's decoder refuses as a standIn, or as a list without the object.
type negotiated struct {
	runtime.NegotiatedSerializer
	lister *lister
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (n negotiated) DecoderToVersion(decoder runtime.Decoder, version runtime.GroupVersioner) runtime.Decoder {
	return lenient{n.NegotiatedSerializer.DecoderToVersion(decoder, version), n.lister}
}

type lenient struct {
	runtime.Decoder
	lister *lister
}

// Decode implements runtime.Decoder.
func (d lenient) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, gvk, err := d.Decoder.Decode(data, defaults, into)
	if err == nil {
		return object, gvk, nil
	}
	if list, is := into.(client.ObjectList); is {
		return list, gvk, d.decodeEach(data, list, err)
	}
	metadata, ok := d.metadata(data)
	if into != nil || !ok {
		return object, gvk, err //nolint:wrapcheck // the client inspects it
	}
	return &standIn{metadata, err}, gvk, nil
}

// metadata decodes the metadata of an object of the kind.
func (d lenient) metadata(data []byte) (metadata metav1.PartialObjectMetadata, ok bool) {
	err := json.Unmarshal(data, &metadata)
	return metadata, err == nil && metadata.GroupVersionKind() == d.lister.gvk && metadata.Name != ""
}

// decodeEach decodes the objects of a list one by one, and sets those aside that cannot be decoded.
func (d lenient) decodeEach(data []byte, list client.ObjectList, listErr error) error {
	raw := struct {
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{}
	if err := json.Unmarshal(data, &raw); err != nil {
		return listErr
	}
	objects := make([]runtime.Object, 0, len(raw.Items))
	for _, item := range raw.Items {
		object, _, err := d.Decoder.Decode(item, &d.lister.gvk, nil)
		if err == nil {
			objects = append(objects, object)
			continue
		}
		metadata, ok := d.metadata(item)
		if !ok {
			return listErr
		}
		d.lister.listed.Insert(client.ObjectKeyFromObject(&metadata))
		d.lister.objects.add(&metadata, err)
	}
	list.SetResourceVersion(raw.ResourceVersion)
	list.SetContinue(raw.Continue)
	list.SetRemainingItemCount(raw.RemainingItemCount)
	return errors.Wrap(meta.SetList(list, objects), "setting the objects of a list")
}
