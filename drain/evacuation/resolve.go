package evacuation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Limits of the API, see v1alpha1.Evacuator.
const (
	maxEvacuators  = 100
	maxClassLength = 54
	maxPriority    = 100000
	maxRoleLength  = 63

	// maxProblems bounds the events that the annotations of one Pod can cause.
	maxProblems = 10
	// maxQuoted bounds how much of a tenant's input a message quotes.
	maxQuoted = 40
)

// Subject is the input of Resolve.
type Subject struct {
	// Annotations of the Pod.
	Annotations map[string]string
	// BuiltIn are the built-in evacuators that serve this Pod.
	BuiltIn []v1alpha1.Evacuator
	// Unserved are the built-in evacuators that do not serve this Pod, see Unserved.
	Unserved []string
	// Policy decides whether Resolve considers the annotations. Empty: it does.
	Policy v1alpha1.EvacuatorsPolicy
}

// Problem is an evacuator that Resolve has rejected. The controller reports it as an event on the Pod.
type Problem struct {
	// Annotation is the key of the Pod's annotation; empty for a built-in evacuator.
	Annotation string
	Message    string
}

// Resolve returns the evacuators of a Pod in the order in which they are tried: by descending priority, then by class.
//
// The result always passes the validation of spec.evacuators. At most one evacuator has the role controller. It has priority
// 10000, and no other evacuator has. A built-in controller takes precedence over an annotated one, since it serves the real owner of
// the Pod; of several annotated ones, the first by class takes precedence. Resolve returns at most 100 evacuators, and drops those with
// the lowest priority, but never the one with role controller.
func Resolve(s Subject) ([]v1alpha1.Evacuator, []Problem) {
	r := resolution{byClass: map[string]v1alpha1.Evacuator{}}
	for _, evacuator := range s.BuiltIn {
		r.add("", evacuator)
	}
	if s.Policy != v1alpha1.EvacuatorsBuiltIn {
		for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
			class, found := strings.CutPrefix(key, v1alpha1.EvacuatorPriorityAnnotationPrefix)
			if !found {
				continue
			}
			evacuator, err := parse(class, s.Annotations[key])
			if err != nil {
				r.refuse(key, err.Error())
				continue
			}
			if slices.Contains(s.Unserved, class) {
				r.refuse(key, fmt.Sprintf("built-in evacuator %s does not serve the Pod", class))
				continue
			}
			r.add(key, evacuator)
		}
	}
	return r.evacuators(), r.report()
}

// resolution collects evacuators. Those that are added first take precedence.
type resolution struct {
	byClass    map[string]v1alpha1.Evacuator
	controller string
	problems   []Problem
	unreported int
}

func (r *resolution) add(annotation string, evacuator v1alpha1.Evacuator) {
	if err := check(evacuator); err != nil {
		r.refuse(annotation, err.Error())
		return
	}
	if known, found := r.byClass[evacuator.EvacuatorClass]; found {
		if !same(known, evacuator) {
			r.refuse(annotation, fmt.Sprintf("evacuator %s is built in as %s", known.EvacuatorClass, describe(known)))
		}
		return
	}
	if isController(evacuator) {
		if r.controller != "" {
			r.refuse(annotation, fmt.Sprintf("%s already has the role %s", r.controller, v1alpha1.EvacuatorRoleController))
			return
		}
		r.controller = evacuator.EvacuatorClass
	}
	r.byClass[evacuator.EvacuatorClass] = *evacuator.DeepCopy()
}

func (r *resolution) refuse(annotation, message string) {
	if len(r.problems) == maxProblems {
		r.unreported++
		return
	}
	r.problems = append(r.problems, Problem{Annotation: annotation, Message: message})
}

// evacuators returns the collected evacuators in order, at most maxEvacuators.
func (r *resolution) evacuators() []v1alpha1.Evacuator {
	sorted := inOrder(slices.Collect(maps.Values(r.byClass)))
	if len(sorted) <= maxEvacuators {
		return sorted
	}
	places := maxEvacuators
	if r.controller != "" {
		places--
	}
	kept := make([]v1alpha1.Evacuator, 0, maxEvacuators)
	for _, evacuator := range sorted {
		switch {
		case isController(evacuator):
			kept = append(kept, evacuator)
		case places > 0:
			kept = append(kept, evacuator)
			places--
		default:
			r.refuse(v1alpha1.EvacuatorPriorityAnnotationPrefix+evacuator.EvacuatorClass,
				fmt.Sprintf("a Pod can have at most %d evacuators; this one is ignored", maxEvacuators))
		}
	}
	return kept
}

func (r *resolution) report() []Problem {
	if r.unreported > 0 {
		last := &r.problems[len(r.problems)-1]
		last.Message += " (and " + text.Count(r.unreported, "more invalid evacuator") + ")"
	}
	return r.problems
}

// parse reads the value of an annotation: "PRIORITY" or "PRIORITY/ROLE".
func parse(class, value string) (v1alpha1.Evacuator, error) {
	number, role, hasRole := strings.Cut(value, "/")
	priority, err := strconv.ParseUint(number, 10, 31)
	if err != nil || priority > maxPriority {
		return v1alpha1.Evacuator{}, errors.Errorf("%s is not PRIORITY or PRIORITY/ROLE with a priority from 0 to %d", quote(value), maxPriority)
	}
	evacuator := v1alpha1.Evacuator{EvacuatorClass: class, Priority: int32(priority)}
	if hasRole {
		evacuator.Role = &role
	}
	return evacuator, nil
}

// check returns why an evacuator is invalid.
func check(e v1alpha1.Evacuator) error {
	switch {
	case len(e.EvacuatorClass) > maxClassLength || len(validation.IsDNS1123Subdomain(e.EvacuatorClass)) > 0:
		return errors.Errorf("the class %s is not a DNS subdomain of at most %d characters", quote(e.EvacuatorClass), maxClassLength)
	case e.Priority < 0 || e.Priority > maxPriority:
		return errors.Errorf("priority %d is not from 0 to %d", e.Priority, maxPriority)
	case e.Role != nil && *e.Role == "":
		return errors.New("the role is empty")
	case e.Role != nil && !isRole(*e.Role):
		return errors.Errorf("the role %s must have at most %d printable characters", quote(*e.Role), maxRoleLength)
	case isController(e) != (e.Priority == v1alpha1.EvacuatorControllerPriority):
		return errors.Errorf("priority %d requires the role %s, and the role requires this priority", v1alpha1.EvacuatorControllerPriority,
			v1alpha1.EvacuatorRoleController)
	}
	return nil
}

func isRole(role string) bool {
	return utf8.ValidString(role) && utf8.RuneCountInString(role) <= maxRoleLength &&
		strings.IndexFunc(role, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

func isController(e v1alpha1.Evacuator) bool {
	return e.Role != nil && *e.Role == v1alpha1.EvacuatorRoleController
}

// same reports whether two evacuators of one class are equal.
func same(a, b v1alpha1.Evacuator) bool { return describe(a) == describe(b) }

// describe returns an evacuator in the format of the annotation's value.
func describe(e v1alpha1.Evacuator) string {
	if e.Role == nil {
		return strconv.Itoa(int(e.Priority))
	}
	return strconv.Itoa(int(e.Priority)) + "/" + *e.Role
}

// inOrder returns the evacuators in the order in which they are tried. It does not change its argument.
func inOrder(evacuators []v1alpha1.Evacuator) []v1alpha1.Evacuator {
	return slices.SortedFunc(slices.Values(evacuators), func(a, b v1alpha1.Evacuator) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.EvacuatorClass, b.EvacuatorClass))
	})
}

// quote returns a tenant's input for a message: quoted, and cut to maxQuoted characters.
func quote(input string) string {
	return strconv.Quote(text.Cut(input, maxQuoted))
}
