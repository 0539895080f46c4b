package apiserver

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selector selects objects of a resource. The zero value selects all.
type selector struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// selectable are the fields of each resource that a field selector may name beside the name and namespace.
var selectable = map[string][]string{
	"pods": {
		"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP",
		"status.nominatedNodeName",
	},
	"nodes":      {"spec.unschedulable"},
	"namespaces": {"status.phase"},
	"secrets":    {"type"},
	"events": {
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion", "reason",
		"reportingComponent", "source", "type",
	},
}

// newSelector parses the selectors of a request.
func newSelector(k *resource, namespace, labelSelector, fieldSelector string) (selector, error) {
	chosen := selector{namespace: namespace}
	var err error
	if labelSelector != "" {
		if chosen.labels, err = labels.Parse(labelSelector); err != nil {
			return chosen, apierrors.NewBadRequest(err.Error())
		}
	}
	if fieldSelector != "" {
		if chosen.fields, err = fields.ParseSelector(fieldSelector); err != nil {
			return chosen, apierrors.NewBadRequest(err.Error())
		}
		for _, requirement := range chosen.fields.Requirements() {
			if field := requirement.Field; field != "metadata.name" && field != "metadata.namespace" && !slices.Contains(selectable[k.gvr.Resource], field) {
				return chosen, apierrors.NewBadRequest("field label not supported: " + field)
			}
		}
	}
	return chosen, nil
}

func (s selector) matches(v *version) bool {
	if s.namespace != "" && v.object.GetNamespace() != s.namespace {
		return false
	}
	if s.labels != nil && !s.labels.Matches(labels.Set(v.object.GetLabels())) {
		return false
	}
	if s.fields != nil {
		for _, requirement := range s.fields.Requirements() {
			if (fieldOf(v, requirement.Field) == requirement.Value) == (requirement.Operator == "!=") {
				return false
			}
		}
	}
	return true
}

// fieldOf returns the value of a field that a field selector names.
func fieldOf(v *version, path string) string {
	switch path {
	case "metadata.name":
		return v.object.GetName()
	case "metadata.namespace":
		return v.object.GetNamespace()
	}
	if pod, ok := v.object.(*corev1.Pod); ok {
		switch path {
		case "spec.nodeName":
			return pod.Spec.NodeName
		case "status.phase":
			return string(pod.Status.Phase)
		}
	}
	content, err := toContent(v.object)
	if err != nil {
		return ""
	}
	value, _, _ := unstructured.NestedString(content, strings.Split(path, ".")...)
	return value
}
