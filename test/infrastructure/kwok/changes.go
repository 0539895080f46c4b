package kwok

import "sigs.k8s.io/controller-runtime/pkg/client"

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

func apply(changes []Change, objects []client.Object) []client.Object {
	for _, change := range changes {
		for _, object := range objects {
			change(object)
		}
	}
	return objects
}
