package evacuation_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestControllerOf(t *testing.T) {
	owned := func(apiVersion, kind, name string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "pod", GenerateName: name + "-", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "5d4f"},
		}}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: ptr.To(true)}}
		return pod
	}
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{name: "R44: the Deployment of a ReplicaSet", pod: owned("apps/v1", "ReplicaSet", "web-5d4f"), want: "Deployment ns/web"},
		{name: "R44: names a ReplicaSet without a Deployment", pod: owned("apps/v1", "ReplicaSet", "web"), want: "ReplicaSet ns/web"},
		{name: "R44: a Job", pod: owned("batch/v1", "Job", "copy"), want: "Job ns/copy"},
		{name: "R44: a Pod that returns by its name", pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "script"}}, want: "Pod ns/script"},
		{
			name: "R44: a Pod that returns by its generateName",
			pod:  &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "script-x", GenerateName: "script-"}}, want: "Pod ns/script-",
		},
		{
			name: "R44: names of any length", pod: owned("example.com/v1", strings.Repeat("K", 1000), strings.Repeat("ä", 1000)),
			want: strings.Repeat("K", 62) + "… ns/" + strings.Repeat("ä", 252) + "…",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(evacuation.ControllerOf(tc.pod)).To(Equal(tc.want))
		})
	}
}

func TestAdvanceDeferral(t *testing.T) {
	last := noon.Add(time.Hour)
	for _, tc := range []struct {
		name    string
		until   time.Time
		created time.Time
		want    time.Time
	}{
		{name: "R44: a backoff that ends before the final eviction attempt", until: noon, created: noon, want: noon},
		{name: "R44: a backoff that ends after it", until: last.Add(time.Minute), created: noon, want: last},
		{name: "R44: a Pod that was created shortly before it", until: last.Add(time.Minute), created: last.Add(-time.Second), want: last.Add(time.Minute)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(evacuation.AdvanceDeferral(tc.until, metav1.NewTime(tc.created), last)).To(Equal(tc.want))
		})
	}
}
