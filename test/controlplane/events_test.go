package controlplane

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestEventsAreNarrowedDown(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	events := Events{
		{User: "a", UserAgent: "manager/v1", Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "x", Name: "p1", Code: 429},
		{User: "a", UserAgent: "manager/v1", Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "x", Name: "p1", Code: 201},
		{User: "b", UserAgent: "kubectl/v1", Verb: "delete", Resource: "pods", Namespace: "x", Name: "p2", Code: 200},
		{User: "b", UserAgent: "kubectl/v1", Verb: "list", Resource: "machines", Group: "cluster.x-k8s.io", Namespace: "y", Code: 403},
	}
	for _, test := range []struct {
		name string
		got  Events
		want Events
	}{
		{"By", events.By("a"), events[:2]},
		{"By two", events.By("a", "b"), events},
		{"WithUserAgent", events.WithUserAgent("kubectl/"), events[2:]},
		{"Verb", events.Verb("delete", "list"), events[2:]},
		{"Writes", events.Writes(), events[:3]},
		{"Resource leaves subresources out", events.Resource("pods"), events[2:3]},
		{"Resource with a subresource", events.Resource("pods", "eviction"), events[:2]},
		{"Resource with the object and a subresource", events.Resource("pods", "", "eviction"), events[:3]},
		{"Resource of any group", events.Resource("machines"), events[3:]},
		{"Resource of a group", events.Resource("machines.cluster.x-k8s.io"), events[3:]},
		{"Resource of another group", events.Resource("machines.example.com"), nil},
		{"InNamespace", events.InNamespace("y"), events[3:]},
		{"Named", events.Named("x", "p1"), events[:2]},
		{"Succeeded", events.Succeeded(), events[1:3]},
		{"Failed", events.Failed(), Events{events[0], events[3]}},
		{"Failed with a code", events.Failed(429), events[:1]},
	} {
		g.Expect(test.got).To(Equal(test.want), test.name)
	}
	g.Expect(events.Names()).To(Equal([]string{"p1", "p1", "p2", ""}))
	g.Expect(events[1].String()).To(HaveSuffix("201 create pods/eviction x/p1 by a (manager/v1)"))
}

func TestUIDPrecondition(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	deletion := Event{RequestObject: []byte(`{"kind":"DeleteOptions","preconditions":{"uid":"1"}}`)}
	eviction := Event{Subresource: "eviction", RequestObject: []byte(`{"kind":"Eviction","deleteOptions":{"preconditions":{"uid":"2"}}}`)}
	g.Expect(deletion.UIDPrecondition()).To(BeEquivalentTo("1"))
	g.Expect(eviction.UIDPrecondition()).To(BeEquivalentTo("2"))
	g.Expect(Event{}.UIDPrecondition()).To(BeEmpty())
}
