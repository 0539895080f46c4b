package controlplane

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"text/template"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// KubeletLabel on a Node, with the value KubeletLabelValue, gives it a kubelet that kwok simulates.
// Removing the label stops that kubelet: see StopKubelet.
//
// It has to be a label. kwok v0.8.0 can select Nodes by annotation as well, but applies that
// selector only to the state after an update and drops the update if it does not match. It does
// not observe that a Node has left the selection, and continues to renew its lease and delete its
// Pods. A label selector is part of kwok's watch, where the API server converts such an update
// into a deletion.
const (
	KubeletLabel      = "kwok.x-k8s.io/node"
	KubeletLabelValue = "fake"
)

// Annotations of Pods that control their kubelet, with durations such as "1.5s". Any update of the
// Pod restarts the current delay.
const (
	// PodReadyDelayAnnotation overrides Options.PodReadyDelay.
	PodReadyDelayAnnotation = "controlplane.test/pod-ready-delay"
	// PodDeletionDelayAnnotation overrides Options.PodDeletionDelay.
	PodDeletionDelayAnnotation = "controlplane.test/pod-deletion-delay"
	// PodCompleteAfterAnnotation makes a Pod succeed that long after it became ready. Without it,
	// Pods of Jobs succeed immediately and others run indefinitely.
	PodCompleteAfterAnnotation = "controlplane.test/pod-complete-after"
)

// NewNode returns a Node that gets a kubelet when it is created: it becomes Ready and has
// capacity for any number of Pods.
func NewNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{KubeletLabel: KubeletLabelValue, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
	}}
}

// NewIdleNode returns a Node without a kubelet, on which no Pods run. It costs nothing but its object.
func NewIdleNode(name string) *corev1.Node {
	node := NewNode(name)
	delete(node.Labels, KubeletLabel)
	return node
}

// StopKubelet stops the kubelet of a Node, as if its machine had lost power: the lease is not
// renewed, and Pods neither start nor terminate there. The Node looks healthy until the node
// lifecycle controller notices, which takes 50 seconds. A Pod whose deletion delay has started is
// still removed at its end.
func (c *ControlPlane) StopKubelet(ctx context.Context, node string) error {
	return c.labelNode(ctx, node, "null")
}

// StartKubelet starts the kubelet again after StopKubelet.
func (c *ControlPlane) StartKubelet(ctx context.Context, node string) error {
	return c.labelNode(ctx, node, `"`+KubeletLabelValue+`"`)
}

func (c *ControlPlane) labelNode(ctx context.Context, node, value string) error {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return errors.Wrap(err, "creating a client")
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, KubeletLabel, value)
	_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return errors.Wrapf(err, "labeling node %s", node)
}

// stages define the behavior of kwok's kubelets: its configuration, and one template for each kwok Stage.
//
//go:embed kwok/*.yaml
var stages embed.FS

// addStages renders the stages into one configuration file. The delimiters differ from the default
// of Go templates because the stages contain kwok's own templates.
func (c *ControlPlane) addStages(files map[string][]byte) error {
	version, err := KubernetesVersion()
	if err != nil {
		return err
	}
	templates, err := template.New("stages").Delims("<<", ">>").Option("missingkey=error").ParseFS(stages, "kwok/*.yaml")
	if err != nil {
		return errors.Wrap(err, "parsing the kwok stages")
	}
	names, err := fs.Glob(stages, "kwok/*.yaml")
	if err != nil {
		return errors.Wrap(err, "listing the kwok stages")
	}
	var config bytes.Buffer
	for _, name := range names {
		config.WriteString("---\n")
		err := templates.ExecuteTemplate(&config, name[len("kwok/"):], map[string]any{
			"KubernetesVersion":       version,
			"ReadyMilliseconds":       c.options.PodReadyDelay.Milliseconds(),
			"DeletionMilliseconds":    c.options.PodDeletionDelay.Milliseconds(),
			"ReadyAnnotation":         PodReadyDelayAnnotation,
			"DeletionAnnotation":      PodDeletionDelayAnnotation,
			"CompleteAfterAnnotation": PodCompleteAfterAnnotation,
		})
		if err != nil {
			return errors.Wrapf(err, "rendering the kwok stage %s", name)
		}
	}
	files[c.path("stages.yaml")] = config.Bytes()
	return nil
}

func (c *ControlPlane) kwokArgs() []string {
	return []string{
		"--kubeconfig=kwok.kubeconfig", "--config=stages.yaml",
		"--manage-nodes-with-label-selector=" + KubeletLabel + "=" + KubeletLabelValue,
		"--node-lease-duration-seconds=40",
		"--cidr=10.244.0.0/16", "--node-ip=127.0.0.1",
		"--server-address=" + loopback(c.ports.of(Kwok)),
		"--v=WARN",
	}
}
