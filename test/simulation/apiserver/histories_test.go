package apiserver_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// set returns an edit that sets a field of an object.
func set(path string, value any) func(map[string]any) {
	return func(object map[string]any) {
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			if object[name] == nil {
				object[name] = map[string]any{}
			}
			object = object[name].(map[string]any)
		}
		if last := names[len(names)-1]; value == nil {
			delete(object, last)
		} else {
			object[last] = value
		}
	}
}

func edits(all ...func(map[string]any)) func(map[string]any) {
	return func(object map[string]any) {
		for _, edit := range all {
			edit(object)
		}
	}
}

func pod(name, more string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"web"}%s},`+
		`"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"}]}}`, name, more)
}

func node(name, more string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q%s}}`, name, more)
}

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"d"}},` +
	`"template":{"metadata":{"labels":{"app":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`

// histories returns histories of requests, each in a separate Namespace.
func histories() map[string][]step {
	all := map[string][]step{
		"custom resources":          customResources(),
		"kinds":                     kinds(),
		"writes":                    writes(),
		"patches":                   patches(),
		"deletions":                 deletions(),
		"scales":                    scales(),
		"bindings":                  bindings(),
		"lists":                     lists(),
		"watches":                   watches(),
		"evictions without budgets": evictions(),
	}
	for name, each := range evictionsWithBudgets() {
		all["evictions: "+name] = each
	}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		namespace := fmt.Sprintf("h%d", i)
		create := step{request: "POST /api/v1/namespaces", body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + namespace + `"}}`}
		history := append([]step{create}, all[name]...)
		all[name] = history
		for j := range history {
			history[j].request = strings.NewReplacer("PODS", "/api/v1/namespaces/"+namespace+"/pods", "NODES", "/api/v1/nodes",
				"DEPLOYMENTS", "/apis/apps/v1/namespaces/"+namespace+"/deployments",
				"WIDGETS", "/apis/example.com/v1/namespaces/"+namespace+"/widgets",
				"BUDGETS", "/apis/policy/v1/namespaces/"+namespace+"/poddisruptionbudgets", "NAMESPACE", namespace).Replace(history[j].request)
		}
	}
	return all
}

func customResources() []step {
	definition, err := json.Marshal(widgets("v1"))
	if err != nil {
		panic(err)
	}
	// apply applies conditions to the status.
	apply := func(manager, conditions string) step {
		return step{
			request: "PATCH WIDGETS/a/status?force=true&fieldManager=" + manager, content: "apply-patch", show: []string{"status", "spec"},
			body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"status":{"conditions":[` + conditions + `]}}`,
		}
	}
	widget := func(name, more string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{}%s}`, name, more)
	}
	return []step{
		{request: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: strings.Replace(string(definition), `"metadata"`,
			`"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata"`, 1)},
		{request: "AWAIT WIDGETS"},
		{request: "POST WIDGETS", body: widget("a", `,"status":{"conditions":[]}`), show: []string{"status", "spec"}},
		{request: "POST WIDGETS", body: widget("a", ""), show: []string{"status", "spec"}},
		apply("one", `{"type":"A","status":"True"}`),
		apply("two", `{"type":"B","status":"True"}`),
		apply("one", `{"type":"A","status":"False"}`),
		apply("one", `{"type":"A","status":"False"}`),
		apply("one", ``),
		{request: "PUT WIDGETS/a", edit: set("spec.color", "red"), show: []string{"status", "spec"}},
		{request: "PUT WIDGETS/a", edit: set("status", nil), show: []string{"status", "spec"}},
		{request: "PUT WIDGETS/a", edit: edits(set("spec.color", "blue"), set("metadata.resourceVersion", nil))},
		{request: "PUT WIDGETS/a", edit: edits(set("spec.color", "blue"), set("metadata.resourceVersion", "1"))},
		{request: "PUT WIDGETS/a", edit: set("metadata.uid", "other")},
		{request: "PUT WIDGETS/a/status", edit: edits(set("spec.color", "blue"), set("metadata.labels", map[string]any{"a": "b"})), show: []string{"spec"}},
		{request: "PATCH WIDGETS/a", content: "merge-patch", body: `{"metadata":{"annotations":{"a":"b"}}}`, show: []string{"spec"}},
		{request: "PATCH WIDGETS/a", content: "merge-patch", body: `{"spec":{"size":4}}`, show: []string{"spec"}},
		{request: "PATCH WIDGETS/a", content: "merge-patch", body: `{"spec":{"size":null}}`, show: []string{"spec"}},
		{request: "PATCH WIDGETS/a", content: "strategic-merge-patch", body: `{"spec":{"size":5}}`},
		{request: "PATCH WIDGETS/a", content: "merge-patch", body: `{"metadata":{"resourceVersion":"$version(widgets/a,0)"},"spec":{"size":5}}`},
		{request: "PATCH WIDGETS/a", content: "json-patch", body: `[{"op":"add","path":"/metadata/finalizers","value":["a.io/b"]}]`},
		{request: "PATCH WIDGETS/a/scale", content: "merge-patch", body: `{"spec":{"replicas":5}}`},
		{request: "GET WIDGETS"},
		{request: "DELETE WIDGETS/a"},
		{request: "PATCH WIDGETS/a", content: "merge-patch", body: `{"metadata":{"labels":{"c":"d"}}}`},
		{request: "PATCH WIDGETS/a", content: "json-patch", body: `[{"op":"remove","path":"/metadata/finalizers"}]`},
		{request: "GET WIDGETS/a"},
		{request: "POST WIDGETS", body: widget("b", "")},
		{request: "DELETE WIDGETS/b"},
		{request: "DELETE WIDGETS/b"},
	}
}

// kinds creates and deletes an object of each kind that the models use.
func kinds() []step {
	const template = `"selector":{"matchLabels":{"app":"k"}},"template":{"metadata":{"labels":{"app":"k"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	var steps []step
	for _, each := range []struct{ apiVersion, kind, plural, spec string }{
		{"v1", "ConfigMap", "namespaces/NAMESPACE/configmaps", `"data":{"a":"b"}`},
		{"v1", "Node", "nodes", `"spec":{}`},
		{"v1", "Secret", "namespaces/NAMESPACE/secrets", `"type":"Opaque"`},
		{
			"v1", "PersistentVolumeClaim", "namespaces/NAMESPACE/persistentvolumeclaims",
			`"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`,
		},
		{"apps/v1", "Deployment", "namespaces/NAMESPACE/deployments", `"spec":{` + template + `}`},
		{"apps/v1", "ReplicaSet", "namespaces/NAMESPACE/replicasets", `"spec":{` + template + `}`},
		{"apps/v1", "StatefulSet", "namespaces/NAMESPACE/statefulsets", `"spec":{"serviceName":"s",` + template + `}`},
		{"policy/v1", "PodDisruptionBudget", "namespaces/NAMESPACE/poddisruptionbudgets", `"spec":{"maxUnavailable":1}`},
		{"coordination.k8s.io/v1", "Lease", "namespaces/NAMESPACE/leases", `"spec":{"holderIdentity":"a"}`},
		{"scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", `"value":5`},
		{"storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", `"spec":{"attacher":"a","nodeName":"n","source":{"persistentVolumeName":"v"}}`},
		{"rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", `"rules":[]`},
	} {
		url := "/apis/" + each.apiVersion + "/" + each.plural
		if each.apiVersion == "v1" {
			url = "/api/v1/" + each.plural
		}
		body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"kind"},%s}`, each.apiVersion, each.kind, each.spec)
		steps = append(steps,
			step{request: "POST " + url, body: body, show: []string{"spec.replicas"}},
			step{request: "PATCH " + url + "/kind", content: "merge-patch", body: `{"metadata":{"annotations":{"a":"b"},"finalizers":["a.io/b"]}}`},
			step{request: "DELETE " + url + "/kind"},
			step{request: "PATCH " + url + "/kind", content: "merge-patch", body: `{"metadata":{"finalizers":null}}`},
			step{request: "GET " + url + "/kind"},
		)
	}
	return steps
}

func writes() []step {
	return []step{
		{request: "POST PODS", body: `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"g-"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
		{request: "POST PODS", body: strings.Replace(pod("a", ""), `"spec"`, `"status":{"phase":"Running"},"spec"`, 1), show: []string{"status.phase"}},
		{request: "POST PODS", body: pod("a", "")},
		{request: "POST PODS", body: pod("", "")},
		{request: "POST PODS", body: pod("b", `,"resourceVersion":"1"`)},
		{request: "POST PODS", body: pod("b", `,"namespace":"other"`)},
		{request: "GET PODS/none"},
		{request: "PUT PODS/none", body: pod("none", "")},
		{
			request: "PUT PODS/a", edit: edits(set("metadata.labels.x", "y"), set("status.phase", "Running")),
			show: []string{"status.phase"},
		},
		{request: "PUT PODS/a", edit: set("metadata.resourceVersion", "1")},
		{request: "PUT PODS/a", edit: edits(set("metadata.labels.x", "z"), set("metadata.resourceVersion", nil))},
		{request: "PUT PODS/a", edit: set("metadata.uid", "other")},
		{request: "PUT PODS/a", edit: set("metadata.name", "b")},
		{request: "PUT PODS/a", edit: set("metadata.generation", 7)},
		{request: "PUT PODS/a/status", edit: edits(set("status.phase", "Running"), set("spec.nodeName", "n2")), show: []string{"status.phase", "spec.nodeName"}},
		{request: "PUT PODS/a/status", edit: edits(set("metadata.labels.x", "status"), set("status.reason", "Test")), show: []string{"status.reason"}},
		{request: "PUT PODS/a", edit: func(map[string]any) {}},
		{request: "PUT PODS/a/status", edit: func(map[string]any) {}},
		{request: "GET PODS/a", show: []string{"status.phase", "spec.nodeName"}},
		{request: "PUT PODS/a", edit: func(pod map[string]any) {
			pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["image"] = "j"
		}},
		{request: "PUT PODS/a?dryRun=All", edit: set("metadata.labels.x", "dry")},
		{request: "GET PODS/a"},
		{request: "POST PODS/a", body: pod("a", "")},
		{request: "GET /apis/none.example.com/v1/things"},
		{request: "POST DEPLOYMENTS", body: deployment, show: []string{"spec.replicas"}},
		{request: "PUT DEPLOYMENTS/d", edit: set("spec.replicas", 3), show: []string{"spec.replicas"}},
		{request: "PUT DEPLOYMENTS/d", edit: set("metadata.annotations.a", "b"), show: []string{"spec.replicas"}},
		{request: "PUT DEPLOYMENTS/d/status", edit: edits(set("status.replicas", 3), set("spec.replicas", 5)), show: []string{"spec.replicas", "status.replicas"}},
	}
}

func patches() []step {
	return []step{
		{request: "POST PODS", body: pod("a", "")},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"labels":{"app":null,"a":"b"}}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"labels":{"a":"b"}}}`},
		{request: "PATCH PODS/a", content: "strategic-merge-patch", body: `{"metadata":{"finalizers":["a.io/b"]}}`},
		{request: "PATCH PODS/a", content: "strategic-merge-patch", body: `{"metadata":{"finalizers":["c.io/d"]}}`},
		{request: "PATCH PODS/a", content: "strategic-merge-patch", body: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.io/b"]}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"finalizers":null}}`},
		{request: "PATCH PODS/a", content: "json-patch", body: `[{"op":"add","path":"/metadata/labels/c","value":"d"}]`},
		{request: "PATCH PODS/a", content: "json-patch", body: `[{"op":"test","path":"/metadata/labels/a","value":"other"}]`},
		{request: "PATCH PODS/a", content: "json-patch", body: `[{"op":"remove","path":"/metadata/labels/none"}]`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"resourceVersion":"1","labels":{"a":"c"}}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"resourceVersion":"$version(pods/a,0)","labels":{"a":"c"}}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"uid":"other","labels":{"a":"c"}}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"uid":"$uid(pods/a)","labels":{"a":"d"}}}`},
		{
			request: "PATCH PODS/a/status", content: "merge-patch", show: []string{"status.phase"},
			body: `{"status":{"phase":"Running"},"metadata":{"labels":{"a":"e"}}}`,
		},
		{request: "PATCH PODS/none", content: "merge-patch", body: `{}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"name":"b"}}`},
		{request: "POST NODES", body: node("patched", "")},
		{request: "PATCH NODES/patched", content: "strategic-merge-patch", body: `{"spec":{"unschedulable":true}}`, show: []string{"spec.unschedulable"}},
		{request: "PATCH NODES/patched", content: "strategic-merge-patch", body: `{"spec":{"unschedulable":null}}`, show: []string{"spec.unschedulable"}},
		{
			request: "PATCH NODES/patched/status", content: "strategic-merge-patch", show: []string{"status.conditions"},
			body: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
		},
		{
			request: "PATCH NODES/patched/status", content: "strategic-merge-patch", show: []string{"status.conditions"},
			body: `{"status":{"conditions":[{"type":"Other","status":"True"}]}}`,
		},
		{request: "PATCH NODES/patched", content: "merge-patch", body: `{"metadata":{"annotations":{"a.io/b":"c"}}}`},
		{request: "DELETE NODES/patched"},
	}
}

func deletions() []step {
	return []step{
		{request: "POST PODS", body: pod("graceful", "")},
		{request: "DELETE PODS/graceful", body: `{"preconditions":{"uid":"other"}}`},
		{request: "DELETE PODS/graceful", body: `{"preconditions":{"resourceVersion":"1"}}`},
		{request: "DELETE PODS/graceful?dryRun=All"},
		{request: "GET PODS/graceful"},
		{request: "DELETE PODS/graceful", body: `{"preconditions":{"uid":"$uid(pods/graceful)"}}`},
		{request: "GET PODS/graceful"},
		{request: "DELETE PODS/graceful", body: `{"gracePeriodSeconds":60}`},
		{request: "DELETE PODS/graceful", body: `{"gracePeriodSeconds":10}`},
		{request: "PATCH PODS/graceful", content: "merge-patch", body: `{"metadata":{"labels":{"x":"y"}}}`},
		{request: "POST PODS", body: pod("graceful", "")},
		{request: "DELETE PODS/graceful", body: `{"gracePeriodSeconds":0}`},
		{request: "GET PODS/graceful"},
		{request: "DELETE PODS/graceful"},
		{request: "POST PODS", body: pod("graceful", "")},
		{request: "POST PODS", body: strings.Replace(pod("unbound", ""), `"nodeName":"n1",`, "", 1)},
		{request: "DELETE PODS/unbound"},
		{request: "GET PODS/unbound"},
		{request: "POST PODS", body: pod("held", `,"finalizers":["a.io/b"]`)},
		{request: "DELETE PODS/held", body: `{"gracePeriodSeconds":0}`},
		{request: "GET PODS/held"},
		{request: "PATCH PODS/held", content: "merge-patch", body: `{"metadata":{"finalizers":["a.io/b","c.io/d"]}}`},
		{request: "PATCH PODS/held", content: "merge-patch", body: `{"metadata":{"finalizers":null}}`},
		{request: "GET PODS/held"},
		{request: "POST PODS", body: pod("ended", "")},
		{request: "PATCH PODS/ended/status", content: "merge-patch", body: `{"status":{"phase":"Succeeded"}}`, show: []string{"status.phase"}},
		{request: "DELETE PODS/ended"},
		{request: "GET PODS/ended"},

		{request: "POST NODES", body: node("held", `,"finalizers":["a.io/b"]`)},
		{request: "DELETE NODES/held"},
		{request: "DELETE NODES/held"},
		{request: "GET NODES/held"},
		{request: "PUT NODES/held", edit: set("metadata.finalizers", []any{"a.io/b", "c.io/d"})},
		{request: "PUT NODES/held", edit: set("metadata.finalizers", nil)},
		{request: "GET NODES/held"},
		{request: "DELETE NODES/held"},
		{request: "POST NODES", body: node("again", "")},
		{request: "DELETE NODES/again"},
		{request: "POST NODES", body: node("again", "")},
		{request: "DELETE NODES/again", body: `{"preconditions":{"uid":"$uid(nodes/again)"}}`},
	}
}

func scales() []step {
	return []step{
		{request: "POST DEPLOYMENTS", body: deployment, show: []string{"spec.replicas"}},
		{request: "GET DEPLOYMENTS/d/scale", show: []string{"spec.replicas", "status.replicas"}},
		{request: "PATCH DEPLOYMENTS/d/scale", content: "merge-patch", body: `{"spec":{"replicas":4}}`, show: []string{"spec.replicas"}},
		{request: "GET DEPLOYMENTS/d", show: []string{"spec.replicas"}},
		{request: "PATCH DEPLOYMENTS/d/scale", content: "merge-patch", body: `{"metadata":{"resourceVersion":"$version(deployments/d,0)"},"spec":{"replicas":5}}`},
		{request: "PATCH DEPLOYMENTS/none/scale", content: "merge-patch", body: `{"spec":{"replicas":5}}`},
		{request: "GET DEPLOYMENTS/d", show: []string{"spec.replicas"}},
		{request: "DELETE DEPLOYMENTS/d"},
		{request: "GET DEPLOYMENTS/d/scale"},
	}
}

func bindings() []step {
	binding := `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a"},"target":{"kind":"Node","name":%q}}`
	return []step{
		{request: "POST PODS", body: strings.Replace(pod("a", ""), `"nodeName":"n1",`, "", 1), show: []string{"spec.nodeName"}},
		{request: "POST PODS/a/binding", body: fmt.Sprintf(binding, "n2")},
		{request: "GET PODS/a", show: []string{"spec.nodeName"}},
		{request: "POST PODS/a/binding", body: fmt.Sprintf(binding, "n3")},
		{request: "POST PODS/none/binding", body: strings.Replace(fmt.Sprintf(binding, "n3"), `"a"`, `"none"`, 1)},
		{request: "GET PODS/a", show: []string{"spec.nodeName"}},
	}
}

func lists() []step {
	other := strings.NewReplacer(`"app":"web"`, `"app":"db"`, `"n1"`, `"n2"`)
	return []step{
		{request: "GET PODS"},
		{request: "POST PODS", body: pod("b", "")},
		{request: "POST PODS", body: pod("a", "")},
		{request: "POST PODS", body: other.Replace(pod("c", ""))},
		{request: "GET PODS"},
		{request: "GET PODS?labelSelector=app%3Dweb"},
		{request: "GET PODS?labelSelector=app!%3Dweb"},
		{request: "GET PODS?labelSelector=app+in+(web,db),none"},
		{request: "GET PODS?fieldSelector=spec.nodeName%3Dn2"},
		{request: "GET PODS?fieldSelector=metadata.name%3Da"},
		{request: "GET PODS?fieldSelector=spec.none%3Da"},
		{request: "GET PODS?resourceVersion=0"},
		{request: "PATCH PODS/b", content: "merge-patch", body: `{"metadata":{"labels":{"app":"db"}}}`},
		{request: "GET PODS?labelSelector=app%3Dweb"},
		{request: "DELETE PODS?labelSelector=app%3Dweb", body: `{"gracePeriodSeconds":0}`},
		{request: "GET PODS"},
	}
}

func watches() []step {
	return []step{
		{request: "POST PODS", body: pod("before", "")},
		{request: "WATCH PODS?watch=true&resourceVersion=$version(pods/before,0)"},
		{request: "WATCH PODS?watch=true&resourceVersion=$version(pods/before,0)&labelSelector=app%3Dweb"},
		{request: "WATCH PODS?watch=true&resourceVersion=$version(pods/before,0)&fieldSelector=spec.nodeName%3Dn1"},
		{request: "WATCH PODS?watch=true"},
		{request: "POST PODS", body: pod("a", `,"finalizers":["a.io/b"]`)},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"labels":{"app":"db"}}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"labels":{"app":"db"}}}`},
		{request: "PATCH PODS/a/status", content: "merge-patch", body: `{"status":{"phase":"Running"}}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"labels":{"app":"web"}}}`},
		{request: "POST PODS", body: strings.Replace(pod("late", ""), `"nodeName":"n1",`, "", 1)},
		{
			request: "POST PODS/late/binding",
			body:    `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"late"},"target":{"kind":"Node","name":"n1"}}`,
		},
		{request: "DELETE PODS/late"},
		{request: "DELETE PODS/late", body: `{"gracePeriodSeconds":0}`},
		{request: "DELETE PODS/a", body: `{"gracePeriodSeconds":0}`},
		{request: "PATCH PODS/a", content: "merge-patch", body: `{"metadata":{"finalizers":null}}`},
		{request: "WATCH PODS?watch=true&resourceVersion=$version(pods/a,0)"},
		{request: "POST PODS", body: pod("end", "")},
	}
}

// eviction evicts a Pod.
func eviction(name, more string) step {
	return step{
		request: "POST PODS/" + name + "/eviction",
		body:    fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q}%s}`, name, more),
	}
}

func evictions() []step {
	return []step{
		{request: "POST PODS", body: pod("a", "")},
		eviction("none", ""),
		eviction("a", `,"deleteOptions":{"preconditions":{"uid":"other"}}`),
		eviction("a", `,"deleteOptions":{"dryRun":["All"]}`),
		{request: "GET PODS/a", show: []string{"status.conditions"}},
		eviction("a", `,"deleteOptions":{"gracePeriodSeconds":20,"preconditions":{"uid":"$uid(pods/a)"}}`),
		{request: "GET PODS/a"},
		eviction("a", ""),
		{request: "GET PODS/a"},
		{request: "POST PODS", body: pod("b", "")},
		{request: "PATCH PODS/b/status", content: "merge-patch", body: `{"status":{"phase":"Running"}}`},
		eviction("b", `,"deleteOptions":{"gracePeriodSeconds":0}`),
		{request: "GET PODS/b"},
	}
}

// evictionsWithBudgets returns the eviction of a Pod under budgets in each state.
func evictionsWithBudgets() map[string][]step {
	const (
		running = `"phase":"Running"`
		ready   = `"phase":"Running","conditions":[{"type":"Ready","status":"True"}]`
	)
	// budget returns a budget and its status, as the disruption controller writes it.
	budget := func(name, spec string, generation, allowed, healthy, desired int) []step {
		return []step{
			{
				request: "POST BUDGETS",
				body: fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":%q},"spec":{"selector":{"matchLabels":{"app":"web"}},%s}}`,
					name, spec),
			},
			{
				request: "PATCH BUDGETS/" + name + "/status", content: "merge-patch", show: []string{"status.disruptionsAllowed"},
				body: fmt.Sprintf(`{"status":{"observedGeneration":%d,"disruptionsAllowed":%d,"currentHealthy":%d,"desiredHealthy":%d,"expectedPods":3}}`,
					generation, allowed, healthy, desired),
			},
		}
	}
	const one = `"minAvailable":1`
	all := map[string][]step{}
	for name, each := range map[string]struct {
		status  string
		more    string
		budgets [][]step
	}{
		"allowed":                       {status: ready, budgets: [][]step{budget("b", one, 1, 2, 3, 1)}},
		"not allowed":                   {status: ready, budgets: [][]step{budget("b", one, 1, 0, 1, 1)}},
		"not allowed, maxUnavailable 0": {status: ready, budgets: [][]step{budget("b", `"maxUnavailable":0`, 1, 0, 1, 1)}},
		"not observed":                  {status: ready, budgets: [][]step{budget("b", one, 0, 1, 1, 0)}},
		"two budgets":                   {status: ready, budgets: [][]step{budget("b", one, 1, 1, 2, 1), budget("c", one, 1, 1, 2, 1)}},
		"pending":                       {status: `"phase":"Pending"`, budgets: [][]step{budget("b", one, 1, 0, 1, 1)}},
		"succeeded":                     {status: `"phase":"Succeeded"`, budgets: [][]step{budget("b", one, 1, 0, 1, 1)}},
		"pending, and another Pod is to be evicted": {
			status: `"phase":"Pending"`, more: `"preconditions":{"uid":"other"}`, budgets: [][]step{budget("b", one, 1, 0, 1, 1)},
		},
		"allowed, and another Pod is to be evicted": {status: ready, more: `"preconditions":{"uid":"other"}`, budgets: [][]step{budget("b", one, 1, 2, 3, 1)}},
		"dry run":                                {status: ready, more: `"dryRun":["All"]`, budgets: [][]step{budget("b", one, 1, 2, 3, 1)}},
		"dry run, not allowed":                   {status: ready, more: `"dryRun":["All"]`, budgets: [][]step{budget("b", one, 1, 0, 1, 1)}},
		"not ready, healthy budget":              {status: running, budgets: [][]step{budget("b", one, 1, 0, 1, 1)}},
		"not ready, unhealthy budget":            {status: running, budgets: [][]step{budget("b", one, 1, 0, 0, 1)}},
		"not ready, budget without healthy Pods": {status: running, budgets: [][]step{budget("b", `"minAvailable":0`, 1, 0, 0, 0)}},
		"not ready, always allowed": {
			status: running, budgets: [][]step{budget("b", one+`,"unhealthyPodEvictionPolicy":"AlwaysAllow"`, 1, 0, 0, 1)},
		},
		"not ready, if healthy, unhealthy budget": {
			status: running, budgets: [][]step{budget("b", one+`,"unhealthyPodEvictionPolicy":"IfHealthyBudget"`, 1, 0, 0, 1)},
		},
	} {
		steps := []step{
			{request: "POST PODS", body: pod("a", "")},
			{request: "PATCH PODS/a/status", content: "merge-patch", body: `{"status":{` + each.status + `}}`, show: []string{"status.phase"}},
		}
		for _, b := range each.budgets {
			steps = append(steps, b...)
		}
		options := ""
		if each.more != "" {
			options = `,"deleteOptions":{` + each.more + `}`
		}
		steps = append(steps, eviction("a", options), step{request: "GET PODS/a"})
		for _, b := range each.budgets {
			name, _, _ := strings.Cut(strings.TrimPrefix(b[1].request, "PATCH BUDGETS/"), "/")
			steps = append(steps, step{request: "GET BUDGETS/" + name, show: []string{"status.disruptionsAllowed"}})
		}
		all[name] = append(steps, eviction("a", options), step{request: "GET PODS/a"})
	}
	return all
}
