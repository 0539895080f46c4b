package kwok

import (
	"maps"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Change modifies the objects of a Cluster. It ignores other kinds.
type Change func(client.Object)

// With returns a Change of the objects of one kind:
//
//	prod.MachineDeployment("workers", 3,
//		kwok.With(func(d *clusterv1.MachineDeployment) { d.Spec.Template.Spec.Deletion = … }),
//		kwok.With(func(t *infrav1.KwokMachineTemplate) { t.Spec.Template.Spec.Zone = "zone-a" }))
func With[T client.Object](change func(T)) Change {
	return func(object client.Object) {
		if typed, ok := object.(T); ok {
			change(typed)
		}
	}
}

// Machines returns a Change of Machines: a stand-alone one, or all Machines of a MachineDeployment.
func Machines(change func(metadata *clusterv1.ObjectMeta, spec *clusterv1.MachineSpec)) Change {
	return func(object client.Object) {
		switch typed := object.(type) {
		case *clusterv1.Machine:
			metadata := clusterv1.ObjectMeta{Labels: typed.Labels, Annotations: typed.Annotations}
			change(&metadata, &typed.Spec)
			typed.Labels, typed.Annotations = metadata.Labels, metadata.Annotations
		case *clusterv1.MachineDeployment:
			change(&typed.Spec.Template.ObjectMeta, &typed.Spec.Template.Spec)
		}
	}
}

// MachineLabels adds labels to Machines.
func MachineLabels(labels map[string]string) Change {
	return Machines(func(metadata *clusterv1.ObjectMeta, _ *clusterv1.MachineSpec) {
		metadata.Labels = merged(metadata.Labels, labels)
	})
}

// MachineAnnotations adds annotations to Machines.
func MachineAnnotations(annotations map[string]string) Change {
	return Machines(func(metadata *clusterv1.ObjectMeta, _ *clusterv1.MachineSpec) {
		metadata.Annotations = merged(metadata.Annotations, annotations)
	})
}

func merged(base, added map[string]string) map[string]string {
	all := maps.Clone(base)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, added)
	return all
}

func apply(changes []Change, objects []client.Object) []client.Object {
	for _, change := range changes {
		for _, object := range objects {
			change(object)
		}
	}
	return objects
}
