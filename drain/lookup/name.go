package lookup

import (
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
)

// CanExist reports whether an object can have a name, which is not empty. The API server accepts references with other names, such as the
// owner references of a Pod and the claims of its volumes. No object is read by such a name: the path of the request would be that of
// something else, or the request would fail for ever.
func CanExist(name string) bool {
	return len(name) <= validation.DNS1123SubdomainMaxLength && len(content.IsPathSegmentName(name)) == 0
}
