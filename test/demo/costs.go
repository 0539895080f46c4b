package main

import (
	"context"
	"fmt"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// The applications of the sandbox to which a drain does harm. plan warns of each.
const (
	appLedger       = "ledger" // with local volumes
	appRender       = "render" // which fits on no other Node
	appConsole      = "console"
	hurtReplicas    = 2
	acceleratorNode = "example.com/accelerator" // a label that only one Node has
)

// hurt returns the applications that a drain of a Node does harm to: a StatefulSet whose volumes are local to the Node, a Deployment that
// needs a label that only this Node has, and a Pod without a controller. Each of the first two has two replicas, so that none is the last.
func hurt(node string) []client.Object {
	var objects []client.Object
	for _, app := range []string{appLedger, appRender, appConsole} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: app}})
	}
	ledger := podTemplate(appLedger, "")
	ledger.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	for i := range hurtReplicas {
		objects = append(objects, localVolume(fmt.Sprintf("data-%s-%d", appLedger, i), node))
	}
	render := podTemplate(appRender, "")
	render.Spec.NodeSelector = map[string]string{acceleratorNode: "true"}
	console := podTemplate(appConsole, "")
	console.Spec.NodeName = node
	return append(objects,
		&appsv1.StatefulSet{ObjectMeta: in(appLedger), Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](hurtReplicas), Selector: selector(appLedger), Template: ledger, PodManagementPolicy: appsv1.ParallelPodManagement,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(""),
				Resources: corev1.VolumeResourceRequirements{Requests: volumeSize()},
			}}},
		}},
		&appsv1.Deployment{ObjectMeta: in(appRender), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](hurtReplicas), Selector: selector(appRender), Template: render,
		}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: appConsole, Name: appConsole, Labels: console.Labels}, Spec: console.Spec},
	)
}

func volumeSize() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
}

// localVolume returns a volume on a Node, for a claim of the ledger.
func localVolume(claim, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}, Spec: corev1.PersistentVolumeSpec{
		Capacity: volumeSize(), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/lib/" + claim}},
		ClaimRef:               &corev1.ObjectReference{Namespace: appLedger, Name: claim},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}},
	}}
}

// hurtOn creates these applications on a Node.
func hurtOn(ctx context.Context, c client.Client, node string) error {
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, acceleratorNode)
	if err := c.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, label)); err != nil {
		return errors.Wrapf(err, "labeling Node %s", node)
	}
	return kwok.Create(ctx, c, hurt(node))
}

// addHurt creates these applications on the Node that is drained first.
func (p *play) addHurt(ctx context.Context) error {
	if err := hurtOn(ctx, p.workload.Client, p.node); err != nil {
		return err
	}
	err := p.await(ctx, "the applications that a drain hurts are ready", func(w *world) (bool, string) {
		ledger, render, console := w.ready(appLedger), w.ready(appRender), w.ready(appConsole)
		return ledger == hurtReplicas && render == hurtReplicas && console == 1, fmt.Sprintf("ledger %d, render %d, console %d", ledger, render, console)
	})
	if err != nil {
		return err
	}
	p.say("           ledger (local volumes), render (nodeSelector) and console (no controller) are ready on Node %s", p.node)
	return nil
}
