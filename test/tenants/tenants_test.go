package tenants

import (
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
)

func TestNarrow(t *testing.T) {
	tenant := &Tenant{Name: "t1", maintenance: "t1-abc"}
	for from, want := range map[string]string{
		"/api/v1/namespaces":                                                               "metadata.name=t1",
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dt1":                                    "spec.nodeName=t1,metadata.namespace=t1",
		"/apis/policy/v1/poddisruptionbudgets":                                             "metadata.namespace=t1",
		"/apis/maintenance.cluster.x-k8s.io/v1alpha1/nodemaintenances?allowWatchBookmarks": "metadata.name=t1-abc",
		"/apis/maintenance.cluster.x-k8s.io/v1alpha1/evacuations":                          "metadata.namespace=t1",

		// Requests for one object, one namespace or shared resources are not changed.
		"/api/v1/nodes/t2":           "",
		"/api/v1/namespaces/t2/pods": "",
		"/apis/policy/v1":            "",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": "",
		"/version": "",
		"/":        "",
	} {
		g := NewWithT(t)
		to, err := url.Parse(from)
		g.Expect(err).NotTo(HaveOccurred())
		tenant.narrow(to)
		g.Expect(to.Query().Get("fieldSelector")).To(Equal(want), from)
	}

	g := NewWithT(t)
	to, err := url.Parse("/api/v1/nodes?watch=true&fieldSelector=spec.unschedulable%3Dtrue")
	g.Expect(err).NotTo(HaveOccurred())
	tenant.narrow(to)
	g.Expect(to.Query().Get("fieldSelector")).To(Equal("spec.unschedulable=true"))
	g.Expect(to.Query().Get("labelSelector")).To(Equal(Label + "=t1"))
}
