package fleet

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pkg/errors"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// AnotherManagement starts another management cluster, to which the Clusters of this fleet can be moved. The returned fleet has the same
// workload clusters. StopManagement stops the one that is no longer needed, and Stop of the other one stops the workload clusters.
func (f *Fleet) AnotherManagement(ctx context.Context, name string) (_ *Fleet, err error) {
	another := &Fleet{Workloads: f.Workloads, options: f.options, links: f.links}
	defer func() {
		if err != nil {
			_ = another.StopManagement()
		}
	}()
	if err := another.startManagement(ctx, name); err != nil {
		return nil, err
	}
	if err := another.installClusterAPI(ctx); err != nil {
		return nil, err
	}
	if err := another.install(ctx); err != nil {
		return nil, err
	}
	for _, each := range []*Fleet{f, another} {
		if err := each.prepareMove(ctx); err != nil {
			return nil, err
		}
	}
	return another, nil
}

// prepareMove does what clusterctl init does for a move: the CRD of the inventory is there, which is empty, and all CRDs are labelled.
func (f *Fleet) prepareMove(ctx context.Context) error {
	program, err := toolchain.Find("clusterctl")
	if err != nil {
		return err
	}
	sources, err := toolchain.ModuleDir(ctx, program.Pin, program.Module)
	if err != nil {
		return err
	}
	if err := applyFile(ctx, f.Client, filepath.Join(sources, "cmd", "clusterctl", "config", "manifest", "clusterctl-api.yaml")); err != nil {
		return err
	}
	if err := f.waitForCRD(ctx, "providers.clusterctl.cluster.x-k8s.io"); err != nil {
		return err
	}
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := f.Client.List(ctx, crds); err != nil {
		return errors.Wrap(err, "listing CRDs")
	}
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"clusterctl.cluster.x-k8s.io":""}}}`))
	for i := range crds.Items {
		if err := f.Client.Patch(ctx, &crds.Items[i], label); err != nil {
			return errors.Wrapf(err, "labeling CRD %s", crds.Items[i].Name)
		}
	}
	return nil
}

// MoveTo moves the Clusters of a namespace to another management cluster with clusterctl. An error may leave them in both; a repetition
// continues.
func (f *Fleet) MoveTo(ctx context.Context, another *Fleet, namespace string) error {
	path, err := controlplane.Tool("clusterctl")
	if err != nil {
		return err
	}
	dir := another.Management.Dir()
	config := filepath.Join(dir, "clusterctl.yaml")
	if err := os.WriteFile(config, []byte("{}\n"), 0o600); err != nil {
		return errors.Wrap(err, "writing the configuration of clusterctl")
	}
	args := []string{"move", "--namespace=" + namespace, "--config=" + config}
	for option, fleet := range map[string]*Fleet{"--kubeconfig=": f, "--to-kubeconfig=": another} {
		args = append(args, option+filepath.Join(fleet.Management.Dir(), "admin.kubeconfig"))
	}
	command := exec.CommandContext(ctx, path, args...)
	command.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "XDG_CONFIG_HOME="+dir)
	output, err := command.CombinedOutput()
	return errors.Wrapf(err, "running clusterctl move: %s", output)
}
