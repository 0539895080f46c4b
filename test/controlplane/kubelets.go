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

// KubeletLabel on a Node, with the value KubeletLabelValue, gives it a kubelet played by kwok.
// Taking the label away stops that kubelet: see StopKubelet.
//
// It has to be a label. kwok v0.8.0 can select nodes by annotation as well, but applies that
// selector only to the state after an update and drops the update if it doesn't match: it
// never learns that a node left the selection, and goes on renewing its lease and deleting
// its pods. A label selector is part of kwok's watch; there the API server turns such an
// update into a deletion.
const (
	KubeletLabel      = "kwok.x-k8s.io/node"
	KubeletLabelValue = "fake"
)

// Annotations of pods that say how their kubelet treats them, as durations such as "1.5s".
// Any update of the pod starts the current delay anew.
const (
	// PodReadyDelayAnnotation overrides Options.PodReadyDelay.
	PodReadyDelayAnnotation = "controlplane.test/pod-ready-delay"
	// PodDeletionDelayAnnotation overrides Options.PodDeletionDelay.
	PodDeletionDelayAnnotation = "controlplane.test/pod-deletion-delay"
	// PodCompleteAfterAnnotation makes a pod succeed that long after it became ready. Without
	// it, pods of Jobs succeed at once and others run forever.
	PodCompleteAfterAnnotation = "controlplane.test/pod-complete-after"
)

// NewNode returns a Node that gets a kubelet when it is created: it becomes Ready and has
// room for any number of pods.
func NewNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{KubeletLabel: KubeletLabelValue, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
	}}
}

// StopKubelet stops the kubelet of a node, as if its machine had lost power: the lease is not
// renewed, pods neither start nor end there. Until the node lifecycle controller notices, which
// takes it 50 seconds, the Node looks healthy. A pod whose deletion delay is already running
// is still removed at the end of it.
func (c *ControlPlane) StopKubelet(ctx context.Context, node string) error {
	return c.labelNode(ctx, node, "null")
}

// StartKubelet undoes StopKubelet.
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

// stages tell kwok what kubelets do: its configuration, and templates of a kwok Stage each.
//
//go:embed kwok/*.yaml
var stages embed.FS

// addStages renders the stages into one configuration file. The delimiters are not those of
// Go templates because kwok has templates of its own in there.
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
