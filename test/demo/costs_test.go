package main

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// surroundings have all Namespaces, with the label that the API server gives them.
type surroundings struct{}

func (surroundings) NamespaceLabels(namespace string) (map[string]string, bool) {
	return map[string]string{corev1.LabelMetadataName: namespace}, true
}

func (surroundings) DaemonSetExists(_, _ string, _ types.UID) (exists, known bool) { return true, true }

// running returns the Pods of the applications, as their controllers create them, all of them ready on a Node.
func running(objects []client.Object, node string) []corev1.Pod {
	var pods []corev1.Pod
	add := func(template corev1.PodTemplateSpec, replicas int32, owner client.Object, kind string) {
		for i := range replicas {
			p := pod(template.Labels[appLabel], fmt.Sprintf("%s-%d", owner.GetName(), i))
			p.Spec = *template.Spec.DeepCopy()
			p.Spec.NodeName = node
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner.GetName(), Controller: ptr.To(true)}}
			pods = append(pods, *p)
		}
	}
	for _, object := range objects {
		switch o := object.(type) {
		case *appsv1.Deployment:
			add(o.Spec.Template, *o.Spec.Replicas, o, "ReplicaSet")
		case *appsv1.StatefulSet:
			first := len(pods)
			add(o.Spec.Template, *o.Spec.Replicas, o, "StatefulSet")
			for i := range pods[first:] {
				p := &pods[first+i]
				for _, claim := range o.Spec.VolumeClaimTemplates {
					source := corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + p.Name}
					p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &source}})
				}
			}
		case *corev1.Pod:
			p := pod(o.Labels[appLabel], o.Name)
			p.Spec = *o.Spec.DeepCopy()
			pods = append(pods, *p)
		}
	}
	return pods
}

// volumes returns the PersistentVolumes by the claim that they are for.
func volumes(objects []client.Object) map[types.NamespacedName]*corev1.PersistentVolume {
	found := map[types.NamespacedName]*corev1.PersistentVolume{}
	for _, object := range objects {
		if volume, ok := object.(*corev1.PersistentVolume); ok {
			found[types.NamespacedName{Namespace: volume.Spec.ClaimRef.Namespace, Name: volume.Spec.ClaimRef.Name}] = volume
		}
	}
	return found
}

func TestOfTheSandboxPlanWarnsOnlyOfApplicationsThatADrainHurts(t *testing.T) {
	g := NewWithT(t)
	nodes := make([]*corev1.Node, 0, workers)
	for i := range workers {
		name := fmt.Sprint("worker-", i)
		nodes = append(nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
			Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}},
		})
	}
	drained := nodes[0]
	drained.Labels[acceleratorNode] = "true"
	objects := append(applications(drained.Name), hurt(drained.Name)...)
	compiled := rules.Input{Machine: rules.MachineFacts{Namespace: namespace}}
	for _, object := range drainIntent() {
		if rule, ok := object.(*clusterv1.MachineDrainRule); ok {
			compiled.MachineDrainRules = append(compiled.MachineDrainRules, *rule)
		}
	}
	o := forecast.Observation{
		Maintenance: &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes(drained.Name), DrainPlanDefaults: v1alpha1.DrainPlanDefaultsNone,
			DrainRules: rules.Compile(compiled).Rules,
		}},
		Node: drained, Surroundings: surroundings{}, Now: epoch, Pods: running(objects, drained.Name),
	}
	cluster := forecast.NewCluster(nodes, sets.New(drained.Name))
	for i := range o.Pods {
		cluster.Add(&o.Pods[i])
	}
	predicted := forecast.Of(o)
	for _, claim := range predicted.Claims() {
		cluster.Volumes[claim] = volumes(objects)[claim]
	}

	warnings := map[string][]string{}
	for _, w := range predicted.Warnings(cluster) {
		warnings[w.Message] = append(warnings[w.Message], w.Pods...)
	}
	const noPlace = "may find no place on 5 other Nodes: "
	g.Expect(warnings).To(Equal(map[string][]string{
		noPlace + "node affinity of PersistentVolume data-ledger-0 (5)": {"ledger/ledger-0"},
		noPlace + "node affinity of PersistentVolume data-ledger-1 (5)": {"ledger/ledger-1"},
		noPlace + "nodeSelector or node affinity (5)":                   {"render/render-0", "render/render-1"},
		"not recreated: there is no controller":                         {"console/console"},
	}))
}
