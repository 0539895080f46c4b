package main

import (
	"context"
	"net/http"

	"github.com/pkg/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// addChecks adds what the kubelet asks. The manager is alive while it answers: a new process would do no better against an API
// server that is away, and a leader that loses its lease ends by itself. It is ready when it has seen the management cluster: a
// missing CRD or role shows in the Deployment, and a rollout doesn't end the last manager that works.
func addChecks(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return errors.Wrap(err, "adding the health check")
	}
	for name, kind := range map[string]client.Object{
		"clusters": &clusterv1.Cluster{}, "machines": &clusterv1.Machine{},
		"machinedrainrules": &clusterv1.MachineDrainRule{}, "machinedrainpolicies": &v1alpha1.MachineDrainPolicy{},
	} {
		// The informer is shared with the controllers. One that isn't the leader has it, too, and takes over at once.
		informer, err := mgr.GetCache().GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return errors.Wrapf(err, "watching %s", name)
		}
		if err := mgr.AddReadyzCheck(name, seen(informer)); err != nil {
			return errors.Wrap(err, "adding the readiness check")
		}
	}
	return nil
}

func seen(informer ctrlcache.Informer) healthz.Checker {
	return func(*http.Request) error {
		if !informer.HasSynced() {
			return errors.New("not listed yet")
		}
		return nil
	}
}
