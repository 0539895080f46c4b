package forecast

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// WarningKind says what an eviction costs an application.
type WarningKind string

// The kinds, in the order of Warnings.
const (
	// MayFindNoNode means that the replacements of the Pods may stay Pending.
	MayFindNoNode WarningKind = "MayFindNoNode"
	// MayNotFitTogether means that some of the replacements may stay Pending, although each alone finds a Node. See Cluster.Shortage.
	MayNotFitTogether WarningKind = "MayNotFitTogether"
	// NotRecreated means that no controller recreates the Pods.
	NotRecreated WarningKind = "NotRecreated"
	// LastReady means that no other Pod of the controller is ready.
	LastReady WarningKind = "LastReady"
	// DataLeftBehind means that data of the Pods is not moved to another Node.
	DataLeftBehind WarningKind = "DataLeftBehind"
	// DoNotDisrupt means that the Pods have an annotation that asks not to evict them.
	DoNotDisrupt WarningKind = "DoNotDisrupt"
)

// WarningKinds are all kinds.
var WarningKinds = []WarningKind{MayFindNoNode, MayNotFitTogether, NotRecreated, LastReady, DataLeftBehind, DoNotDisrupt}

// NeedsCluster reports whether warnings of the kind need a Cluster.
func (k WarningKind) NeedsCluster() bool {
	return slices.Contains([]WarningKind{MayFindNoNode, MayNotFitTogether, LastReady}, k)
}

// Annotations by which owners of Pods say what the eviction costs them. Those of the cluster-autoscaler are described in its FAQ, that of
// Karpenter in its documentation of disruption.
const (
	safeToEvict        = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	safeToEvictVolumes = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	doNotDisrupt       = "karpenter.sh/do-not-disrupt"
)

const (
	maxVolumes = 3   // that a message names
	maxName    = 100 // characters of a name in a message
)

// Warning is what a drain costs the Pods of a controller. The drain does not wait for it.
type Warning struct {
	Kind WarningKind
	// Object is the kind and "namespace/name" of the controller. It is empty for Pods without a controller.
	Object  string
	Message string
	// Pods are the affected Pods, "namespace/name", sorted.
	Pods []string
}

// Warnings returns what the drain costs the Pods that it evicts: by kind, then those with the most Pods first. It says nothing about Pods
// of DaemonSets and static Pods, which belong to the Node. cluster is nil if it was not read, which leaves out the warnings that need it.
func (f Forecast) Warnings(cluster *Cluster) []Warning {
	type cause struct {
		kind            WarningKind
		object, message string
	}
	pods := map[cause][]string{}
	for i := range f.Pods {
		p := &f.Pods[i]
		if !p.isWarnedAbout() {
			continue
		}
		add := func(kind WarningKind, message string) {
			if message != "" {
				c := cause{kind, p.controller(), message}
				pods[c] = append(pods[c], p.Namespace+"/"+p.Name)
			}
		}
		if p.controller() == "" && !p.ownerMoves() {
			add(NotRecreated, "not recreated: there is no controller")
		}
		if cluster != nil {
			add(MayFindNoNode, cluster.mayFindNoNode(p))
			add(LastReady, cluster.lastReady(p))
		}
		if !p.ownerMoves() {
			add(DataLeftBehind, p.dataLeftBehind())
		}
		add(DoNotDisrupt, p.disruptionRefused())
	}
	found := make([]Warning, 0, len(pods))
	for c, names := range pods {
		slices.Sort(names)
		found = append(found, Warning{c.kind, c.object, c.message, names})
	}
	slices.SortFunc(found, func(a, b Warning) int {
		return cmp.Or(cmp.Compare(slices.Index(WarningKinds, a.Kind), slices.Index(WarningKinds, b.Kind)), cmp.Compare(len(b.Pods), len(a.Pods)),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Message, b.Message))
	})
	return found
}

// NeedsCluster reports whether warnings about the drain need a Cluster: it evicts Pods that a controller recreates.
func (f Forecast) NeedsCluster() bool {
	return slices.ContainsFunc(f.Pods, func(p Pod) bool { return p.isWarnedAbout() && p.controller() != "" })
}

// isWarnedAbout reports whether the drain evicts the Pod, and it does not belong to the Node.
func (p *Pod) isWarnedAbout() bool {
	return p.Outcome == Evacuated && p.Type == v1alpha1.PodTypeDefault && p.DeletionTimestamp == nil
}

// ownerMoves reports whether an evacuator of the owner of the Pod may move the Pod and its data before the eviction.
func (p *Pod) ownerMoves() bool {
	return slices.ContainsFunc(p.Evacuators, func(e v1alpha1.Evacuator) bool { return !evacuators.IsBuiltIn(e.EvacuatorClass) })
}

// controller returns the kind and "namespace/name" of the controller of the Pod. It is empty if the Pod has none.
func (p *Pod) controller() string {
	kind, name := p.Controller()
	if kind == "" {
		return ""
	}
	return text.Cut(kind, maxName) + " " + p.Namespace + "/" + name
}

// disruptionRefused names the annotation that asks not to evict the Pod. It is empty if there is none.
func (p *Pod) disruptionRefused() string {
	for _, refusal := range []struct{ key, value string }{{safeToEvict, "false"}, {doNotDisrupt, "true"}} {
		if p.Annotations[refusal.key] == refusal.value {
			return fmt.Sprintf("annotation %s: %q asks not to evict; the drain does not honor it", refusal.key, refusal.value)
		}
	}
	return ""
}

// dataLeftBehind names the emptyDir and hostPath volumes whose data the Pod does not have on another Node. It leaves out volumes that no
// container can write, and those that annotations of the cluster-autoscaler declare to be safe.
func (p *Pod) dataLeftBehind() string {
	if p.Annotations[safeToEvict] == "true" {
		return ""
	}
	without := sets.New(strings.Split(strings.ReplaceAll(p.Annotations[safeToEvictVolumes], " ", ""), ",")...)
	written := p.writtenVolumes()
	var names []string
	for _, volume := range p.Spec.Volumes {
		if name := localData(volume.VolumeSource, volume.Name); name != "" && written.Has(volume.Name) && !without.Has(volume.Name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "the eviction leaves behind the data in " + text.List(names, maxVolumes)
}

// localData describes a volume with data on a disk of the Node. It is empty for other volumes. As for the cluster-autoscaler, an emptyDir
// in memory has no data that its owner wants to keep.
func localData(source corev1.VolumeSource, name string) string {
	switch {
	case source.EmptyDir != nil && source.EmptyDir.Medium == corev1.StorageMediumDefault:
		if limit := source.EmptyDir.SizeLimit; limit != nil {
			return "emptyDir " + name + " (sizeLimit " + limit.String() + ")"
		}
		return "emptyDir " + name
	case source.HostPath != nil && !isDevice(source.HostPath.Type) && !ofSystem.MatchString(path.Clean(source.HostPath.Path)):
		return "hostPath " + text.Cut(source.HostPath.Path, maxName)
	default:
		return ""
	}
}

// ofSystem matches the paths of the operating system: its programs, configuration, devices, sockets and locks.
var ofSystem = regexp.MustCompile(`^/(boot|dev|etc|lib|proc|run|sys|usr|var/run|var/lock)(/|$)`)

// isDevice reports whether a hostPath is a socket or a device, which has no data.
func isDevice(hostPath *corev1.HostPathType) bool {
	return hostPath != nil && slices.Contains([]corev1.HostPathType{corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev}, *hostPath)
}

// writtenVolumes returns the names of the volumes that a container of the Pod can write.
func (p *Pod) writtenVolumes() sets.Set[string] {
	written := sets.New[string]()
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, mount := range container.VolumeMounts {
			if !mount.ReadOnly {
				written.Insert(mount.Name)
			}
		}
	}
	return written
}
