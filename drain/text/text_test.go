package text_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

func TestCut(t *testing.T) {
	g := NewWithT(t)
	g.Expect(text.Cut("short", 5)).To(Equal("short"))
	g.Expect(text.Cut("longer", 5)).To(Equal("long…"))
	g.Expect(text.Cut("äöüß", 4)).To(Equal("äöüß"), "the limit is in runes")
	g.Expect(text.Cut("äöüßä", 4)).To(Equal("äöü…"))
}

func TestList(t *testing.T) {
	g := NewWithT(t)
	g.Expect(text.List(nil, 2)).To(BeEmpty())
	g.Expect(text.List([]string{"a", "b"}, 2)).To(Equal("a, b"))
	g.Expect(text.List([]string{"a", "b", "c"}, 2)).To(Equal("a, b and 1 more"))
}

func TestCount(t *testing.T) {
	g := NewWithT(t)
	g.Expect(text.Count(0, "Pod")).To(Equal("0 Pods"))
	g.Expect(text.Count(1, "more Node")).To(Equal("1 more Node"))
	g.Expect(text.Count(int32(2), "replica")).To(Equal("2 replicas"))
}

func TestNamed(t *testing.T) {
	g := NewWithT(t)
	g.Expect(text.Named("Node", []string{"a"}, 2)).To(Equal("Node a"))
	g.Expect(text.Named("Node", []string{"a", "b", "c"}, 2)).To(Equal("Nodes a, b and 1 more"))
}
