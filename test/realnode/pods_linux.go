package realnode

import (
	"os"
	"path/filepath"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// NewPod returns a Pod in the default namespace. After SIGTERM it takes as long as lasts to terminate, which is a duration, "forever", or
// spec.UntilReleased, see Release.
// The journal of its node has entries under its name.
func NewPod(name, lasts string, changes ...func(*corev1.Pod)) *corev1.Pod {
	args := []string{"app"}
	if lasts != "" {
		args = append(args, lasts)
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PodSpec{
			HostNetwork:                  true,
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			Containers: []corev1.Container{{
				Name: "app", Image: Image, ImagePullPolicy: corev1.PullNever,
				Command: []string{"/guest"}, Args: args,
				Env: []corev1.EnvVar{
					{Name: "JOURNAL", Value: "/journal/journal"},
					{Name: "POD_NAME", Value: name},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "journal", MountPath: "/journal"}},
			}},
			Volumes: []corev1.Volume{{Name: "journal", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Dir(spec.Journal)},
			}}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// Release lets a Pod end that lasts until it is released.
func (n *Node) Release(pod string) error {
	return errors.Wrap(os.WriteFile(n.Disk(spec.Released(spec.Journal, pod)), nil, 0o600), "releasing a Pod")
}

// Grace sets the grace period, in seconds.
func Grace(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &seconds }
}

// PreStop sets the preStop hook.
func PreStop(hook corev1.LifecycleHandler) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &hook} }
}

// Env sets an environment variable.
func Env(name, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// Sidecars adds sidecars, which start in this order. The journal of the node has entries under their names.
func Sidecars(names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, name := range names {
			sidecar := NewPod(name, "500ms").Spec.Containers[0]
			sidecar.Name, sidecar.RestartPolicy = name, ptr.To(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar)
		}
	}
}

// Class sets the priority class.
func Class(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.PriorityClassName = name }
}

// In sets the namespace.
func In(namespace string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Namespace = namespace }
}

// On selects a node with the node selector.
func On(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

// Manifest returns the path of a static Pod's manifest in the node.
func (n *Node) Manifest(name string) string { return filepath.Join(spec.StaticPodPath, name+".yaml") }

// WriteStaticPod writes the manifest of a static Pod.
func (n *Node) WriteStaticPod(pod *corev1.Pod) error {
	content, err := yaml.Marshal(pod)
	if err != nil {
		return errors.Wrap(err, "writing a static Pod")
	}
	root, err := n.root()
	if err != nil {
		return err
	}
	// The kubelet ignores names that begin with a dot, so it does not read an incomplete file.
	temporary := filepath.Join(root, spec.StaticPodPath, "."+pod.Name)
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return errors.Wrap(err, "writing a static Pod")
	}
	return errors.Wrap(os.Rename(temporary, filepath.Join(root, n.Manifest(pod.Name))), "writing a static Pod")
}
