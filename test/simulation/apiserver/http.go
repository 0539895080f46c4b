package apiserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// response is the response to a request.
type response struct {
	code        int
	contentType string
	retryAfter  int32
	body        []byte
	watch       *watcher
	format      format
	message     string // of an error
	object      string // the name of the created object
}

// transport is the http.RoundTripper of a Server.
type transport struct{ server *Server }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.server
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, errors.WithStack(err)
		}
		_ = req.Body.Close()
	}
	r, err := parse(req)
	if err != nil {
		return nil, err
	}
	var answer response
	requested := time.Now()
	if err := get(s, &s.refuse)(r.Request); err != nil {
		answer = refusal(err)
	} else {
		answer = s.serve(req, r, body)
	}
	s.record(req, r, body, answer, requested)
	return answer.http(req), nil
}

func (a response) http(req *http.Request) *http.Response {
	header := http.Header{"Content-Type": {a.contentType}}
	if a.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(a.retryAfter)))
	}
	answer := &http.Response{
		Status: strconv.Itoa(a.code) + " " + http.StatusText(a.code), StatusCode: a.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: req,
	}
	if a.watch != nil {
		answer.Body, answer.ContentLength = &watchBody{ctx: req.Context(), watcher: a.watch, format: a.format}, -1
	}
	return answer
}

func (s *Server) record(req *http.Request, r operation, body []byte, answer response, requested time.Time) {
	event := controlplane.Event{
		User: r.User, UserAgent: r.UserAgent, Verb: r.Verb, Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Namespace: r.Namespace,
		Name: r.Name, Code: answer.code, Message: answer.message, Requested: requested, Answered: time.Now(), URI: req.URL.RequestURI(),
		RequestObject: body,
	}
	if event.Name == "" {
		event.Name = answer.object
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audit = append(s.audit, event)
}

// requestInfos parses the URLs of requests.
var requestInfos = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// parse returns the operation that a request asks for.
func parse(req *http.Request) (operation, error) {
	info, err := requestInfos.NewRequestInfo(req)
	if err != nil {
		return operation{}, errors.WithStack(err)
	}
	query := req.URL.Query()
	return operation{
		Request: Request{
			User: cmp.Or(req.Header.Get("Impersonate-User"), req.Header.Get("X-Remote-User")), UserAgent: req.UserAgent(), Verb: info.Verb,
			Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource, Subresource: info.Subresource, Namespace: info.Namespace, Name: info.Name,
		},
		dryRun: query.Has("dryRun"), manager: query.Get("fieldManager"),
	}, nil
}

// internalError returns an error that a real API server has not made for the API.
func internalError(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: message}}
}

func methodNotAllowed() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the server does not allow this method on the requested resource",
	}}
}

// refusal returns the response with an error.
func refusal(err error) response {
	var known apierrors.APIStatus
	status := apierrors.NewInternalError(err).Status()
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.Marshal(status)
	answer := response{code: int(status.Code), contentType: contentJSON, body: body, message: status.Message}
	if status.Details != nil {
		answer.retryAfter = status.Details.RetryAfterSeconds
	}
	return answer
}

var success = []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`)

func (s *Server) serve(req *http.Request, r operation, body []byte) response {
	if r.Resource == "" {
		return s.serveDocument(req)
	}
	k := s.resource(schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource})
	if k == nil {
		return pageNotFound()
	}
	if !k.namespaced { // it is set for a Namespace
		r.Namespace = ""
	}
	answer, err := s.serveResource(req, r, k, body)
	if err != nil {
		return refusal(err)
	}
	return answer
}

func pageNotFound() response {
	return response{code: http.StatusNotFound, contentType: "text/plain; charset=utf-8", body: []byte("404 page not found\n"), message: "404 page not found"}
}

// serveResource serves a resource or a subresource.
func (s *Server) serveResource(req *http.Request, r operation, k *resource, body []byte) (response, error) {
	switch r.Subresource {
	case "":
		return s.serveVerb(req, r, k, body)
	case "status":
		if k.status && r.Verb != "create" && r.Verb != "delete" {
			return s.serveVerb(req, r, k, body)
		}
	case "scale":
		if k.scale && k.typed {
			return s.serveScale(req, r, k, body)
		}
	case "eviction", "binding":
		if k.gvr.Resource == "pods" && r.Verb == "create" {
			return s.serveAction(r, body)
		}
	}
	if k.custom {
		return response{}, k.notFound(r.Name)
	}
	return pageNotFound(), nil
}

// serveVerb serves the verbs of a resource, and those of its status.
func (s *Server) serveVerb(req *http.Request, r operation, k *resource, body []byte) (response, error) {
	f, code := negotiate(req.Header.Get("Accept"), k), http.StatusOK
	var stored *version
	var object client.Object
	var created bool
	var err error
	switch r.Verb {
	case "list", "watch", "deletecollection":
		return s.serveCollection(req, r, k, f, body)
	case "delete":
		return s.serveDelete(r, k, f, body)
	case "get":
		if stored = s.get(k, r.key()); stored == nil {
			err = k.notFound(r.Name)
		}
	case "create":
		if r.Name != "" {
			return response{}, methodNotAllowed()
		}
		code = http.StatusCreated
		if object, err = s.decodeObject(k, body); err == nil {
			stored, err = s.create(r, k, object)
		}
	case "update":
		if object, err = s.decodeObject(k, body); err == nil {
			stored, err = s.update(r, k, object)
		}
	case "patch":
		if stored, created, err = s.patch(r, k, patchType(req), body); created {
			code = http.StatusCreated
		}
	default:
		err = apierrors.NewMethodNotSupported(k.gvr.GroupResource(), r.Verb)
	}
	if err != nil {
		return response{}, err
	}
	return objectResponse(code, f, stored)
}

// objectResponse returns the response with an object.
func objectResponse(code int, f format, stored *version) (response, error) {
	encoded, err := f.object(stored)
	return response{code: code, contentType: f.contentType(), body: encoded, object: stored.object.GetName()}, err
}

// serveDelete answers with the object if it is only marked for deletion, or a Pod or volume.
func (s *Server) serveDelete(r operation, k *resource, f format, body []byte) (response, error) {
	options := &metav1.DeleteOptions{}
	if err := decodeOptions(body, options); err != nil {
		return response{}, err
	}
	r.dryRun = r.dryRun || len(options.DryRun) > 0
	stored, err := s.delete(r, k, options)
	if err != nil {
		return response{}, err
	}
	if isRemovable(stored.object) && !k.returned {
		return response{code: http.StatusOK, contentType: contentJSON, body: success}, nil
	}
	return objectResponse(http.StatusOK, f, stored)
}

func patchType(req *http.Request) types.PatchType {
	contentType, _, _ := strings.Cut(req.Header.Get("Content-Type"), ";")
	return types.PatchType(contentType)
}

func decodeOptions(body []byte, options *metav1.DeleteOptions) error {
	if len(body) == 0 {
		return nil
	}
	if _, err := decode(body, options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// decodeObject reads an object of a resource.
func (s *Server) decodeObject(k *resource, body []byte) (client.Object, error) {
	object := s.newObject(k)
	var into any = object
	if content, ok := object.(*unstructured.Unstructured); ok {
		into = &content.Object
	}
	gvk, err := decode(body, into)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if gvk.Kind != "" && gvk != k.gvk() {
		return nil, apierrors.NewBadRequest("the object provided is " + gvk.String() + ", expected " + k.gvk().String())
	}
	object.GetObjectKind().SetGroupVersionKind(k.gvk())
	return object, nil
}

// serveCollection serves list, watch and deletecollection.
func (s *Server) serveCollection(req *http.Request, r operation, k *resource, f format, body []byte) (response, error) {
	query := req.URL.Query()
	chosen, err := newSelector(k, r.Namespace, query.Get("labelSelector"), query.Get("fieldSelector"))
	if err != nil {
		return response{}, err
	}
	switch r.Verb {
	case "watch":
		seconds, _ := strconv.ParseInt(query.Get("timeoutSeconds"), 10, 64)
		w := s.watch(r.Request, k, watchOptions{
			selector: chosen, resourceVersion: query.Get("resourceVersion"), initial: query.Get("sendInitialEvents") == "true",
			timeout: time.Duration(seconds) * time.Second,
		})
		contentType := f.contentType()
		if f.protobuf {
			contentType += ";stream=watch"
		}
		return response{code: http.StatusOK, contentType: contentType, watch: w, format: f}, nil
	case "deletecollection":
		options := &metav1.DeleteOptions{}
		if err := decodeOptions(body, options); err != nil {
			return response{}, err
		}
		objects, err := s.deleteAll(r, k, chosen, options)
		if err != nil {
			return response{}, err
		}
		encoded, err := f.list(k, objects, 0)
		return response{code: http.StatusOK, contentType: f.contentType(), body: encoded}, err
	}
	objects, revision := s.list(k, chosen)
	encoded, err := f.list(k, objects, revision)
	return response{code: http.StatusOK, contentType: f.contentType(), body: encoded}, err
}

// serveAction serves the subresources of Pods that are created.
func (s *Server) serveAction(r operation, body []byte) (response, error) {
	eviction, binding := &policyv1.Eviction{}, &corev1.Binding{}
	var into any = eviction
	if r.Subresource == "binding" {
		into = binding
	}
	if _, err := decode(body, into); err != nil {
		return response{}, apierrors.NewBadRequest(err.Error())
	}
	var err error
	if r.Subresource == "binding" {
		err = s.bind(r, binding)
	} else {
		err = s.evict(r, eviction)
	}
	return response{code: http.StatusCreated, contentType: contentJSON, body: success}, err
}

func (s *Server) serveScale(req *http.Request, r operation, k *resource, body []byte) (response, error) {
	stored, err := s.get(k, r.key()), error(nil)
	switch r.Verb {
	case "get":
		if stored == nil {
			err = k.notFound(r.Name)
		}
	case "update":
		scale := &autoscalingv1.Scale{}
		if _, err = decode(body, scale); err != nil {
			return response{}, apierrors.NewBadRequest(err.Error())
		}
		stored, err = s.update(r, k, scale)
	case "patch":
		stored, _, err = s.patch(r, k, patchType(req), body)
	default:
		err = apierrors.NewMethodNotSupported(k.gvr.GroupResource(), r.Verb)
	}
	if err != nil {
		return response{}, err
	}
	encoded, err := json.Marshal(scaleOf(stored.object))
	return response{code: http.StatusOK, contentType: contentJSON, body: encoded}, errors.WithStack(err)
}
