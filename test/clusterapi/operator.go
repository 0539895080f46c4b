package clusterapi

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// operatorUser is the user of the operator's manager in the management cluster, and the name of its program.
const operatorUser = "capi-operator"

// InstallOperator installs the CRDs and webhooks of the Cluster API operator in a management cluster and starts its manager. It returns
// when the manager is ready, webhooks included. The manager stops with the control plane.
func InstallOperator(ctx context.Context, management *controlplane.ControlPlane) error {
	return errors.Wrapf(installOperator(ctx, management), "installing the Cluster API operator in %s", management.Name())
}

func installOperator(ctx context.Context, management *controlplane.ControlPlane) error {
	ports, err := reservePorts()
	if err != nil {
		return err
	}
	manifests, err := readManifests(ctx, operatorUser, "config", "capi-operator-")
	if err != nil {
		return err
	}
	manifests.serveFrom("https://"+loopback(ports.webhook), management.CAData())
	if err := manifests.apply(ctx, management.AdminConfig()); err != nil {
		return err
	}
	program, err := controlplane.Tool(operatorUser)
	if err != nil {
		return err
	}
	dir := filepath.Join(management.Dir(), operatorUser)
	if err := writeCredentials(management, operatorUser, dir); err != nil {
		return err
	}
	_, err = management.RunProcess(ctx, controlplane.ProcessSpec{
		Name: operatorUser, Path: program,
		Args: []string{
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"),
			"--webhook-cert-dir=" + dir,
			fmt.Sprintf("--webhook-port=%d", ports.webhook),
			"--health-addr=" + loopback(ports.health),
			"--diagnostics-address=" + loopback(ports.diagnostics),
			"--insecure-diagnostics=true",
			"--profiler-address=",
		},
		Env: []string{"XDG_CONFIG_HOME=" + dir}, // not the user's configuration of clusterctl
		Ready: func(ctx context.Context) error {
			// Unlike that of the core manager, the readiness probe does not include the webhook server.
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", loopback(ports.webhook))
			if err != nil {
				return errors.Wrap(err, "connecting to the webhook server")
			}
			_ = connection.Close()
			return ready(ctx, operatorUser, ports)
		},
	})
	return errors.Wrap(err, "starting the operator")
}
