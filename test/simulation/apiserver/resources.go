package apiserver

import (
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/pkg/errors"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// resource is a resource of the API, with its objects.
type resource struct {
	gvr                       schema.GroupVersionResource
	kind                      string
	namespaced, status, scale bool
	generation, returned      bool // it has a generation; a deletion returns the removed object
	typed, protobuf, custom   bool // stored as a Go type; can be encoded as protobuf; defined by a CustomResourceDefinition
	keyPrefix                 string
	singular, listKind        string
	shortNames, categories    []string
	validation                *apiextensionsv1.CustomResourceValidation
	schema                    *customSchema // of validation, once it was needed
	gone                      bool          // its CustomResourceDefinition was deleted
	objects                   []*version    // in the order of their keys
	items                     reflect.Value // a slice that lists share, see shareItems
	itemsOf                   int           // how many writes had been logged when it was made
	log                       []*logged
	watchers                  []*watcher
}

func (k *resource) gvk() schema.GroupVersionKind { return k.gvr.GroupVersion().WithKind(k.kind) }

// notFound returns the error for an object that does not exist.
func (k *resource) notFound(name string) error {
	return apierrors.NewNotFound(k.gvr.GroupResource(), name)
}

// builtIns are lines of group/version and kinds: kind=plural, with the flags c (cluster-scoped), s (status), x (scale), g (generation) and
// r (a deletion returns the removed object).
const builtIns = `
v1 Namespace=namespaces,cs Node=nodes,cs Pod=pods,sgr Service=services,sr Endpoints=endpoints ConfigMap=configmaps Secret=secrets
v1 ServiceAccount=serviceaccounts,r Event=events PersistentVolume=persistentvolumes,csr PersistentVolumeClaim=persistentvolumeclaims,sr
v1 ReplicationController=replicationcontrollers,sxg
apps/v1 Deployment=deployments,sxg ReplicaSet=replicasets,sxg StatefulSet=statefulsets,sxg DaemonSet=daemonsets,sg
apps/v1 ControllerRevision=controllerrevisions
batch/v1 Job=jobs,sg CronJob=cronjobs,sg
policy/v1 PodDisruptionBudget=poddisruptionbudgets,sg
storage.k8s.io/v1 VolumeAttachment=volumeattachments,csr CSIDriver=csidrivers,cr CSINode=csinodes,cr StorageClass=storageclasses,cr
coordination.k8s.io/v1 Lease=leases
rbac.authorization.k8s.io/v1 Role=roles RoleBinding=rolebindings ClusterRole=clusterroles,c ClusterRoleBinding=clusterrolebindings,c
admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration=validatingwebhookconfigurations,cg
admissionregistration.k8s.io/v1 MutatingWebhookConfiguration=mutatingwebhookconfigurations,cg
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy=validatingadmissionpolicies,csg
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding=validatingadmissionpolicybindings,cg
apiextensions.k8s.io/v1 CustomResourceDefinition=customresourcedefinitions,csg
events.k8s.io/v1 Event=events
autoscaling/v2 HorizontalPodAutoscaler=horizontalpodautoscalers,s
scheduling.k8s.io/v1 PriorityClass=priorityclasses,cg
`

// keyPrefixes are the prefixes of keys in etcd that differ from /registry/<plural>/.
var keyPrefixes = map[string]string{
	"nodes":                     "/registry/minions/",
	"services":                  "/registry/services/specs/",
	"endpoints":                 "/registry/services/endpoints/",
	"customresourcedefinitions": "/registry/apiextensions.k8s.io/customresourcedefinitions/",
}

func (s *Server) addBuiltIns() {
	for line := range strings.Lines(builtIns) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		gv, _ := schema.ParseGroupVersion(words[0])
		for _, word := range words[1:] {
			kind, plural, _ := strings.Cut(word, "=")
			plural, flags, _ := strings.Cut(plural, ",")
			k := &resource{
				gvr: gv.WithResource(plural), kind: kind, listKind: kind + "List", singular: strings.ToLower(kind),
				namespaced: !strings.Contains(flags, "c"), status: strings.Contains(flags, "s"), scale: strings.Contains(flags, "x"),
				generation: strings.Contains(flags, "g"), returned: strings.Contains(flags, "r"),
				keyPrefix: keyPrefixes[plural],
			}
			if k.keyPrefix == "" {
				k.keyPrefix = "/registry/" + plural + "/"
			}
			s.setGoType(k)
			s.resources[k.gvr] = k
		}
	}
}

// setGoType records whether the scheme has a Go type for the kind.
func (s *Server) setGoType(k *resource) {
	object, err := s.scheme.New(k.gvk())
	if err != nil {
		return
	}
	_, k.typed = object.(client.Object)
	_, k.protobuf = object.(protobufMarshaler)
}

// define serves the kind of a CustomResourceDefinition. It serves one version: the first that the scheme has, or else the storage version.
func (s *Server) define(definition *apiextensionsv1.CustomResourceDefinition) {
	var chosen *apiextensionsv1.CustomResourceDefinitionVersion
	rank := 0
	for i := range definition.Spec.Versions {
		version := &definition.Spec.Versions[i]
		gvk := schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}
		value := 1
		if s.scheme.Recognizes(gvk) {
			value += 2
		}
		if version.Storage {
			value++
		}
		if version.Served && value > rank {
			chosen, rank = version, value
		}
	}
	if chosen == nil {
		return
	}
	names := definition.Spec.Names
	gvr := schema.GroupVersionResource{Group: definition.Spec.Group, Version: chosen.Name, Resource: names.Plural}
	k := s.resources[gvr]
	if k == nil {
		k = &resource{gvr: gvr, custom: true, generation: true, keyPrefix: "/registry/" + gvr.Group + "/" + gvr.Resource + "/"}
		s.resources[gvr] = k
	}
	k.kind, k.listKind, k.singular, k.shortNames, k.categories = names.Kind, names.ListKind, names.Singular, names.ShortNames, names.Categories
	if k.listKind == "" {
		k.listKind = k.kind + "List"
	}
	k.namespaced = definition.Spec.Scope == apiextensionsv1.NamespaceScoped
	k.status = chosen.Subresources != nil && chosen.Subresources.Status != nil
	if k.validation != chosen.Schema {
		k.validation, k.schema = chosen.Schema, nil
	}
	s.setGoType(k)
}

// definitionOf returns a stored CustomResourceDefinition as its Go type: read only.
func definitionOf(object client.Object) (*apiextensionsv1.CustomResourceDefinition, error) {
	if definition, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
		return definition, nil
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	return definition, errors.WithStack(utiljson.Unmarshal(encoded, definition))
}

// undefine stops serving the kind of a CustomResourceDefinition and removes its objects.
func (s *Server) undefine(definition *apiextensionsv1.CustomResourceDefinition) {
	for _, k := range s.sorted() {
		if !k.custom || k.gvr.Group != definition.Spec.Group || k.gvr.Resource != definition.Spec.Names.Plural {
			continue
		}
		for _, present := range slices.Clone(k.objects) {
			s.store(k, present.key, present, nil)
		}
		k.gone = true
		delete(s.resources, k.gvr)
		for _, w := range slices.Clone(k.watchers) {
			w.end(io.EOF)
		}
	}
}

// sorted returns all resources in the order of their names.
func (s *Server) sorted() []*resource {
	all := make([]*resource, 0, len(s.resources))
	for _, k := range s.resources {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b *resource) int { return strings.Compare(a.gvr.String(), b.gvr.String()) })
	return all
}

// resource returns a served resource, or nil.
func (s *Server) resource(gvr schema.GroupVersionResource) *resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resources[gvr]
}

// resourceOf returns the served resource of a kind.
func (s *Server) resourceOf(gvk schema.GroupVersionKind) (*resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.resources {
		if k.kind == gvk.Kind && k.gvr.Group == gvk.Group && k.gvr.Version == gvk.Version {
			return k, nil
		}
	}
	return nil, errors.Errorf("%s does not serve %s", s.name, gvk)
}

// newObject returns an empty object of a resource.
func (s *Server) newObject(k *resource) client.Object {
	if k.typed {
		if object, err := s.scheme.New(k.gvk()); err == nil {
			return object.(client.Object)
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{}}
}

// fromContent returns the object with a content, as stored.
func (s *Server) fromContent(k *resource, content map[string]any) (client.Object, error) {
	if !k.typed {
		object := &unstructured.Unstructured{Object: content}
		object.SetGroupVersionKind(k.gvk())
		return object, nil
	}
	document, err := json.Marshal(content)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	return s.fromJSON(k, document)
}

// fromJSON returns the object that is encoded as JSON, as stored.
func (s *Server) fromJSON(k *resource, document []byte) (client.Object, error) {
	object := s.newObject(k)
	var into any = object
	if content, ok := object.(*unstructured.Unstructured); ok {
		into = &content.Object
	}
	if err := utiljson.Unmarshal(document, into); err != nil {
		return nil, errors.WithStack(err)
	}
	object.GetObjectKind().SetGroupVersionKind(k.gvk())
	return object, nil
}

// toContent returns the content of an object, which the caller may change. It uses JSON: apimachinery's converter makes a float of each
// limit in a schema, and learns each field of a type once, which takes as long as many conversions.
func toContent(object runtime.Object) (map[string]any, error) {
	if from, ok := object.(*unstructured.Unstructured); ok {
		return runtime.DeepCopyJSON(from.Object), nil
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	content := map[string]any{}
	return content, errors.WithStack(utiljson.Unmarshal(encoded, &content))
}
