package apiserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/apiserver"
)

// step is a request of a history, or the beginning of a watch.
type step struct {
	// request is a verb and a URL. WATCH begins a watch whose events are compared at the end of the history. AWAIT waits until the URL is
	// served.
	request string
	// content is the type of a patch: merge-patch, strategic-merge-patch, json-patch or apply-patch.
	content string
	// body may refer to an object by the end of its URL: $uid(pods/a), and its resourceVersions in the responses, from 0: $version(pods/a,0).
	body string
	// edit changes the object of the last response for this URL: the body of a PUT.
	edit func(object map[string]any)
	// show are fields of the response that are compared beside its metadata, such as spec.replicas.
	show []string
}

// outcome is what is compared of a response.
type outcome struct {
	Code       int
	Reason     string
	Message    string
	Causes     []string
	RetryAfter string
	Fields     map[string]any
	Items      []string // of a list
	// Written is true if the resourceVersion differs from that of the last response with this object, New if the UID does.
	Written, New bool
}

// player plays histories on one API server.
type player struct {
	*WithT
	client *http.Client
	host   string
	seen   map[string][]*unstructured.Unstructured // by URL, without host and subresource
}

func newPlayer(g *WithT, config *rest.Config) *player {
	c, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	return &player{WithT: g, client: c, host: config.Host, seen: map[string][]*unstructured.Unstructured{}}
}

// play returns the outcomes of the steps, and then the events of the watches.
func (p *player) play(t *testing.T, steps []step) (outcomes []outcome, events [][]string) {
	t.Helper()
	var watches []*json.Decoder
	for _, each := range steps {
		verb, url, _ := strings.Cut(each.request, " ")
		if verb == "WATCH" {
			response := p.send(t, http.MethodGet, url, "", nil)
			p.Expect(response.StatusCode).To(Equal(http.StatusOK), url)
			t.Cleanup(func() { _ = response.Body.Close() })
			watches = append(watches, json.NewDecoder(response.Body))
			continue
		}
		if verb == "AWAIT" {
			p.Eventually(func() int { return p.take(t, http.MethodGet, url, each).Code }, time.Minute, 50*time.Millisecond).
				Should(Equal(http.StatusOK), "%+v", outcomes)
			verb = http.MethodGet
		}
		outcomes = append(outcomes, p.take(t, verb, url, each))
	}
	for _, w := range watches {
		events = append(events, p.events(w))
	}
	return outcomes, events
}

func (p *player) send(t *testing.T, verb, url, content string, body []byte) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), verb, p.host+p.fill(url), bytes.NewReader(body))
	p.Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", "application/json")
	if content == "apply-patch" {
		request.Header.Set("Content-Type", "application/apply-patch+yaml")
	} else if content != "" {
		request.Header.Set("Content-Type", "application/"+content+"+json")
	}
	response, err := p.client.Do(request)
	p.Expect(err).NotTo(HaveOccurred())
	return response
}

func (p *player) take(t *testing.T, verb, url string, each step) outcome {
	t.Helper()
	key, _, _ := strings.Cut(url, "?")
	for _, subresource := range []string{"/status", "/scale", "/eviction", "/binding"} {
		key = strings.TrimSuffix(key, subresource)
	}
	body := []byte(p.fill(each.body))
	if each.edit != nil {
		object := p.last(key).DeepCopy()
		each.edit(object.Object)
		body, _ = json.Marshal(object)
	}
	response := p.send(t, verb, url, each.content, body)
	content, err := io.ReadAll(response.Body)
	p.Expect(err).NotTo(HaveOccurred())
	p.Expect(response.Body.Close()).To(Succeed())
	o := outcome{Code: response.StatusCode, RetryAfter: response.Header.Get("Retry-After")}
	answer := &unstructured.Unstructured{}
	if json.Unmarshal(content, &answer.Object) != nil {
		o.Message = strings.TrimSpace(string(content))
		return o
	}
	switch kind := answer.GetKind(); {
	case kind == "Status":
		o.Reason, _, _ = unstructured.NestedString(answer.Object, "reason")
		o.Message, _, _ = unstructured.NestedString(answer.Object, "message")
		o.Message = random.ReplaceAllString(o.Message, "*")
		causes, _, _ := unstructured.NestedSlice(answer.Object, "details", "causes")
		for _, cause := range causes {
			o.Causes = append(o.Causes, fmt.Sprint(cause.(map[string]any)["reason"], ": ", cause.(map[string]any)["message"]))
		}
		o.Causes = slices.Compact(o.Causes) // the API server validates an update twice
	case strings.HasSuffix(kind, "List"):
		items, _, _ := unstructured.NestedSlice(answer.Object, "items")
		for _, item := range items {
			o.Items = append(o.Items, (&unstructured.Unstructured{Object: item.(map[string]any)}).GetName())
		}
	default:
		if verb == http.MethodPost && !strings.HasSuffix(key, answer.GetName()) {
			key += "/" + answer.GetName()
		}
		before := p.last(key)
		o.Written = before == nil || before.GetResourceVersion() != answer.GetResourceVersion()
		o.New = before == nil || before.GetUID() != answer.GetUID()
		o.Fields = fields(answer, each.show)
		if kind != "Scale" {
			p.seen[key] = append(p.seen[key], answer)
		}
	}
	return o
}

func (p *player) last(key string) *unstructured.Unstructured {
	if all := p.seen[key]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

var reference = regexp.MustCompile(`\$(uid|version)\(([^,)]+)(?:,(\d+))?\)`)

func (p *player) fill(text string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		parts := reference.FindStringSubmatch(found)
		for key, all := range p.seen {
			if !strings.HasSuffix(key, "/"+parts[2]) {
				continue
			}
			if parts[1] == "uid" {
				return string(all[len(all)-1].GetUID())
			}
			i, _ := strconv.Atoi(parts[3])
			return all[i].GetResourceVersion()
		}
		p.Expect(found).To(BeEmpty(), "no response had this object")
		return ""
	})
}

// random matches UIDs, and the resourceVersion in the message of a failed precondition.
var random = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|in record \(\d+\)`)

var generated = regexp.MustCompile(`-[a-z0-9]{5}$`)

// fields returns the fields of an object that are compared.
func fields(object *unstructured.Unstructured, show []string) map[string]any {
	all := map[string]any{"kind": object.GetKind(), "deleting": object.GetDeletionTimestamp() != nil}
	names := []string{"name", "namespace", "generateName", "generation", "labels", "annotations", "finalizers", "deletionGracePeriodSeconds"}
	for _, field := range names {
		if value, found, _ := unstructured.NestedFieldNoCopy(object.Object, "metadata", field); found {
			all[field] = value
		}
	}
	if object.GetGenerateName() != "" {
		all["name"] = generated.ReplaceAllString(object.GetName(), "-*****")
	}
	for _, path := range show {
		if value, found, _ := unstructured.NestedFieldNoCopy(object.Object, strings.Split(path, ".")...); found {
			all[path] = value
		}
	}
	return all
}

// events returns the events of a watch until that of an object named end.
func (p *player) events(watch *json.Decoder) (events []string) {
	for {
		var event struct {
			Type   string
			Object map[string]any
		}
		p.Expect(watch.Decode(&event)).To(Succeed())
		object := &unstructured.Unstructured{Object: event.Object}
		all, err := json.Marshal(fields(object, []string{"spec.nodeName"}))
		p.Expect(err).NotTo(HaveOccurred())
		events = append(events, event.Type+" "+string(all))
		if object.GetName() == "end" || event.Type == "ERROR" {
			return events
		}
	}
}

// TestSameAsAPIServer plays histories of requests on a real API server and on the simulated one: the outcomes are the same.
func TestSameAsAPIServer(t *testing.T) {
	actual := controlplane.ForTest(t, controlplane.Options{ExtraArgs: map[controlplane.Component][]string{
		controlplane.APIServer: {"--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection"},
	}})
	g := NewWithT(t)
	g.Expect(actual.StopComponent(t.Context(), controlplane.ControllerManager)).To(Succeed(), "the histories stand for it, too")
	simulated := apiserver.New(apiserver.Options{Name: "workload", Scheme: scheme, Random: rand.New(rand.NewPCG(1, 2))})

	for name, history := range histories() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			expected, expectedEvents := newPlayer(g, actual.AdminConfig()).play(t, history)
			outcomes, events := newPlayer(g, &rest.Config{Host: "http://workload", Transport: simulated.Transport()}).play(t, history)
			requests := slices.DeleteFunc(slices.Clone(history), func(s step) bool { return strings.HasPrefix(s.request, "WATCH") })
			for i, each := range requests {
				if got, want := text(outcomes[i]), text(expected[i]); got != want {
					t.Errorf("%s %s\nthe API server:  %s\nthe simulation: %s", each.request, each.body, want, got)
				}
			}
			g.Expect(events).To(Equal(expectedEvents))
		})
	}
}

func text(o outcome) string {
	all, _ := json.Marshal(o)
	return string(all)
}
