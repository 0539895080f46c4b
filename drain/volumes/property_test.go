package volumes_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// drawScene draws a few volumes, bound or not, that one place, the other or both list as attached, and Pods that use their claims.
func drawScene(t *rapid.T) (cluster, volumes.Observation) {
	var all []*corev1.PersistentVolume
	o := volumes.Observation{}
	for i := range rapid.IntRange(0, 6).Draw(t, "volumes") {
		name, claim := fmt.Sprintf("v%d", i), ""
		if rapid.IntRange(0, 3).Draw(t, "claimed") > 0 {
			claim = fmt.Sprintf("c%d", i)
		}
		if rapid.Bool().Draw(t, "in status") {
			o.Attached = append(o.Attached, attachedName(name))
		}
		if rapid.Bool().Draw(t, "VolumeAttachment") {
			o.Attachments = append(o.Attachments, volumes.Attachment{Name: "csi-" + name, PersistentVolume: name})
		}
		if rapid.IntRange(0, 5).Draw(t, "there") > 0 {
			all = append(all, csi(name, claim))
		}
	}
	pod := rapid.Custom(func(t *rapid.T) volumes.Pod {
		claims := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"c0", "c1", "c2", "c3", "c4", "c5", "unbound"}), 0, 3, rapid.ID[string]).Draw(t, "claims")
		return volumes.Pod{Skipped: rapid.Bool().Draw(t, "stays"), Claims: keys(claims)}
	})
	o.Pods = rapid.SliceOfN(pod, 0, 5).Draw(t, "pods")
	return holding(all...), o
}

// TestDecisions compares Decide with its definition: a volume must detach unless its claim is used by a skipped Pod and by no other Pod.
func TestDecisions(t *testing.T) { // M19, M20, M22
	rapid.Check(t, func(rt *rapid.T) {
		c, o := drawScene(rt)
		used, needed := sets.New[types.NamespacedName](), sets.New[types.NamespacedName]()
		for _, pod := range o.Pods {
			if pod.Skipped {
				used.Insert(pod.Claims...)
			} else {
				needed.Insert(pod.Claims...)
			}
		}
		inPlaces := map[string]int{}
		for _, a := range o.Attachments {
			inPlaces[a.PersistentVolume] |= 1
		}
		for _, name := range o.Attached {
			inPlaces[strings.TrimPrefix(name, attachedName(""))] |= 2
		}
		waits, ignores := 0, 0
		for name, places := range inPlaces {
			volume := c.volumes[name]
			switch {
			case volume == nil && places == 3: // nothing ties the two together
				waits += 2
			case volume != nil && volume.Spec.ClaimRef != nil && used.Has(key(volume.Spec.ClaimRef.Name)) && !needed.Has(key(volume.Spec.ClaimRef.Name)):
				ignores++
			default:
				waits++
			}
		}
		got, _ := c.decide(t, o)
		if got.Count() != waits || len(got.Ignored) != ignores {
			rt.Fatalf("waits for %v and ignores %v, want %d and %d", got.Waiting, got.Ignored, waits, ignores)
		}
		for _, ignored := range got.Ignored {
			if claim := key(strings.TrimPrefix(ignored, "default/")); !used.Has(claim) || needed.Has(claim) {
				rt.Fatalf("ignores %s", ignored)
			}
		}
		slices.Reverse(o.Attached)
		slices.Reverse(o.Attachments)
		slices.Reverse(o.Pods)
		if again, _ := c.decide(t, o); !reflect.DeepEqual(again, got) {
			rt.Fatalf("the order makes a difference: %v, %v", got, again)
		}
	})
}

// TestDrainedPods checks that a Machine never waits for more volumes after a Pod has drained.
func TestDrainedPods(t *testing.T) { // M20
	rapid.Check(t, func(rt *rapid.T) {
		c, o := drawScene(rt)
		before, _ := c.decide(t, o)
		o.Pods = slices.DeleteFunc(o.Pods, func(pod volumes.Pod) bool { return !pod.Skipped })
		after, _ := c.decide(t, o)
		if after.Count() > before.Count() {
			rt.Fatalf("waits for %v, before for %v", after.Waiting, before.Waiting)
		}
	})
}

// FuzzNames gives Decide arbitrary names of CSI drivers and volumes. Decide ignores a name only if it equals the name of the volume of
// a skipped Pod.
func FuzzNames(f *testing.F) {
	for _, seed := range []struct{ attached, driver, handle string }{
		{"kubernetes.io/csi/ebs.csi.aws.com^vol-1", "ebs.csi.aws.com", "vol-1"},
		{"kubernetes.io/csi/d^a^b", "d", "a^b"},
		{"kubernetes.io/csi/d^", "d", ""},
		{"kubernetes.io/aws-ebs/aws://eu-west-1a/vol-1", "ebs.csi.aws.com", "vol-1"},
		{"", "", ""},
		{"kubernetes.io/csi/d^\x00\n\xff", "d", "\x00\n\xff"},
	} {
		f.Add(seed.attached, seed.driver, seed.handle, true)
	}
	f.Fuzz(func(t *testing.T, attached, driver, handle string, withAttachment bool) {
		volume := csi("v", "data")
		volume.Spec.CSI.Driver, volume.Spec.CSI.VolumeHandle = driver, handle
		o := volumes.Observation{Attached: []string{attached}, Pods: []volumes.Pod{skipped("data")}}
		if withAttachment {
			o.Attachments = []volumes.Attachment{{Name: "x", PersistentVolume: "v"}}
		}
		decision, _ := holding(volume).decide(t, o)
		same := attached == "kubernetes.io/csi/"+driver+"^"+handle
		if decision.Detached() != same {
			t.Fatalf("%q, of the volume %q of driver %q: waits for %v", attached, handle, driver, decision.Waiting)
		}
		message := decision.Message(time.Unix(0, 0))
		if !utf8.ValidString(message) || len(message) > 2000 || strings.Count(message, "\n") > 2 {
			t.Fatalf("message %q", message)
		}
		if _, err := json.Marshal(message); err != nil {
			t.Fatal(err)
		}
	})
}
