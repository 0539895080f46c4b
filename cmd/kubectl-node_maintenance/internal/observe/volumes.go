package observe

import (
	"context"
	"slices"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get,roleName=capnm-plugin-workload-reader

// Volumes returns which volumes of a Node must detach after its drain. It reads the claims of the Node's Pods and their volumes, and not
// VolumeAttachments: those of one Node cannot be selected. See volumes.FirstClaims for the number of claims. It returns nil if a right is
// missing.
func (w *Workload) Volumes(ctx context.Context, node *corev1.Node, m *v1alpha1.NodeMaintenance) (*volumes.Decision, error) {
	if IsUnread(node) {
		return nil, nil
	}
	attached := sets.New[string]()
	for _, volume := range node.Status.VolumesAttached {
		attached.Insert(string(volume.Name))
	}
	if attached.Len() == 0 {
		return &volumes.Decision{}, nil
	}
	seen := volumes.Observation{
		Attached: sets.List(attached), Facts: volumes.Facts{Claims: map[types.NamespacedName]volumes.Claim{}, Volumes: map[string]volumes.Volume{}},
	}
	matcher := rules.NewMatcher(rules.InEffect(&m.Spec))
	var claims [][]types.NamespacedName
	for i := range w.pods[node.Name] {
		pod := &w.pods[node.Name][i]
		stays := matcher.Skips(planinput.RulePod(w, pod))
		if stays || !rules.Finished(pod) {
			seen.Pods = append(seen.Pods, volumes.Pod{Claims: volumes.ClaimsOf(pod), Skipped: stays})
			claims = append(claims, volumes.ClaimsOf(pod))
		}
	}
	for _, key := range volumes.FirstClaims(claims) {
		if known, err := w.readClaim(ctx, key, seen.Facts); err != nil || !known {
			return nil, err
		}
	}
	for _, key := range slices.Concat(claims...) {
		if _, read := seen.Claims[key]; !read {
			seen.Claims[key] = volumes.Claim{} // nothing is known of its volume
		}
	}
	for name, volume := range seen.Volumes {
		if attached.HasAny(volume.UniqueNames...) {
			seen.Attachments = append(seen.Attachments, volumes.NewAttachment(name, &name))
		}
	}
	decision := volumes.Decide(seen)
	return &decision, nil
}

// readClaim reads a PersistentVolumeClaim and its volume into facts.
func (w *Workload) readClaim(ctx context.Context, key types.NamespacedName, facts volumes.Facts) (known bool, _ error) {
	if _, read := facts.Claims[key]; read {
		return true, nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	if _, known, err := w.readOne(ctx, key, claim, "persistentvolumeclaims"); !known {
		return false, err
	}
	name := claim.Spec.VolumeName
	facts.Claims[key] = volumes.Claim{Volume: name}
	if _, read := facts.Volumes[name]; read || name == "" {
		return true, nil
	}
	volume := &corev1.PersistentVolume{}
	exists, known, err := w.readOne(ctx, types.NamespacedName{Name: name}, volume, "persistentvolumes")
	if !known {
		return false, err
	}
	facts.Volumes[name] = volumes.Volume{}
	if exists {
		w.volumes[key] = volume
		facts.Volumes[name], _ = volumes.VolumeOf(volume) // without names, the plan names what status.volumesAttached lists
	}
	return true, nil
}

// readOne reads an object. known is false if the user may not read it, which is a gap, or if that fails. The owners and claims of a Pod may
// have names that no object can have: API servers do not check them, and the client returns an error.
func (c *Cluster) readOne(ctx context.Context, key types.NamespacedName, object client.Object, resource string) (exists, known bool, err error) {
	if !lookup.CanExist(key.Name) {
		return false, true, nil
	}
	err = c.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		return false, true, nil
	}
	known, err = c.tolerate(err, "get", resource)
	return known, known, errors.Wrapf(err, "getting %s %s of %s", resource, strings.TrimPrefix(key.String(), "/"), c.Name)
}
