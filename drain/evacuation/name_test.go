package evacuation_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestName(t *testing.T) {
	long := strings.Repeat("a", 149)
	for _, test := range []struct{ name, podName, want string }{
		{"E1: keeps a short name", "web-0", "web-0"},
		{"E1: keeps a name of 150 characters", long + "b", long + "b"},
		{"E1: cuts the 151st character", long + "bc", long + "b"},
		{"E1: trims a dash at the cut", long + "-x", long},
		{"E1: trims a dot at the cut", long + ".x", long},
		{"E1: trims several dashes at the cut", strings.Repeat("a", 140) + "----------" + "x", strings.Repeat("a", 140)},
		{"E1: keeps dashes and dots before the cut", "a-b.c-d", "a-b.c-d"},
		{"E1: cuts the longest name", strings.Repeat("a", 253), strings.Repeat("a", 150)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := evacuation.Name(uid, test.podName); got != uid+"-"+test.want {
				t.Errorf("got %s, want %s-%s", got, uid, test.want)
			}
			mustBeValid(t, evacuation.New(podNamed(test.podName), nil, 1800), nil)
		})
	}
}

func TestNew(t *testing.T) {
	pod := podNamed("web-0")
	pod.Labels = map[string]string{"app": "web"}
	resolved := evacuators("b.example.com:20000/careful", "deployment.apps.k8s.io:10000/controller")
	e := evacuation.New(pod, resolved, 900)

	t.Run("E1, E2: refers to the Pod by name and UID", func(t *testing.T) {
		if e.Namespace != "shop" || e.Spec.PodRef != (v1alpha1.LocalPodReference{Name: "web-0", UID: uid}) {
			t.Errorf("got %s", toJSON(t, e))
		}
	})
	t.Run("E3: sets the progress deadline", func(t *testing.T) {
		if e.Spec.ProgressDeadlineSeconds != 900 {
			t.Errorf("got %d", e.Spec.ProgressDeadlineSeconds)
		}
	})
	t.Run("E4: is created resolved, with copies of the evacuators", func(t *testing.T) {
		*resolved[0].Role = "changed"
		if got := show(e.Spec.Evacuators); got != "b.example.com:20000/careful deployment.apps.k8s.io:10000/controller" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("E5: has the Pod's labels and the Pod as owner, and does not block the deletion of the Pod", func(t *testing.T) {
		pod.Labels["app"] = "changed"
		if e.Labels["app"] != "web" || len(e.OwnerReferences) != 1 {
			t.Fatalf("got %s", toJSON(t, e))
		}
		owner := e.OwnerReferences[0]
		if owner.APIVersion != "v1" || owner.Kind != "Pod" || owner.Name != "web-0" || owner.UID != uid || owner.Controller != nil ||
			owner.BlockOwnerDeletion != nil {
			t.Errorf("got %+v", owner)
		}
	})
	t.Run("E6: has an empty status", func(t *testing.T) {
		if got := toMap(t, e)["status"]; got != nil {
			t.Errorf("got %v", got)
		}
	})
	t.Run("E7: has our instigator", func(t *testing.T) {
		if !evacuation.HasInstigator(e, ours) || len(e.Finalizers) != 1 {
			t.Errorf("got %v", e.Finalizers)
		}
	})
	mustBeValid(t, e, nil)
}

func TestAdopt(t *testing.T) {
	pod := podNamed("web-0")
	pod.Labels = map[string]string{"app": "web", "tier": "front"}
	e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "other", "team": "blue"}}}
	evacuation.Adopt(e, pod)
	evacuation.Adopt(e, pod)
	if e.Labels["app"] != "web" || e.Labels["tier"] != "front" || e.Labels["team"] != "blue" || len(e.Labels) != 3 {
		t.Errorf("E5: the Pod's labels must override, other labels must stay: got %v", e.Labels)
	}
	if len(e.OwnerReferences) != 1 {
		t.Errorf("E5: one ownerReference: got %v", e.OwnerReferences)
	}
}

func TestInstigators(t *testing.T) {
	finalizers := []string{foreign, ours, theirs}
	e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Finalizers: finalizers}}
	annotated := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Finalizers: finalizers}}
	evacuation.RequestByAnnotation(annotated)
	withdrawn := annotated.DeepCopy()
	evacuation.Withdraw(withdrawn)
	joined := annotated.DeepCopy()
	evacuation.Request(joined)
	after := func(change func(*v1alpha1.Evacuation), finalizers ...string) []string {
		e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Finalizers: finalizers}}
		change(e)
		return e.Finalizers
	}
	for _, test := range []struct {
		name string
		got  []string
		want string
	}{
		{"E43: an annotation is an instigator", evacuation.Instigators(annotated), theirs + " " + ours},
		{"E43: an annotation is no finalizer", annotated.Finalizers, foreign + " " + theirs},
		{"E43: an instigator by annotation withdraws", evacuation.Instigators(withdrawn), theirs},
		{"E43: an instigator counts once", evacuation.Instigators(joined), theirs + " " + ours},
		{"E7: instigators are finalizers with the prefix", evacuation.Instigators(e), ours + " " + theirs},
		{"E7: an instigator joins", after(evacuation.Request, foreign), foreign + " " + ours},
		{"E7: an instigator joins once", after(evacuation.Request, finalizers...), foreign + " " + ours + " " + theirs},
		{"E7: an instigator withdraws only itself", after(evacuation.Withdraw, finalizers...), foreign + " " + theirs},
		{"E7: withdrawing an instigator that has not joined changes nothing", after(evacuation.Withdraw, foreign), foreign},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(test.got, " "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	if strings.Join(finalizers, " ") != foreign+" "+ours+" "+theirs {
		t.Errorf("the argument was changed to %v", finalizers)
	}
	if evacuation.HasInstigator(e, foreign) || !evacuation.HasInstigator(e, theirs) {
		t.Error("HasInstigator is wrong")
	}
}

func FuzzName(f *testing.F) {
	for _, seed := range []string{"web-0", strings.Repeat("a", 149) + "-b", strings.Repeat("a.b-", 63), strings.Repeat("x", 253), "A", "", "é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, podName string) {
		name := evacuation.Name(uid, podName)
		if name != evacuation.Name(uid, podName) || !strings.HasPrefix(name, uid+"-") {
			t.Fatalf("E1: got %q", name)
		}
		if len(validation.IsDNS1123Subdomain(podName)) > 0 {
			return // no Pod has this name
		}
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Fatalf("E1: %q is not a name: %v", name, errs)
		}
		mustBeValid(t, evacuation.New(podNamed(podName), nil, 600), nil)
	})
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}}
}
