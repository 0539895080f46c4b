package volumes_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

type waiting = map[volumes.Kind][]string

func TestDecide(t *testing.T) {
	iscsi := csi("lun", "legacy")
	iscsi.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1:3260", IQN: "iqn.a", Lun: 2}}
	lun := "kubernetes.io/iscsi/10.0.0.1:3260:iqn.a:2"
	stolen := holding(csi("a", "theirs"))
	stolen.claims[key("mine")] = "a"

	for _, tc := range []struct {
		name    string
		cluster cluster
		seen    volumes.Observation
		waiting waiting
		ignored []string
		reads   int
	}{
		{name: "M19: nothing is attached, and nothing is read", seen: volumes.Observation{Pods: []volumes.Pod{stays("a")}}, cluster: holding(csi("a", "a"))},
		{name: "M19: a CSI volume is known by either place, and counts once", seen: attached(volumes.Observation{}, "a"), cluster: holding(csi("a", "data")),
			waiting: waiting{volumes.Claimed: {"default/data"}}, reads: 1},
		{name: "M19: the VolumeAttachment alone, while it detaches", cluster: holding(csi("a", "data")),
			seen:    volumes.Observation{Attachments: []volumes.Attachment{{Name: "x", PersistentVolume: "a"}}},
			waiting: waiting{volumes.Claimed: {"default/data"}}, reads: 1},
		{name: "M19: a PersistentVolume without a claim", cluster: holding(csi("a", "")), seen: attached(volumes.Observation{}, "a"),
			waiting: waiting{volumes.Unclaimed: {"a"}}, reads: 1},
		{name: "M19, M22: an in-tree name that no Pod that stays explains", seen: volumes.Observation{Attached: []string{lun}}, cluster: holding(iscsi),
			waiting: waiting{volumes.Unmatched: {lun}}},
		{name: "M19, M20: an in-tree volume of a Pod that stays, by claim and PersistentVolume", cluster: holding(iscsi),
			seen:    volumes.Observation{Attached: []string{lun}, Pods: []volumes.Pod{stays("legacy")}},
			ignored: []string{"default/legacy"}, reads: 2},
		{name: "M20: a volume of a Pod that stays isn't waited for, and its claim needn't be read", cluster: holding(csi("a", "data"), csi("b", "other")),
			seen:    attached(volumes.Observation{Pods: []volumes.Pod{stays("data")}}, "a", "b"),
			waiting: waiting{volumes.Claimed: {"default/other"}}, ignored: []string{"default/data"}, reads: 2},
		{name: "M20: nor one that is attached without a VolumeAttachment", cluster: holding(csi("a", "data")),
			seen:    volumes.Observation{Attached: []string{attachedName("a")}, Pods: []volumes.Pod{stays("data")}},
			ignored: []string{"default/data"}, reads: 2},
		{name: "M20: one that a Pod which must go uses as well is waited for", cluster: holding(csi("a", "data")),
			seen:    attached(volumes.Observation{Pods: []volumes.Pod{stays("data"), mustGo("data")}}, "a"),
			waiting: waiting{volumes.Claimed: {"default/data"}}, reads: 1},
		{name: "M20: a claim of a Pod that stays doesn't excuse a volume that isn't bound to it", cluster: stolen,
			seen:    volumes.Observation{Attached: []string{attachedName("a")}, Pods: []volumes.Pod{stays("mine")}},
			waiting: waiting{volumes.Unmatched: {attachedName("a")}}, reads: 2},
		{name: "M20: a claim that isn't bound, or isn't there, excuses nothing", cluster: holding(),
			seen:    volumes.Observation{Attached: []string{attachedName("a")}, Pods: []volumes.Pod{stays("pending")}},
			waiting: waiting{volumes.Unmatched: {attachedName("a")}}, reads: 1},
		{name: "M22: a VolumeAttachment that names no PersistentVolume", cluster: holding(),
			seen:    volumes.Observation{Attachments: []volumes.Attachment{{Name: "inline"}}},
			waiting: waiting{volumes.Inline: {"inline"}}},
		{name: "M22: a VolumeAttachment whose PersistentVolume is gone", cluster: holding(), seen: volumes.Observation{Attachments: []volumes.Attachment{{Name: "x", PersistentVolume: "gone"}}},
			waiting: waiting{volumes.VolumeGone: {"x"}}, reads: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, reads := tc.cluster.decide(t, tc.seen)
			if !reflect.DeepEqual(got.Waiting, tc.waiting) {
				t.Errorf("waits for %v, want %v", got.Waiting, tc.waiting)
			}
			if strings.Join(got.Ignored, " ") != strings.Join(tc.ignored, " ") {
				t.Errorf("ignores %v, want %v", got.Ignored, tc.ignored)
			}
			if reads != tc.reads {
				t.Errorf("%d reads, want %d", reads, tc.reads)
			}
			if got.Detached() != (len(tc.waiting) == 0) {
				t.Errorf("Detached is %t", got.Detached())
			}
		})
	}
}

func TestBounds(t *testing.T) {
	t.Run("M22: a workload cluster can't have us read without end", func(t *testing.T) {
		o := volumes.Observation{Attached: []string{"unknown"}}
		for i := range 2000 {
			o.Attachments = append(o.Attachments, volumes.Attachment{Name: fmt.Sprint("a", i), PersistentVolume: fmt.Sprint("v", i)})
			o.Pods = append(o.Pods, stays(fmt.Sprint("c", i)))
		}
		decision, reads := holding().decide(t, o)
		if reads > 2*512 || decision.Detached() || decision.Count() != 2001 {
			t.Errorf("%d reads, waits for %d", reads, decision.Count())
		}
		if message := decision.Message(time.Unix(0, 0)); len(message) > 2000 {
			t.Errorf("message %q", message)
		}
	})
}

func TestUniqueNames(t *testing.T) {
	for name, tc := range map[string]struct {
		source corev1.PersistentVolumeSource
		want   string
	}{
		"M19: CSI":                         {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}}, "kubernetes.io/csi/ebs.csi.aws.com^vol-1"},
		"M19: iSCSI":                       {corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "p", IQN: "iqn"}}, "kubernetes.io/iscsi/p:iqn:0"},
		"M19: FC":                          {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"a", "b"}, Lun: ptr.To[int32](1)}}, "kubernetes.io/fc/[a b]:1"},
		"M19: FC by its own names":         {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{"w"}}}, "kubernetes.io/fc/[w]"},
		"M19: FC that names nothing":       {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{}}, ""},
		"M19: NFS isn't attached anywhere": {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: tc.source}}
			if got := strings.Join(volumes.UniqueNames(volume), " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestClaimsOf(t *testing.T) {
	t.Run("M20: claims, and those of generic ephemeral volumes", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0"}}
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		}
		if got, want := volumes.ClaimsOf(pod), []types.NamespacedName{key("data-db-0"), key("db-0-scratch")}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestMessage(t *testing.T) {
	t.Run("M27: which volumes, of what kind, since when; three of a kind", func(t *testing.T) {
		decision := volumes.Decision{
			Waiting: waiting{volumes.Claimed: {"default/a", "default/b", "default/c", "default/d", "default/e"}, volumes.Inline: {"csi-1"}},
			Ignored: []string{"default/x", "default/y"},
		}
		want := `Waiting for Node volumes to be detached (started at 2026-01-01T00:00:00Z)
* PersistentVolumeClaims: default/a, default/b, default/c, ... (2 more)
* VolumeAttachments that name no PersistentVolume: csi-1
Not waited for, since only Pods that stay use them: 2`
		if got := decision.Message(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		if decision.Count() != 6 {
			t.Errorf("counts %d", decision.Count())
		}
	})
}
