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
	iscsi.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
		TargetPortal: "10.0.0.1:3260", IQN: "iqn.a", Lun: 2,
	}}
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
		{name: "M19: reads nothing while nothing is attached", seen: volumes.Observation{Pods: []volumes.Pod{skipped("a")}}, cluster: holding(csi("a", "a"))},
		{name: "M19: counts a CSI volume once that both places list", seen: attached(volumes.Observation{}, "a"), cluster: holding(csi("a", "data")),
			waiting: waiting{volumes.Claimed: {"default/data"}}, reads: 1},
		{name: "M19: waits for a VolumeAttachment that the Node's status no longer lists", cluster: holding(csi("a", "data")),
			seen:    volumes.Observation{Attachments: []volumes.Attachment{{Name: "x", PersistentVolume: "a"}}},
			waiting: waiting{volumes.Claimed: {"default/data"}}, reads: 1},
		{name: "M19: waits for a PersistentVolume without a claim", cluster: holding(csi("a", "")), seen: attached(volumes.Observation{}, "a"),
			waiting: waiting{volumes.Unclaimed: {"a"}}, reads: 1},
		{name: "M19, M22: waits for an in-tree volume that no skipped Pod uses", seen: volumes.Observation{Attached: []string{lun}}, cluster: holding(iscsi),
			waiting: waiting{volumes.Unmatched: {lun}}},
		{name: "M19, M20: ignores an in-tree volume of a skipped Pod, found by its claim and PersistentVolume", cluster: holding(iscsi),
			seen:    volumes.Observation{Attached: []string{lun}, Pods: []volumes.Pod{skipped("legacy")}},
			ignored: []string{"default/legacy"}, reads: 2},
		{name: "M20: ignores the volume of a skipped Pod without reading its claim", cluster: holding(csi("a", "data"), csi("b", "other")),
			seen:    attached(volumes.Observation{Pods: []volumes.Pod{skipped("data")}}, "a", "b"),
			waiting: waiting{volumes.Claimed: {"default/other"}}, ignored: []string{"default/data"}, reads: 2},
		{name: "M20: ignores the volume of a skipped Pod that has no VolumeAttachment", cluster: holding(csi("a", "data")),
			seen:    volumes.Observation{Attached: []string{attachedName("a")}, Pods: []volumes.Pod{skipped("data")}},
			ignored: []string{"default/data"}, reads: 2},
		{name: "M20: waits for a volume that a skipped Pod shares with a Pod that drains", cluster: holding(csi("a", "data")),
			seen:    attached(volumes.Observation{Pods: []volumes.Pod{skipped("data"), drained("data")}}, "a"),
			waiting: waiting{volumes.Claimed: {"default/data"}}, reads: 1},
		{name: "M20: waits for a volume that the claim of a skipped Pod names but that is not bound to it", cluster: stolen,
			seen:    volumes.Observation{Attached: []string{attachedName("a")}, Pods: []volumes.Pod{skipped("mine")}},
			waiting: waiting{volumes.Unmatched: {attachedName("a")}}, reads: 2},
		{name: "M20: ignores no volume for a claim that is unbound or missing", cluster: holding(),
			seen:    volumes.Observation{Attached: []string{attachedName("a")}, Pods: []volumes.Pod{skipped("pending")}},
			waiting: waiting{volumes.Unmatched: {attachedName("a")}}, reads: 1},
		{name: "M22: waits for a VolumeAttachment that names no PersistentVolume", cluster: holding(),
			seen:    volumes.Observation{Attachments: []volumes.Attachment{{Name: "inline"}}},
			waiting: waiting{volumes.Inline: {"inline"}}},
		{
			name: "M22: waits for a VolumeAttachment whose PersistentVolume does not exist", cluster: holding(),
			seen:    volumes.Observation{Attachments: []volumes.Attachment{{Name: "x", PersistentVolume: "gone"}}},
			waiting: waiting{volumes.VolumeNotFound: {"x"}}, reads: 1,
		},
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
	t.Run("M22: limits how many objects a workload cluster makes the manager read", func(t *testing.T) {
		o := volumes.Observation{Attached: []string{"unknown"}}
		for i := range 2000 {
			o.Attachments = append(o.Attachments, volumes.Attachment{Name: fmt.Sprint("a", i), PersistentVolume: fmt.Sprint("v", i)})
			o.Pods = append(o.Pods, skipped(fmt.Sprint("c", i)))
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
		"M19: CSI": {
			corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}},
			"kubernetes.io/csi/ebs.csi.aws.com^vol-1",
		},
		"M19: iSCSI": {
			corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "p", IQN: "iqn"}}, "kubernetes.io/iscsi/p:iqn:0",
		},
		"M19: FC": {
			corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"a", "b"}, Lun: ptr.To[int32](1)}}, "kubernetes.io/fc/[a b]:1",
		},
		"M19: FC with WWIDs":         {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{"w"}}}, "kubernetes.io/fc/[w]"},
		"M19: FC without names":      {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{}}, ""},
		"M19: NFS is not attachable": {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, ""},
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
	t.Run("M20: returns the claims of a Pod and of its generic ephemeral volumes", func(t *testing.T) {
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
	t.Run("M27: names the kind of the volumes, three of each, and the start of the wait", func(t *testing.T) {
		decision := volumes.Decision{
			Waiting: waiting{volumes.Claimed: {"default/a", "default/b", "default/c", "default/d", "default/e"}, volumes.Inline: {"csi-1"}},
			Ignored: []string{"default/x", "default/y"},
		}
		want := `Waiting for Node volumes to be detached (started at 2026-01-01T00:00:00Z)
* PersistentVolumeClaims: default/a, default/b, default/c and 2 more
* VolumeAttachments that name no PersistentVolume: csi-1
Ignored, because only skipped Pods use them: 2`
		if got := decision.Message(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		if decision.Count() != 6 {
			t.Errorf("counts %d", decision.Count())
		}
	})
}

func TestVolumeOf(t *testing.T) {
	inTree := func(id string) *corev1.PersistentVolume {
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		volume.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}
		return volume
	}
	for _, tc := range []struct {
		name   string
		volume *corev1.PersistentVolume
		want   []string
		err    string
	}{
		{name: "M19: a CSI volume has the name of its driver and handle", volume: csi("a", "data"), want: []string{attachedName("a")}},
		{name: "M19: a volume of an in-tree cloud plugin has the name of the CSI driver that attaches it", volume: inTree("aws://us-east-1a/vol-1"),
			want: []string{"kubernetes.io/csi/ebs.csi.aws.com^vol-1"}},
		{name: "M22: a volume that cannot be translated to CSI has no name", volume: inTree("aws://us-east-1a/vol/1"), err: "translating PersistentVolume a to CSI"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := volumes.VolumeOf(tc.volume)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("the error is %v, want %q", err, tc.err)
			}
			if !got.Found || !reflect.DeepEqual(got.UniqueNames, tc.want) {
				t.Errorf("got %+v, want the names %v", got, tc.want)
			}
		})
	}
}
