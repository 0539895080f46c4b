package volumes_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// maxRounds is how often Decide may ask for objects before it decides.
const maxRounds = 3

// cluster holds the objects of a workload cluster.
type cluster struct {
	volumes map[string]*corev1.PersistentVolume
	claims  map[types.NamespacedName]string // the volume in its spec
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// csi returns a PersistentVolume of the driver "d" with the handle "h-" and its name. It is bound to the claim unless that is empty.
func csi(name, claim string) *corev1.PersistentVolume {
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h-" + name}
	if claim != "" {
		volume.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: claim}
	}
	return volume
}

func attachedName(volume string) string { return "kubernetes.io/csi/d^h-" + volume }

func holding(all ...*corev1.PersistentVolume) cluster {
	c := cluster{volumes: map[string]*corev1.PersistentVolume{}, claims: map[types.NamespacedName]string{}}
	for _, volume := range all {
		c.volumes[volume.Name] = volume
		if ref := volume.Spec.ClaimRef; ref != nil {
			c.claims[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] = volume.Name
		}
	}
	return c
}

// decide calls Decide until nothing is missing, and fails if an object is read twice.
func (c cluster) decide(t testing.TB, o volumes.Observation) (decision volumes.Decision, reads int) {
	t.Helper()
	o.Facts = volumes.Facts{Claims: map[types.NamespacedName]volumes.Claim{}, Volumes: map[string]volumes.Volume{}}
	for range maxRounds + 1 {
		decision := volumes.Decide(o)
		if decision.Missing.None() {
			return decision, reads
		}
		for _, name := range decision.Missing.Volumes {
			if _, again := o.Volumes[name]; again {
				t.Fatalf("PersistentVolume %q is read again", name)
			}
			o.Volumes[name] = volumes.Volume{}
			if volume := c.volumes[name]; volume != nil {
				fact, err := volumes.VolumeOf(volume)
				if err != nil {
					t.Fatal(err)
				}
				o.Volumes[name] = fact
			}
			reads++
		}
		for _, name := range decision.Missing.Claims {
			if _, again := o.Claims[name]; again {
				t.Fatalf("claim %s is read again", name)
			}
			o.Claims[name] = volumes.Claim{Volume: c.claims[name]}
			reads++
		}
	}
	t.Fatalf("no decision after %d rounds", maxRounds)
	return volumes.Decision{}, reads
}

func skipped(claims ...string) volumes.Pod { return volumes.Pod{Skipped: true, Claims: keys(claims)} }

func drained(claims ...string) volumes.Pod { return volumes.Pod{Claims: keys(claims)} }

func keys(names []string) []types.NamespacedName {
	var all []types.NamespacedName
	for _, name := range names {
		all = append(all, key(name))
	}
	return all
}

// attached adds volumes that both places list as attached.
func attached(o volumes.Observation, all ...string) volumes.Observation {
	for _, name := range all {
		o.Attached = append(o.Attached, attachedName(name))
		o.Attachments = append(o.Attachments, volumes.Attachment{Name: "csi-" + name, PersistentVolume: name})
	}
	return o
}
