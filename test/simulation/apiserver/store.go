package apiserver

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// version is a stored version of an object. It never changes.
type version struct {
	resource  *resource
	key       string // namespace/name, or the name of a cluster-scoped object
	revision  int64
	object    client.Object
	encodings [4]encoding // by format
}

// logged is a write in the history from which watches resume. old is nil for a creation, new is nil for a removal.
type logged struct {
	revision int64
	old, new *version

	once sync.Once
	last *version
}

// removed returns the old object with the revision of the write: the object of a DELETED event.
func (l *logged) removed() *version {
	l.once.Do(func() {
		object := shallowCopy(l.old.object)
		object.SetResourceVersion(strconv.FormatInt(l.revision, 10))
		l.last = &version{resource: l.old.resource, key: l.old.key, revision: l.revision, object: object}
	})
	return l.last
}

// shallowCopy returns a copy of an object, of which the caller may set fields. It must not change what they refer to: stored versions share
// it.
func shallowCopy(object client.Object) client.Object {
	if _, is := object.(*unstructured.Unstructured); is {
		return object.DeepCopyObject().(client.Object)
	}
	value := reflect.New(reflect.TypeOf(object).Elem())
	value.Elem().Set(reflect.ValueOf(object).Elem())
	return value.Interface().(client.Object)
}

// find returns the index of an object, or where it is to be inserted.
func (k *resource) find(key string) (int, bool) {
	return slices.BinarySearchFunc(k.objects, key, func(v *version, key string) int { return strings.Compare(v.key, key) })
}

// get returns the present version of an object, or nil.
func (s *Server) get(k *resource, key string) *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, found := k.find(key); found {
		return k.objects[i]
	}
	return nil
}

// Objects returns all stored objects. They are shared: read only.
func (s *Server) Objects() []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []client.Object
	for _, k := range s.resources {
		for _, v := range k.objects {
			all = append(all, v.object)
		}
	}
	return all
}

// list returns the objects that a selector selects, and the revision.
func (s *Server) list(k *resource, selector selector) ([]*version, int64) {
	s.mu.Lock()
	objects, revision := slices.Clone(k.objects), s.revision
	s.mu.Unlock()
	return slices.DeleteFunc(objects, func(v *version) bool { return !selector.matches(v) }), revision
}

// shareItems lets a list of Go types share its items with other lists, until one of the objects changes. It returns the revision, and
// false if the list has another type.
func (s *Server) shareItems(k *resource, list client.ObjectList) (revision int64, ok bool) {
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	if !k.typed || items.Kind() != reflect.Slice {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !k.items.IsValid() || k.itemsOf != len(k.log) {
		all := reflect.MakeSlice(items.Type(), len(k.objects), len(k.objects))
		for i, v := range k.objects {
			item := reflect.ValueOf(v.object).Elem()
			if item.Type() != items.Type().Elem() {
				return 0, false
			}
			all.Index(i).Set(item)
		}
		k.items, k.itemsOf = all, len(k.log)
	}
	if k.items.Type() != items.Type() {
		return 0, false
	}
	items.Set(k.items)
	return s.revision, true
}

// commit stores the next version of an object, nil to remove it, if the present one is still the old one. The caller must not use the
// object any more. For a removal, commit returns the removed object.
func (s *Server) commit(k *resource, key string, old *version, object client.Object) (stored *version, ok bool) {
	defer s.notify()
	s.mu.Lock()
	defer s.mu.Unlock()
	var present *version
	if i, found := k.find(key); found {
		present = k.objects[i]
	}
	if present != old || k.gone {
		return nil, false
	}
	stored = s.store(k, key, old, object)
	if k.gvr.Group == apiextensionsv1.GroupName {
		definition, err := definitionOf(stored.object)
		switch {
		case err != nil: // nothing is served
		case object == nil:
			s.undefine(definition)
		default:
			s.define(definition)
		}
	}
	return stored, true
}

// store is commit without its checks. The caller holds the lock.
func (s *Server) store(k *resource, key string, old *version, object client.Object) *version {
	s.revision++
	entry := &logged{revision: s.revision, old: old}
	change := Change{Revision: s.revision, Key: k.keyPrefix + key}
	i, _ := k.find(key)
	if old != nil {
		change.Old = old.object
		delete(s.owners, old.object.GetUID())
	}
	if object == nil {
		k.objects = slices.Delete(k.objects, i, i+1)
		s.scheduleCollection()
	} else {
		object.SetResourceVersion(strconv.FormatInt(s.revision, 10))
		entry.new = &version{resource: k, key: key, revision: s.revision, object: object}
		change.New = object
		if old == nil {
			k.objects = slices.Insert(k.objects, i, entry.new)
		} else {
			k.objects[i] = entry.new
		}
		s.owners[object.GetUID()] = true
		if s.isGarbage(object) {
			s.scheduleCollection()
		}
	}
	k.log = append(k.log, entry)
	now := time.Now()
	for _, w := range k.watchers {
		w.offer(entry, now)
	}
	s.pending = append(s.pending, change)
	if entry.new == nil {
		return entry.removed()
	}
	return entry.new
}
