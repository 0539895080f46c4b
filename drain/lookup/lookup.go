// Package lookup distinguishes an object that does not exist from one that has not been read yet or could not be read. A decision that
// depends on an object takes a Result, so that no caller can pass nil for an object that it has not read.
package lookup

// Result is the result of reading an object. Its zero value means that the object has not been read yet, or could not be read.
type Result[T any] struct {
	object *T
	read   bool
}

// Of returns the Result of a successful request: object is nil if it does not exist.
func Of[T any](object *T) Result[T] { return Result[T]{object: object, read: true} }

// Get returns the object, and whether it exists. found is also false if it is not known: see IsKnown.
func (r Result[T]) Get() (object *T, found bool) { return r.object, r.object != nil }

// IsKnown reports whether the object was read, or is known not to exist.
func (r Result[T]) IsKnown() bool { return r.read }
