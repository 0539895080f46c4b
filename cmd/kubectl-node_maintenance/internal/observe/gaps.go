package observe

import (
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// Gaps are what could not be read, because the user lacks a right or the cluster does not serve it.
type Gaps struct {
	mu   sync.Mutex
	list []string
}

// List returns the gaps in the order in which they were found.
func (g *Gaps) List() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.list)
}

// Add records a gap once.
func (g *Gaps) Add(gap string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.list, gap) {
		g.list = append(g.list, gap)
	}
}

// tolerate records the error of a request as a gap if the request is forbidden or not served. It returns any other error.
func (c *Cluster) tolerate(err error, verb, resource string) (read bool, _ error) {
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsUnauthorized(err):
		c.gaps.Add(fmt.Sprintf("%s rejects the credentials, which may have expired: %s cannot be read", c.Name, resource))
		return false, nil
	case apierrors.IsForbidden(err):
		c.gaps.Add(fmt.Sprintf("No right to %s %s in %s", verb, resource, c.Name))
		return false, nil
	case meta.IsNoMatchError(err), verb == "list" && apierrors.IsNotFound(err): // after the CRD was deleted, and by a proxy
		c.gaps.Add(fmt.Sprintf("%s does not serve %s", c.Name, resource))
		return false, nil
	default:
		return false, err
	}
}
