package workload_test

import (
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// expression is a CEL expression of a policy, in the form that the compiler accepts.
type expression struct{ name, text string }

func (e expression) GetExpression() string { return e.text }
func (e expression) GetName() string       { return e.name }
func (e expression) ReturnTypes() []*celgo.Type {
	return []*celgo.Type{celgo.AnyType}
}

// An API server compiles a new policy with the CEL environment of the previous minor version: v1.31, the oldest one that Cluster API
// supports, with that of v1.30.
func TestPoliciesCompileOnTheOldestAPIServer(t *testing.T) { // R9
	for _, policy := range policies(t) {
		t.Run(policy.Name, func(t *testing.T) {
			g := NewWithT(t)
			compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 30)))
			g.Expect(err).NotTo(HaveOccurred())
			compiles := func(text string, authorizer bool) {
				result := compiler.CompileCELExpression(expression{text: text}, cel.OptionalVariableDeclarations{HasAuthorizer: authorizer}, environment.NewExpressions)
				g.Expect(result.Error).NotTo(HaveOccurred(), text)
			}
			for _, condition := range policy.Spec.MatchConditions {
				compiles(condition.Expression, true)
			}
			for _, variable := range policy.Spec.Variables {
				result := compiler.CompileAndStoreVariable(expression{variable.Name, variable.Expression}, cel.OptionalVariableDeclarations{HasAuthorizer: true},
					environment.NewExpressions)
				g.Expect(result.Error).NotTo(HaveOccurred(), variable.Expression)
			}
			for _, validation := range policy.Spec.Validations {
				compiles(validation.Expression, true)
				if validation.MessageExpression != "" {
					compiles(validation.MessageExpression, false)
				}
			}
		})
	}
}

// The annotations of a NodeMaintenance by which a manager decides what it does with a Node.
func TestAnnotationsOfManagers(t *testing.T) {
	for name, annotation := range map[string]string{
		"M36: the Machine of a NodeMaintenance": v1alpha1.OwnerMachineAnnotation,
		"M37: its purpose":                      v1alpha1.RequestedForAnnotation,
		"M97: the start of its drain":           v1alpha1.DrainStartedAnnotation,
		"M135: the end of the wait for volumes": v1alpha1.VolumesDetachedAnnotation,
		"M132: that a Node is not cordoned, because its Machine waits for another drain": v1alpha1.WaitingNodeAnnotation,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			before := &v1alpha1.NodeMaintenance{}
			after := before.DeepCopy()
			after.Annotations = map[string]string{annotation: "Schedulable"}
			g.Expect(mustBeManager(t, before, after)).To(BeTrue())
			g.Expect(mustBeManager(t, after, after)).To(BeFalse(), "an update of something else")
		})
	}
}

// mustBeManager reports whether the policy for annotations of managers applies to an update.
func mustBeManager(t *testing.T, before, after *v1alpha1.NodeMaintenance) bool {
	t.Helper()
	g := NewWithT(t)
	all := policies(t)
	i := slices.IndexFunc(all, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
		return strings.HasPrefix(p.Name, "owners.")
	})
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 30)))
	isOwner := []cel.ExpressionAccessor{expression{text: all[i].Spec.MatchConditions[0].Expression}}
	condition := compiler.CompileCondition(isOwner, cel.OptionalVariableDeclarations{}, environment.NewExpressions)
	attributes := admission.NewAttributesRecord(after, before, schema.GroupVersionKind{}, "", "m", schema.GroupVersionResource{}, "", admission.Update, nil, false,
		nil)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedObject: after, VersionedOldObject: before}
	request := &admissionv1.AdmissionRequest{Operation: admissionv1.Update}
	results, _, err := condition.ForInput(t.Context(), versioned, request, cel.OptionalVariableBindings{}, nil, math.MaxInt64)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(results[0].Error).NotTo(HaveOccurred())
	applies, isBool := results[0].EvalResult.Value().(bool)
	g.Expect(isBool).To(BeTrue())
	return applies
}

func policies(t *testing.T) []*admissionregistrationv1.ValidatingAdmissionPolicy {
	t.Helper()
	g := NewWithT(t)
	objects, err := workload.Bundle()
	g.Expect(err).NotTo(HaveOccurred())
	agent, err := workload.NodeAgent("example.com/agent")
	g.Expect(err).NotTo(HaveOccurred())
	objects = append(objects, agent...)
	var policies []*admissionregistrationv1.ValidatingAdmissionPolicy
	for _, object := range objects {
		if object.GetKind() == "ValidatingAdmissionPolicy" {
			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, policy, true)).To(Succeed())
			policies = append(policies, policy)
		}
	}
	g.Expect(policies).To(HaveLen(7))
	return policies
}

func TestNodeAgentPrivileges(t *testing.T) {
	t.Run("S13: runs without privileged mode, without capabilities and with a read-only root file system", func(t *testing.T) {
		g := NewWithT(t)
		objects, err := workload.NodeAgent("example.com/agent")
		g.Expect(err).NotTo(HaveOccurred())
		agents := &appsv1.DaemonSet{}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[len(objects)-1].Object, agents, true)).To(Succeed())
		g.Expect(agents.Spec.Template.Spec.Containers).To(HaveLen(2))
		for _, container := range agents.Spec.Template.Spec.Containers {
			g.Expect(container.SecurityContext).To(Equal(&corev1.SecurityContext{
				RunAsUser: ptr.To[int64](0), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}), container.Name)
		}
	})
}

func TestNodeAgentConfinement(t *testing.T) {
	t.Run("S81, S91: runs with the seccomp profile of the runtime, and without those of AppArmor and SELinux, which refuse it its sockets", func(t *testing.T) {
		g := NewWithT(t)
		objects, err := workload.NodeAgent("example.com/agent")
		g.Expect(err).NotTo(HaveOccurred())
		agents := &appsv1.DaemonSet{}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[len(objects)-1].Object, agents, true)).To(Succeed())
		g.Expect(agents.Spec.Template.Spec.SecurityContext).To(Equal(&corev1.PodSecurityContext{
			AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
			SELinuxOptions:  &corev1.SELinuxOptions{Type: "spc_t"},
			SeccompProfile:  &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}))
	})
}

func TestNodeAgentNamespace(t *testing.T) {
	t.Run("S73: the node agent has a separate namespace, which the drain rules know", func(t *testing.T) {
		g := NewWithT(t)
		manifest, err := os.ReadFile("../manager/namespace.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		managers := &corev1.Namespace{}
		g.Expect(yaml.UnmarshalStrict(manifest, managers)).To(Succeed())
		objects, err := workload.NodeAgent("example.com/agent")
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			if object.GetKind() == "Namespace" {
				g.Expect(object.GetName()).NotTo(Equal(managers.Name))
			}
			g.Expect(object.GetNamespace()).NotTo(Equal(managers.Name), "%s %s", object.GetKind(), object.GetName())
		}
		agents := &appsv1.DaemonSet{}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(objects[len(objects)-1].Object, agents)).To(Succeed())
		pod := &corev1.Pod{ObjectMeta: agents.Spec.Template.ObjectMeta}
		pod.Namespace = agents.Namespace
		g.Expect(rules.IsNodeAgent(pod)).To(BeTrue())
	})
}

// digests are those of the objects of the last bundle versions. A change of the objects needs a new version and its digest here.
var digests = map[int]string{
	13: "3a0372e0cb4828e364f07344d58c765fca922a7cee9f157cc5bd350e9583963f",
}

func TestVersionChangesWithObjects(t *testing.T) {
	t.Run("M174: what is installed has another version when it changes, also in a comment", func(t *testing.T) {
		g := NewWithT(t)
		objects, err := workload.Bundle()
		g.Expect(err).NotTo(HaveOccurred())
		agent, err := workload.NodeAgent("example.com/agent")
		g.Expect(err).NotTo(HaveOccurred())
		digest := sha256.New()
		for _, object := range append(objects, agent...) {
			content, err := object.MarshalJSON()
			g.Expect(err).NotTo(HaveOccurred())
			digest.Write(content)
		}
		actual := fmt.Sprintf("%x", digest.Sum(nil))
		g.Expect(actual).To(Equal(digests[workload.BundleVersion]),
			"What is installed in workload clusters has changed, maybe only in a comment in api/, which is also in the CRD. "+
				"Increase BundleVersion in config/workload/bundle.go, and add the digest to digests in bundle_test.go: %s", actual)
	})
}

func TestObjectsAreTheCallersOwn(t *testing.T) {
	g := NewWithT(t)
	for name, objects := range map[string]func() ([]*unstructured.Unstructured, error){
		"the bundle":     workload.Bundle,
		"the node agent": func() ([]*unstructured.Unstructured, error) { return workload.NodeAgent("example.com/agent") },
	} {
		mine, err := objects()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mine).NotTo(BeEmpty(), name)
		for _, object := range mine {
			object.SetName("mine")
		}
		yours, err := objects()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yours).To(HaveLen(len(mine)), name)
		for _, object := range yours {
			g.Expect(object.GetName()).NotTo(Equal("mine"), name)
		}
	}
}
