package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
)

// storedKind is a kind of this project, and objects of it that together have a value in each field.
type storedKind struct {
	crd      string
	resource string // with its namespace
	list     client.ObjectList
	// objects are in YAML. NAME stands for a name that is unique.
	objects []string
}

var storedKinds = []storedKind{
	{"nodemaintenances.maintenance.cluster.x-k8s.io", "nodemaintenances", &v1alpha1.NodeMaintenanceList{}, []string{`
kind: NodeMaintenance
metadata: {name: NAME}
spec:
  nodeSelector:
    nodeSelectorTerms:
    - matchExpressions: [{key: a, operator: In, values: [b]}]
      matchFields: [{key: metadata.name, operator: In, values: [one]}]
  stage: Drain
  maxParallelNodes: 5
  waitingNodes: Cordon
  drainPlan:
  - podType: Default
    podPriority: 1000
    podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  drainPlanDefaults: PriorityTiers
  drainRules:
  - name: one
    behavior: Drain
    order: 1
    pods:
    - podType: Default
      drainLabel: Skip
      selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
      namespaceSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  drainLabelPolicy: Honor
  excludeFromLoadBalancers: true
  reason: because
status:
  observedGeneration: 1
  conditions: [{type: Drained, status: "True", reason: Drained, message: m, observedGeneration: 1, lastTransitionTime: "2026-01-01T00:00:00Z"}]
  stageStatuses: [{name: Drain, startTimestamp: "2026-01-01T00:00:00Z"}]
  summary:
    {nodes: 1, drainedNodes: 1, nextNodes: [one], podsPending: 1, podsEvacuating: 1, podsSkipped: 1, podsEvacuated: 1,
     progress: 1/1, blocking: b, truncated: 1, lastProgressTime: "2026-01-01T00:00:00Z"}
  outcome:
    endTime: "2026-01-01T00:00:00Z"
    readTime: "2026-01-01T00:00:00Z"
    message: m
    pods: {evicted: 6, ready: 1, notReady: 1, pending: 1, notReplaced: 1, notNeeded: 1, unknown: 1}
    applications:
    - controller: Deployment a/b
      since: "2026-01-01T00:00:00Z"
      why: w
      pods: {evicted: 6, ready: 1, notReady: 1, pending: 1, notReplaced: 1, notNeeded: 1, unknown: 1}
  drainTargetSets:
  - drainTargets:
    - podType: Default
      podPriority: 1
      order: 1
      podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  nodeStatuses:
  - nodeRef: {name: one}
    drainTargetsIndex: 1
    drainTargets:
    - podType: Default
      podPriority: 1
      order: 1
      podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
    drainMessage: m
    waiting: true
    drainStartTime: "2026-01-01T00:00:00Z"
    drained: true
    podsPendingEvacuation: 1
    podsEvacuating: 1
    podsSkipped: 1
    blocked: [{pod: a/b, reason: r, why: w, since: "2026-01-01T00:00:00Z"}]
  drainTimeout:
    {deadline: "2026-01-01T00:00:00Z", observedTime: "2026-01-01T00:00:00Z", finalAttemptTime: "2026-01-01T00:00:00Z",
     finalAttemptEndTime: "2026-01-01T00:00:00Z"}
  replacements:
  - node: one
    controller: c
    evictions: 1
    firstEvictionTime: "2026-01-01T00:00:00Z"
    evictionTime: "2026-01-01T00:00:00Z"
    newestPodUID: u
    newestPodCreationTime: "2026-01-01T00:00:00Z"
`, `
kind: NodeMaintenance
metadata: {name: NAME}
spec:
  nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [one]}]}]}
  evacuation:
    progressDeadlineSeconds: 1000
    surge: Always
    surgeMethod: Restart
    statefulSetPods: Ordered
    evacuators: Any
    unhealthyBudget: Override
    evictionWebhooks: [a]
    drainTimeoutSeconds: 100
    onTimeout: Delete
`}},
	{"evacuations.maintenance.cluster.x-k8s.io", "namespaces/default/evacuations", &v1alpha1.EvacuationList{}, []string{`
kind: Evacuation
metadata: {name: f5823a89-e03f-4752-b013-445643b8c7a0-NAME}
spec:
  podRef: {name: NAME, uid: f5823a89-e03f-4752-b013-445643b8c7a0}
  progressDeadlineSeconds: 1000
  evacuators: [{evacuatorClass: a, priority: 10000, role: controller}]
status:
  activeEvacuatorClass: a
  activeEvacuatorCompleted: true
  evacuationProgressTimestamp: "2026-01-01T00:00:00Z"
  expectedEvacuationFinishTime: "2026-01-01T00:00:00Z"
  evacuationCancellationPolicy: Allow
  failedEvictionCounter: 1
  failedEvictionTime: "2026-01-01T00:00:00Z"
  message: m
  conditions: [{type: Failed, status: "True", reason: Failed, message: m, observedGeneration: 1, lastTransitionTime: "2026-01-01T00:00:00Z"}]
`}},
	{"machinedrainpolicies.maintenance.cluster.x-k8s.io", "namespaces/default/machinedrainpolicies", &v1alpha1.MachineDrainPolicyList{}, []string{`
kind: MachineDrainPolicy
metadata: {name: NAME}
spec:
  clusterSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  machineSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  drainPlan:
  - podType: Default
    podPriority: 1000
    podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  drainPlanDefaults: PriorityTiers
  daemonSetPods: Drain
  surge: Always
  surgeMethod: Restart
  statefulSetPods: Ordered
  progressDeadlineSeconds: 1000
  evacuators: Any
  unhealthyBudget: Override
  evictionWebhooks: [a]
  onTimeout: Delete
  excludeFromLoadBalancers: true
  maxParallelDrains: 5
  maxParallelDrainsPerTopology: {key: a, maxDomains: 2}
  turnPatienceSeconds: 60
  nextDrain: WhenReplaced
  replacementTimeoutSeconds: 600
  waitingNodes: Schedulable
  ignoredPreDrainHooks: [a]
  rollout: {outdatedNodes: Cordon}
  inPlaceUpdates: Drain
  nodeAgent: Enabled
status:
  observedGeneration: 1
  conditions: [{type: MachinePoolsManaged, status: "True", reason: r, message: m, observedGeneration: 1, lastTransitionTime: "2026-01-01T00:00:00Z"}]
  clusters: 1
  machines: 1
  activeDrains: 1
  longestWaits: [{machine: m, cluster: c, since: "2026-01-01T00:00:00Z", reason: r, message: m}]
  recentDrains:
  - machineUID: u
    machine: m
    cluster: c
    node: n
    endTime: "2026-01-01T00:00:00Z"
    readTime: "2026-01-01T00:00:00Z"
    message: m
    pods: {evicted: 6, ready: 1, notReady: 1, pending: 1, notReplaced: 1, notNeeded: 1, unknown: 1}
    applications:
    - controller: Deployment a/b
      since: "2026-01-01T00:00:00Z"
      why: w
      pods: {evicted: 6, ready: 1, notReady: 1, pending: 1, notReplaced: 1, notNeeded: 1, unknown: 1}
`}},
}

func testStoredObjects(t *testing.T, v *validation) {
	t.Helper()
	_, err := envtest.InstallCRDs(v.config, envtest.CRDInstallOptions{Paths: []string{"../../config/crd/bases"}})
	v.Expect(err).NotTo(HaveOccurred())
	for _, kind := range storedKinds {
		t.Run("R62: decodes every "+kind.resource[strings.LastIndex(kind.resource, "/")+1:]+" that the API server accepts, and can write it back",
			func(t *testing.T) {
				newOddObjects(v.sub(t), kind).storeAll()
			})
	}
}

// oddObjects stores objects of one kind.
type oddObjects struct {
	*validation
	storedKind

	rest   rest.Interface
	decode runtime.Decoder
	schema apiextensionsv1.JSONSchemaProps
	names  int // so far
}

func newOddObjects(v *validation, kind storedKind) *oddObjects {
	v.Helper()
	s := &oddObjects{validation: v, storedKind: kind, decode: serializer.NewCodecFactory(clusterapi.Scheme()).UniversalDeserializer()}
	config := rest.CopyConfig(v.config)
	config.NegotiatedSerializer, config.QPS = serializer.NewCodecFactory(clusterapi.Scheme()), -1
	var err error
	s.rest, err = rest.UnversionedRESTClientFor(config)
	v.Expect(err).NotTo(HaveOccurred())
	crd := &apiextensionsv1.CustomResourceDefinition{}
	v.Expect(v.client.Get(v.Context(), client.ObjectKey{Name: kind.crd}, crd)).To(Succeed())
	s.schema = *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	return s
}

// storeAll stores objects with one odd value each. All that the API server accepts must decode. Fields with equal schemas are tested once,
// except for those whose Go types are stricter than their schemas: times, and numbers that may also be strings.
func (s *oddObjects) storeAll() {
	s.Helper()
	covered, tested := map[string]bool{}, map[string]bool{}
	accepted, refused := 0, 0
	for _, object := range s.objects {
		for _, part := range []string{"spec", "status"} {
			for _, field := range fieldsOf(s.schema.Properties[part], s.parse(object)[part], part) {
				covered[field.schemaPath] = true
				key := field.schemaKey()
				if tested[key] {
					continue
				}
				tested[key] = true
				var present map[string]any // with the status subresource
				for _, odd := range oddValues(field) {
					if present == nil {
						present = s.stored(object, part)
					}
					if s.storeOdd(present, part, field, odd) {
						accepted++
						present = nil // a transition rule may refuse the next value otherwise
					} else {
						refused++
					}
				}
			}
		}
	}
	s.Logf("%d odd values: %d accepted, %d refused", accepted+refused, accepted, refused)
	for _, part := range []string{"spec", "status"} {
		for _, path := range schemaPaths(s.schema.Properties[part], part) {
			if !covered[path] {
				s.Errorf("no object has a value in %s", path)
			}
		}
	}
	s.Expect(s.client.List(s.Context(), s.list)).To(Succeed())
}

// stored returns an object with a new name: for a value in the spec, it is not stored; for one in the status, it is stored without a
// status.
func (s *oddObjects) stored(object, part string) map[string]any {
	s.Helper()
	values := s.parse(object)
	if part == "spec" {
		return values
	}
	raw, err := s.request(http.MethodPost, "", values)
	s.Expect(err).NotTo(HaveOccurred())
	created := map[string]any{}
	s.Expect(json.Unmarshal(raw, &created)).To(Succeed())
	values["metadata"] = created["metadata"]
	return values
}

// storeOdd stores an object with an odd value, and reports whether the API server accepts it.
func (s *oddObjects) storeOdd(values map[string]any, part string, field field, odd string) (accepted bool) {
	s.Helper()
	verb, subresource := http.MethodPost, ""
	if part == "status" {
		verb, subresource = http.MethodPut, "/status"
	}
	raw, err := s.request(verb, subresource, field.with(values, odd))
	if err != nil {
		return false
	}
	decoded, _, err := s.decode.Decode(raw, nil, nil)
	if err != nil {
		s.Errorf("%s is accepted with %.80s, and does not decode: %v", field.schemaPath, odd, err)
		s.deleteStored(raw)
		return true
	}
	if part == "status" { // the manager writes a status as a whole, and patches of a spec
		if answer, err := s.request(verb, subresource, decoded); err != nil {
			s.Errorf("%s is accepted with %.80s, and cannot be written back: %v: %s", field.schemaPath, odd, err, answer)
		}
	}
	return true
}

func (s *oddObjects) request(verb, subresource string, object any) ([]byte, error) {
	body, err := json.Marshal(object)
	s.Expect(err).NotTo(HaveOccurred())
	path := "/apis/" + v1alpha1.GroupVersion.String() + "/" + s.resource
	if verb != http.MethodPost {
		path += "/" + s.nameIn(body) + subresource
	}
	return s.rest.Verb(verb).AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(s.Context()).Raw()
}

// deleteStored deletes an object that does not decode, so that a list finds only others.
func (s *oddObjects) deleteStored(object []byte) {
	s.Expect(s.rest.Delete().AbsPath("/apis/" + v1alpha1.GroupVersion.String() + "/" + s.resource + "/" + s.nameIn(object)).Do(s.Context()).Error()).To(Succeed())
}

func (s *oddObjects) nameIn(object []byte) string {
	named := struct {
		Metadata struct{ Name string }
	}{}
	s.Expect(json.Unmarshal(object, &named)).To(Succeed())
	return named.Metadata.Name
}

// parse returns an object with a new name.
func (s *oddObjects) parse(object string) map[string]any {
	s.names++
	values := map[string]any{}
	s.Expect(yaml.Unmarshal([]byte(strings.ReplaceAll(object, "NAME", fmt.Sprintf("odd-%d", s.names))), &values)).To(Succeed())
	values["apiVersion"] = v1alpha1.GroupVersion.String()
	return values
}

// field is a field of an object, with its value.
type field struct {
	schema     apiextensionsv1.JSONSchemaProps
	schemaPath string
	path       []any // strings and indexes
	value      any
}

// fieldsOf returns a value and all fields in it.
func fieldsOf(schema apiextensionsv1.JSONSchemaProps, value any, path ...any) []field {
	if value == nil {
		return nil
	}
	fields := []field{{schema, schemaPath(path), path, value}}
	with := func(element any) []any { return append(slices.Clone(path), element) }
	switch value := value.(type) {
	case []any:
		for i := range value {
			fields = append(fields, fieldsOf(*schema.Items.Schema, value[i], with(i)...)...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if property, is := schema.Properties[name]; is {
				fields = append(fields, fieldsOf(property, value[name], with(name)...)...)
			}
		}
	}
	return fields
}

func schemaPath(path []any) string {
	text := ""
	for _, element := range path {
		if name, is := element.(string); is {
			text += "." + name
		} else {
			text += "[]"
		}
	}
	return text[1:]
}

// schemaPaths returns the paths of all fields of a schema.
func schemaPaths(schema apiextensionsv1.JSONSchemaProps, path string) []string {
	paths := []string{path}
	if schema.Items != nil {
		paths = append(paths, schemaPaths(*schema.Items.Schema, path+"[]")...)
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		paths = append(paths, schemaPaths(schema.Properties[name], path+"."+name)...)
	}
	return paths
}

// schemaKey is equal for fields for which the API server accepts the same values.
func (f field) schemaKey() string {
	if f.schema.XIntOrString || f.schema.Format == "date-time" {
		return f.schemaPath
	}
	return withoutDescriptions(f.schema)
}

func withoutDescriptions(schema apiextensionsv1.JSONSchemaProps) string {
	var removeDescriptions func(any)
	removeDescriptions = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, each := range value {
				removeDescriptions(each)
			}
		case map[string]any:
			if _, is := value["description"].(string); is {
				delete(value, "description")
			}
			for _, each := range value {
				removeDescriptions(each)
			}
		}
	}
	values := map[string]any{}
	if err := json.Unmarshal([]byte(asJSON(schema)), &values); err != nil {
		panic(err) // a schema of this project
	}
	removeDescriptions(values)
	return asJSON(values)
}

// with returns the object with a JSON text as the value of the field.
func (f field) with(object map[string]any, odd string) map[string]any {
	changed := runtime.DeepCopyJSON(object)
	var parent any = changed
	for _, element := range f.path[:len(f.path)-1] {
		parent = elementOf(parent, element)
	}
	switch parent := parent.(type) {
	case map[string]any:
		parent[f.path[len(f.path)-1].(string)] = json.RawMessage(odd)
	case []any:
		parent[f.path[len(f.path)-1].(int)] = json.RawMessage(odd)
	}
	return changed
}

func elementOf(parent, element any) any {
	if list, is := parent.([]any); is {
		return list[element.(int)]
	}
	return parent.(map[string]any)[element.(string)]
}
