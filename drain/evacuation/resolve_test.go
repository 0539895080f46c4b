package evacuation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// annotated returns the annotations of a Pod for "class:value" words.
func annotated(words ...string) map[string]string {
	annotations := map[string]string{"kubernetes.io/config.source": "api"}
	for _, word := range words {
		class, value, _ := strings.Cut(word, ":")
		annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+class] = value
	}
	return annotations
}

func TestResolve(t *testing.T) {
	deployment := "deployment.apps.k8s.io:10000/controller"
	for _, test := range []struct {
		name     string
		annotate []string
		builtIn  []string
		policy   v1alpha1.EvacuatorsPolicy
		unserved []string
		want     string
		problems []string // what each message must contain
	}{
		{name: "E4: no evacuator without annotations"},
		{
			name:     "E4, E11: orders by descending priority, then by class",
			annotate: []string{"b.example.com:5", "a.example.com:5", "z.example.com:100000/knowledgeable", "fallback.example.com:0"},
			builtIn:  []string{deployment},
			want:     "z.example.com:100000/knowledgeable " + deployment + " a.example.com:5 b.example.com:5 fallback.example.com:0",
		},
		{
			name:     "E4: with BuiltIn, ignores annotated classes and reports no problem",
			annotate: []string{"a.example.com:20000", "b.example.com:x"},
			builtIn:  []string{deployment},
			policy:   v1alpha1.EvacuatorsBuiltIn,
			want:     deployment,
		},
		{
			name:     "E4: rejects a built-in class that does not serve the Pod",
			annotate: []string{"statefulset.apps.k8s.io:10000/controller", "operator.example.com:10000/controller"},
			unserved: []string{"statefulset.apps.k8s.io"},
			want:     "operator.example.com:10000/controller",
			problems: []string{"built-in evacuator statefulset.apps.k8s.io does not serve the Pod"},
		},
		{
			name:     "E4: accepts an annotated controller if no controller is built in",
			annotate: []string{"operator.example.com:10000/controller"},
			want:     "operator.example.com:10000/controller",
		},
		{
			name:     "E4: accepts an annotation that equals the built-in controller",
			annotate: []string{deployment},
			builtIn:  []string{deployment},
			want:     deployment,
		},
		{
			name:     "E4: rejects an annotation that changes a built-in class",
			annotate: []string{"deployment.apps.k8s.io:50"},
			builtIn:  []string{deployment},
			want:     deployment,
			problems: []string{"deployment.apps.k8s.io is built in as 10000/controller"},
		},
		{
			name:     "E4: rejects an annotated controller if a controller is built in",
			annotate: []string{"a.example.com:10000/controller"},
			builtIn:  []string{deployment},
			want:     deployment,
			problems: []string{"deployment.apps.k8s.io already has the role controller"},
		},
		{
			name:     "E4: accepts the first by class of two annotated controllers",
			annotate: []string{"b.example.com:10000/controller", "a.example.com:10000/controller"},
			want:     "a.example.com:10000/controller",
			problems: []string{"a.example.com already has the role controller"},
		},
		{
			name:     "E4: rejects a controller with another priority than 10000",
			annotate: []string{"a.example.com:9999/controller"},
			problems: []string{"priority 10000 requires the role controller"},
		},
		{
			name:     "E4: rejects priority 10000 without role controller",
			annotate: []string{"a.example.com:10000", "b.example.com:10000/other"},
			problems: []string{"priority 10000 requires the role controller", "priority 10000 requires the role controller"},
		},
		{
			name: "E4: skips each malformed annotation",
			annotate: []string{"a.example.com:", "b.example.com:-1", "c.example.com:100001", "d.example.com:1/", "e.example.com:+1",
				"f.example.com: 1", "G.example.com:1", ":1", "i.example.com:7"},
			want: "i.example.com:7",
			problems: []string{`"" is not a DNS subdomain`, `"G.example.com" is not a DNS subdomain`, `"" is not PRIORITY`, `"-1" is not`,
				`"100001" is not`, "role is empty", `"+1" is not`, `" 1" is not`},
		},
		{
			name:     "E4: a class has at most 54 characters",
			annotate: []string{strings.Repeat("a", 54) + ":1", strings.Repeat("b", 55) + ":1"},
			want:     strings.Repeat("a", 54) + ":1",
			problems: []string{"at most 54 characters"},
		},
		{
			name: "E4: a role has at most 63 printable characters",
			annotate: []string{
				"a.example.com:1/" + strings.Repeat("ä", 63), "b.example.com:1/" + strings.Repeat("r", 64), "c.example.com:1/x\ny", "d.example.com:1/x/y",
			},
			want:     "a.example.com:1/" + strings.Repeat("ä", 63) + " d.example.com:1/x/y",
			problems: []string{"at most 63", `"x\ny" must have`},
		},
		{
			name:     "E4: bounds what a message quotes",
			annotate: []string{"a.example.com:" + strings.Repeat("1", 100000)},
			problems: []string{`"` + strings.Repeat("1", 39) + `…" is not`},
		},
		{
			name:     "E4: keeps one built-in evacuator of a class, and one controller",
			builtIn:  []string{deployment, deployment, "statefulset.apps.k8s.io:10000/controller", "odd.apps.k8s.io:100001"},
			want:     deployment,
			problems: []string{"deployment.apps.k8s.io already has the role controller", "priority 100001 is not from 0"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, problems := evacuation.Resolve(evacuation.Subject{
				Annotations: annotated(test.annotate...), BuiltIn: evacuators(test.builtIn...), Policy: test.policy, Unserved: test.unserved,
			})
			if show(got) != test.want {
				t.Errorf("got %q, want %q", show(got), test.want)
			}
			if len(problems) != len(test.problems) {
				t.Fatalf("got problems %v, want %v", problems, test.problems)
			}
			for i, want := range test.problems {
				if !strings.Contains(problems[i].Message, want) {
					t.Errorf("got problem %q, want %q", problems[i].Message, want)
				}
			}
			mustBeValid(t, evacuation.New(podNamed("web-0"), got, 1800), nil)
		})
	}
}

func TestResolveNamesTheAnnotation(t *testing.T) { // E4
	_, problems := evacuation.Resolve(evacuation.Subject{Annotations: annotated("a.example.com:x")})
	if len(problems) != 1 || problems[0].Annotation != "evacuation.coordination.k8s.io/priority_a.example.com" {
		t.Errorf("got %v", problems)
	}
}

func TestResolveBoundsEvacuatorsAndProblems(t *testing.T) { // E4
	var words []string
	for i := range 150 {
		words = append(words, fmt.Sprintf("c%03d.example.com:%d", i, 50000-i))
	}
	got, problems := evacuation.Resolve(evacuation.Subject{Annotations: annotated(words...), BuiltIn: evacuators("deployment.apps.k8s.io:10000/controller")})
	if len(got) != 100 {
		t.Errorf("got %d evacuators, want 100", len(got))
	}
	if got[0].EvacuatorClass != "c000.example.com" || got[98].EvacuatorClass != "c098.example.com" || got[99].EvacuatorClass != "deployment.apps.k8s.io" {
		t.Errorf("the evacuators with the highest priority and the controller must stay: got %s", show(got))
	}
	if len(problems) != 10 || !strings.Contains(problems[9].Message, "and 41 more") {
		t.Errorf("got %d problems, the last one %v", len(problems), problems[len(problems)-1])
	}
	mustBeValid(t, evacuation.New(podNamed("web-0"), got, 1800), nil)
}

func FuzzResolve(f *testing.F) {
	f.Add("a.example.com", "5", "b.example.com", "10000/controller", true, false)
	f.Add("a.example.com", "10000/controller", "b.example.com", "10000/controller", false, false)
	f.Add("a.example.com", "10000", "deployment.apps.k8s.io", "1/controller", true, false)
	f.Add("a", "1/\x00", "a", "4294967297", true, true)
	f.Add("-a", "0/"+strings.Repeat("ö", 64), strings.Repeat("a", 55), "1e3", false, false)
	f.Add("", "", "é", "١", true, false)
	f.Fuzz(func(t *testing.T, class1, value1, class2, value2 string, builtIn, only bool) {
		s := evacuation.Subject{Annotations: annotated(class1+":"+value1, class2+":"+value2)}
		if builtIn {
			s.BuiltIn = evacuators("deployment.apps.k8s.io:10000/controller")
		}
		if only {
			s.Policy = v1alpha1.EvacuatorsBuiltIn
		}
		got, problems := evacuation.Resolve(s)
		again, _ := evacuation.Resolve(s)
		if show(got) != show(again) {
			t.Fatalf("not deterministic: %s, then %s", show(got), show(again))
		}
		if builtIn && !slices.ContainsFunc(got, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == "deployment.apps.k8s.io" }) {
			t.Fatalf("the built-in evacuator is missing: %s", show(got))
		}
		if only && len(got) != len(s.BuiltIn) {
			t.Fatalf("annotations are not ignored: %s", show(got))
		}
		for _, problem := range problems {
			if len(problem.Message) > 1024 { // an event's limit
				t.Fatalf("a message of %d bytes", len(problem.Message))
			}
		}
		mustBeValid(t, evacuation.New(podNamed("web-0"), got, 1800), nil)
	})
}
