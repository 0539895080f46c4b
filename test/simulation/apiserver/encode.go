package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"mime"
	"strconv"
	"strings"
	"sync"

	"github.com/pkg/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

const (
	contentJSON     = "application/json"
	contentProtobuf = "application/vnd.kubernetes.protobuf"
)

// protobufPrefix begins an object that is encoded as protobuf.
var protobufPrefix = []byte("k8s\x00")

type (
	protobufMarshaler   interface{ Marshal() ([]byte, error) }
	protobufUnmarshaler interface{ Unmarshal(data []byte) error }
)

// format is how objects are encoded: as JSON or protobuf, in full or only their metadata.
type format struct {
	protobuf, metadata bool
}

// negotiate returns the format of a response about objects of a resource.
func negotiate(accept string, k *resource) format {
	for part := range strings.SplitSeq(accept, ",") {
		mediaType, parameters, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		chosen := format{protobuf: mediaType == contentProtobuf}
		switch parameters["as"] {
		case "":
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			chosen.metadata = true
		default:
			continue
		}
		if chosen.protobuf && !k.protobuf && !chosen.metadata {
			continue
		}
		return chosen
	}
	return format{}
}

func (f format) contentType() string {
	if f.protobuf {
		return contentProtobuf
	}
	return contentJSON
}

// encoding is an encoded version, once it was needed.
type encoding struct {
	once sync.Once
	raw  []byte
	err  error
}

// encode returns the version in a format. For protobuf, it is the message without its envelope.
func (v *version) encode(f format) ([]byte, error) {
	i := 0
	if f.protobuf {
		i++
	}
	if f.metadata {
		i += 2
	}
	encoded := &v.encodings[i]
	encoded.once.Do(func() {
		var object runtime.Object = v.object
		if f.metadata {
			partial := apimeta.AsPartialObjectMetadata(v.object)
			partial.SetGroupVersionKind(partialKind)
			object = partial
		}
		if marshaler, ok := object.(protobufMarshaler); ok && f.protobuf {
			encoded.raw, encoded.err = marshaler.Marshal()
		} else if content, ok := object.(*unstructured.Unstructured); ok {
			encoded.raw, encoded.err = json.Marshal(content.Object)
		} else {
			encoded.raw, encoded.err = json.Marshal(object)
		}
	})
	return encoded.raw, errors.WithStack(encoded.err)
}

var partialKind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")

// kind returns the kind of encoded objects of a resource.
func (f format) kind(k *resource) schema.GroupVersionKind {
	if f.metadata {
		return partialKind
	}
	return k.gvk()
}

// envelope returns a protobuf message with its kind.
func envelope(gvk schema.GroupVersionKind, message []byte) ([]byte, error) {
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}, Raw: message}
	raw, err := unknown.Marshal()
	return append(bytes.Clone(protobufPrefix), raw...), errors.WithStack(err)
}

// object returns the body of a response with one object.
func (f format) object(v *version) ([]byte, error) {
	raw, err := v.encode(f)
	if err != nil || !f.protobuf {
		return raw, err
	}
	return envelope(f.kind(v.resource), raw)
}

// list returns the body of a response with a list.
func (f format) list(k *resource, objects []*version, revision int64) ([]byte, error) {
	gvk := f.kind(k)
	gvk.Kind = k.listKind
	if f.metadata {
		gvk.Kind = "PartialObjectMetadataList"
	}
	listMeta := &metav1.ListMeta{ResourceVersion: strconv.FormatInt(revision, 10)}
	var body []byte
	if f.protobuf { // all lists have their metadata in field 1, and their items in field 2
		raw, err := listMeta.Marshal()
		if err != nil {
			return nil, errors.WithStack(err)
		}
		body = appendField(body, 1, raw)
	} else {
		body = append(body, `{"kind":"`+gvk.Kind+`","apiVersion":"`+gvk.GroupVersion().String()+`","metadata":{"resourceVersion":"`+
			listMeta.ResourceVersion+`"},"items":[`...)
	}
	for i, v := range objects {
		raw, err := v.encode(f)
		if err != nil {
			return nil, err
		}
		switch {
		case f.protobuf:
			body = appendField(body, 2, raw)
			continue
		case i > 0:
			body = append(body, ',')
		}
		body = append(body, raw...)
	}
	if f.protobuf {
		return envelope(gvk, body)
	}
	return append(body, "]}"...), nil
}

// appendField appends a field of a protobuf message that is a message itself.
func appendField(body []byte, field uint64, message []byte) []byte {
	body = binary.AppendUvarint(body, field<<3|2)
	return append(binary.AppendUvarint(body, uint64(len(message))), message...)
}

// appendEvent appends an event of a watch with its frame.
func (f format) appendEvent(body []byte, event delivery) ([]byte, error) {
	var raw []byte
	var err error
	switch {
	case event.status == nil:
		raw, err = f.object(event.object)
	case f.protobuf:
		if raw, err = event.status.Marshal(); err == nil {
			raw, err = envelope(schema.GroupVersionKind{Version: "v1", Kind: "Status"}, raw)
		}
	default:
		raw, err = json.Marshal(event.status)
	}
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if !f.protobuf {
		body = append(body, `{"type":"`+string(event.event)+`","object":`...)
		return append(append(body, raw...), "}\n"...), nil
	}
	framed := metav1.WatchEvent{Type: string(event.event), Object: runtime.RawExtension{Raw: raw}}
	message, err := framed.Marshal()
	if err != nil {
		return nil, errors.WithStack(err)
	}
	body = binary.BigEndian.AppendUint32(body, uint32(len(message)))
	return append(body, message...), nil
}

// decode reads the body of a request (JSON, YAML or protobuf) into an object of a Go type. It returns the kind that the body names.
func decode(body []byte, into any) (schema.GroupVersionKind, error) {
	var named struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if message, ok := bytes.CutPrefix(body, protobufPrefix); ok {
		var unknown runtime.Unknown
		if err := unknown.Unmarshal(message); err != nil {
			return schema.GroupVersionKind{}, errors.WithStack(err)
		}
		unmarshaler, ok := into.(protobufUnmarshaler)
		if !ok {
			return schema.GroupVersionKind{}, errors.Errorf("%T is not encoded as protobuf", into)
		}
		return schema.FromAPIVersionAndKind(unknown.APIVersion, unknown.Kind), errors.WithStack(unmarshaler.Unmarshal(unknown.Raw))
	}
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] != '{' {
		converted, err := yaml.YAMLToJSON(body)
		if err != nil {
			return schema.GroupVersionKind{}, errors.WithStack(err)
		}
		body = converted
	}
	if err := utiljson.Unmarshal(body, into); err != nil {
		return schema.GroupVersionKind{}, errors.WithStack(err)
	}
	switch into := into.(type) {
	case *map[string]any:
		named.APIVersion, _ = (*into)["apiVersion"].(string)
		named.Kind, _ = (*into)["kind"].(string)
	case runtime.Object:
		return into.GetObjectKind().GroupVersionKind(), nil
	}
	return schema.FromAPIVersionAndKind(named.APIVersion, named.Kind), nil
}

// bodyJSON returns the body of a request as JSON, or nil.
func (s *Server) bodyJSON(body []byte) json.RawMessage {
	message, ok := bytes.CutPrefix(body, protobufPrefix)
	if !ok {
		if json.Valid(body) {
			return body
		}
		converted, err := yaml.YAMLToJSON(body)
		if err != nil || len(body) == 0 {
			return nil
		}
		return converted
	}
	var unknown runtime.Unknown
	if unknown.Unmarshal(message) != nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(unknown.APIVersion, unknown.Kind)
	object, err := s.scheme.New(gvk)
	if err != nil {
		return nil
	}
	unmarshaler, ok := object.(protobufUnmarshaler)
	if !ok || unmarshaler.Unmarshal(unknown.Raw) != nil {
		return nil
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	raw, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	return raw
}
