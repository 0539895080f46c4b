package apiserver

import (
	"encoding/json"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
)

// serveDocument serves discovery, health and the version.
func (s *Server) serveDocument(req *http.Request) response {
	path := strings.Trim(req.URL.Path, "/")
	var document any
	switch path {
	case "":
		document = metav1.RootPaths{Paths: []string{"/api", "/api/v1", "/apis", "/healthz", "/livez", "/readyz", "/version"}}
	case "healthz", "livez", "readyz":
		return response{code: http.StatusOK, contentType: "text/plain; charset=utf-8", body: []byte("ok")}
	case "version":
		document = apimachineryversion.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3", Platform: "linux/amd64"}
	case "api":
		document = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "apis":
		document = s.groups()
	default:
		gv, err := schema.ParseGroupVersion(strings.TrimPrefix(path, "apis/"))
		if path == "api/v1" {
			gv, err = schema.GroupVersion{Version: "v1"}, nil
		} else if !strings.HasPrefix(path, "apis/") {
			return pageNotFound()
		}
		list := s.resourceList(gv)
		if err != nil || len(list.APIResources) == 0 {
			return s.group(strings.TrimPrefix(path, "apis/"))
		}
		document = list
	}
	return documentResponse(document)
}

func documentResponse(document any) response {
	body, err := json.Marshal(document)
	if err != nil {
		return refusal(err)
	}
	return response{code: http.StatusOK, contentType: contentJSON, body: body}
}

// groups returns the API groups.
func (s *Server) groups() *metav1.APIGroupList {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[schema.GroupVersion]bool{}
	for _, k := range s.sorted() {
		gv := k.gvr.GroupVersion()
		if gv.Group == "" || known[gv] {
			continue
		}
		known[gv] = true
		served := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		if last := len(list.Groups) - 1; last >= 0 && list.Groups[last].Name == gv.Group {
			list.Groups[last].Versions = append(list.Groups[last].Versions, served)
			continue
		}
		list.Groups = append(list.Groups, metav1.APIGroup{
			Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{served}, PreferredVersion: served,
		})
	}
	return list
}

// group returns the document of one API group.
func (s *Server) group(name string) response {
	for _, group := range s.groups().Groups {
		if group.Name == name {
			group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return documentResponse(group)
		}
	}
	return pageNotFound()
}

// resourceList returns the resources of a group and version.
func (s *Server) resourceList(gv schema.GroupVersion) *metav1.APIResourceList {
	list := &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(), APIResources: []metav1.APIResource{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.sorted() {
		if k.gvr.GroupVersion() != gv {
			continue
		}
		add := func(subresource, kind string, group schema.GroupVersion, verbs ...string) {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: k.gvr.Resource + subresource, Namespaced: k.namespaced, Group: group.Group, Version: group.Version, Kind: kind, Verbs: verbs,
			})
		}
		add("", k.kind, schema.GroupVersion{}, "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
		last := &list.APIResources[len(list.APIResources)-1]
		last.SingularName, last.ShortNames, last.Categories = k.singular, k.shortNames, k.categories
		if k.status {
			add("/status", k.kind, schema.GroupVersion{}, "get", "patch", "update")
		}
		if k.scale {
			add("/scale", "Scale", schema.GroupVersion{Group: "autoscaling", Version: "v1"}, "get", "patch", "update")
		}
		if k.gvr == (schema.GroupVersionResource{Version: "v1", Resource: "pods"}) {
			add("/binding", "Binding", schema.GroupVersion{}, "create")
			add("/eviction", "Eviction", schema.GroupVersion{Group: "policy", Version: "v1"}, "create")
		}
	}
	return list
}
