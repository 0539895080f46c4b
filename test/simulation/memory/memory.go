// Package memory finds what a process keeps in memory: the maps that can be reached from its components.
package memory

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Map is a map, a set, or a sync.Map.
type Map struct {
	// Path is the type of a component and the names of the fields that lead to the map, with [] for a value of a slice or another map. It
	// begins again with the type of a value in an interface.
	Path string
	Keys []any
}

// Of returns the maps that can be reached from some components through structs of some packages, in the order of their paths. The values
// must not change meanwhile.
func Of(components []any, packages ...string) []Map {
	s := search{packages: packages, visited: map[place]bool{}}
	for _, component := range components {
		s.value(reflect.ValueOf(component), typeName(reflect.TypeOf(component)))
	}
	slices.SortStableFunc(s.found, func(a, b Map) int { return strings.Compare(a.Path, b.Path) })
	return s.found
}

type search struct {
	packages []string
	visited  map[place]bool
	found    []Map
}

// place is a pointer with its type: the first field of a struct has the address of the struct.
type place struct {
	at unsafe.Pointer
	of reflect.Type
}

func (s *search) value(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		if at := (place{v.UnsafePointer(), v.Type()}); !v.IsNil() && !s.visited[at] {
			s.visited[at] = true
			s.value(v.Elem(), path)
		}
	case reflect.Interface:
		if !v.IsNil() {
			s.value(addressable(v.Elem()), typeName(v.Elem().Type()))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[sync.Map]() {
			s.syncMap(v, path)
		} else if s.enters(v.Type()) {
			s.fields(v, path)
		}
	case reflect.Map:
		found := Map{Path: path}
		for each := v.MapRange(); each.Next(); {
			found.Keys = append(found.Keys, each.Key().Interface())
			s.value(addressable(each.Value()), path+"[]")
		}
		s.found = append(s.found, found)
	case reflect.Slice:
		for i := range v.Len() {
			s.value(v.Index(i), path+"[]")
		}
	default: // leads to no map
	}
}

func (s *search) enters(t reflect.Type) bool {
	return slices.ContainsFunc(s.packages, func(prefix string) bool { return t.PkgPath() == prefix || strings.HasPrefix(t.PkgPath(), prefix+"/") })
}

func (s *search) syncMap(v reflect.Value, path string) {
	found := Map{Path: path}
	v.Addr().Interface().(*sync.Map).Range(func(key, value any) bool {
		found.Keys = append(found.Keys, key)
		s.value(addressable(reflect.ValueOf(value)), path+"[]")
		return true
	})
	s.found = append(s.found, found)
}

// fields enters the fields of an addressable struct, those that are not exported included.
func (s *search) fields(v reflect.Value, path string) {
	for i := range v.NumField() {
		field := v.Field(i)
		s.value(reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem(), path+"."+v.Type().Field(i).Name)
	}
}

// addressable returns a copy of a struct, or another value itself.
func addressable(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Struct {
		return v
	}
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	return c
}

// typeName returns the package and the name of a type, without its type parameters.
func typeName(t reflect.Type) string {
	name, _, _ := strings.Cut(strings.TrimLeft(t.String(), "*"), "[")
	return name
}
