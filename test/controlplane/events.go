package controlplane

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Event is a request with its response.
type Event struct {
	User      string
	UserAgent string
	Verb      string

	Group       string
	Resource    string
	Subresource string
	Namespace   string
	Name        string

	// Code is the HTTP status of the response, and Message the message of an error.
	Code    int
	Message string
	// Requested and Answered are the times when the API server received the request and ended the response.
	Requested, Answered time.Time
	// URI of the request, with its selectors.
	URI string
	// RequestObject and ResponseObject are the bodies, where the audit policy says to record them.
	RequestObject, ResponseObject json.RawMessage
}

func newEvent(recorded *auditv1.Event) Event {
	event := Event{
		User:      recorded.User.Username,
		UserAgent: recorded.UserAgent,
		Verb:      recorded.Verb,
		URI:       recorded.RequestURI,
		Requested: recorded.RequestReceivedTimestamp.Time,
		Answered:  recorded.StageTimestamp.Time,
	}
	if recorded.ImpersonatedUser != nil {
		event.User = recorded.ImpersonatedUser.Username
	}
	if object := recorded.ObjectRef; object != nil {
		event.Group, event.Resource, event.Subresource = object.APIGroup, object.Resource, object.Subresource
		event.Namespace, event.Name = object.Namespace, object.Name
	}
	if recorded.ResponseStatus != nil {
		event.Code, event.Message = int(recorded.ResponseStatus.Code), recorded.ResponseStatus.Message
	}
	if recorded.RequestObject != nil {
		event.RequestObject = recorded.RequestObject.Raw
	}
	if recorded.ResponseObject != nil {
		event.ResponseObject = recorded.ResponseObject.Raw
	}
	return event
}

// UIDPrecondition returns the UID precondition of a deletion or eviction, or "" if the request had
// none.
func (e Event) UIDPrecondition() types.UID {
	type options struct {
		Preconditions struct {
			UID types.UID `json:"uid"`
		} `json:"preconditions"`
	}
	var body struct {
		options
		DeleteOptions options `json:"deleteOptions"`
	}
	if json.Unmarshal(e.RequestObject, &body) != nil {
		return ""
	}
	if e.Subresource == "eviction" {
		return body.DeleteOptions.Preconditions.UID
	}
	return body.Preconditions.UID
}

// cutOffMessages are those of golang.org/x/net/http2 for a request whose body ends early. Its version decides which: errClientDisconnected
// or errClosedBody.
var cutOffMessages = []string{"client disconnected", "body closed by handler"}

// IsCutOff returns whether the client disconnected before the API server had read the request, so that the request had no effect. That
// happens when a program is killed while it sends.
func (e Event) IsCutOff() bool {
	return e.RequestObject == nil && slices.Contains(cutOffMessages, e.Message)
}

// String returns one line for a failure message.
func (e Event) String() string {
	resource := e.Resource
	if e.Group != "" {
		resource += "." + e.Group
	}
	if e.Subresource != "" {
		resource += "/" + e.Subresource
	}
	return fmt.Sprintf("%s %d %s %s %s by %s (%s)", e.Answered.Format("15:04:05.000"), e.Code, e.Verb, resource,
		strings.Trim(e.Namespace+"/"+e.Name, "/"), e.User, e.UserAgent)
}

// Events are requests in the order of their responses. The methods filter them:
//
//	events.By("alice").Verb("create").Resource("pods", "eviction").InNamespace("shop").Failed(429)
type Events []Event

// Where keeps the events for which keep returns true.
func (es Events) Where(condition func(Event) bool) Events {
	var kept Events
	for _, event := range es {
		if condition(event) {
			kept = append(kept, event)
		}
	}
	return kept
}

// By keeps the requests of these users.
func (es Events) By(users ...string) Events {
	return es.Where(func(e Event) bool { return slices.Contains(users, e.User) })
}

// WithUserAgent keeps the requests whose user agent has this prefix.
func (es Events) WithUserAgent(prefix string) Events {
	return es.Where(func(e Event) bool { return strings.HasPrefix(e.UserAgent, prefix) })
}

// Verb keeps one or several kinds of requests, such as "create" or "patch".
func (es Events) Verb(verbs ...string) Events {
	return es.Where(func(e Event) bool { return slices.Contains(verbs, e.Verb) })
}

// Writes keeps the requests that change objects.
func (es Events) Writes() Events {
	return es.Verb("create", "update", "patch", "delete", "deletecollection")
}

// Resource keeps requests about a resource ("pods", or with its group "machines.cluster.x-k8s.io")
// itself, or about one of these subresources of it.
func (es Events) Resource(resource string, subresources ...string) Events {
	wanted := schema.ParseGroupResource(resource)
	if len(subresources) == 0 {
		subresources = []string{""}
	}
	return es.Where(func(e Event) bool {
		return e.Resource == wanted.Resource &&
			(wanted.Group == "" || e.Group == wanted.Group) &&
			slices.Contains(subresources, e.Subresource)
	})
}

// InNamespace keeps requests about objects in a namespace.
func (es Events) InNamespace(namespace string) Events {
	return es.Where(func(e Event) bool { return e.Namespace == namespace })
}

// Named keeps requests about one object; the namespace of a cluster-scoped one is "".
func (es Events) Named(namespace, name string) Events {
	return es.InNamespace(namespace).Where(func(e Event) bool { return e.Name == name })
}

// Succeeded keeps the successful requests.
func (es Events) Succeeded() Events {
	return es.Where(func(e Event) bool { return e.Code >= 200 && e.Code < 300 })
}

// Failed keeps the requests that failed with one of these codes, or with any error.
func (es Events) Failed(codes ...int) Events {
	return es.Where(func(e Event) bool {
		return e.Code >= 400 && (len(codes) == 0 || slices.Contains(codes, e.Code))
	})
}

// Len is the number of events.
func (es Events) Len() int { return len(es) }

// Names returns the names of the objects, in order and with repetitions.
func (es Events) Names() []string {
	names := make([]string, 0, len(es))
	for _, event := range es {
		names = append(names, event.Name)
	}
	return names
}

// String returns a line for each event.
func (es Events) String() string {
	var lines strings.Builder
	for _, event := range es {
		lines.WriteString(event.String() + "\n")
	}
	return lines.String()
}
