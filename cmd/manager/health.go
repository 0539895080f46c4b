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

// addChecks adds the health and readiness checks. The manager is alive while it answers: a restart does not help against an unavailable
// API server, and a leader that loses its lease exits. The manager is ready when it has listed its kinds in the management cluster:
// the Deployment then shows a missing CRD or role, and a rollout does not remove the last working manager.
func addChecks(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return errors.Wrap(err, "adding the health check")
	}
	for name, kind := range map[string]client.Object{
		"clusters": &clusterv1.Cluster{}, "machines": &clusterv1.Machine{},
		"machinedrainrules": &clusterv1.MachineDrainRule{}, "machinedrainpolicies": &v1alpha1.MachineDrainPolicy{},
	} {
		// The controllers share this informer. A manager that is not the leader also runs it, so it can take over without a list.
		informer, err := mgr.GetCache().GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return errors.Wrapf(err, "watching %s", name)
		}
		if err := mgr.AddReadyzCheck(name, synced(name, informer)); err != nil {
			return errors.Wrap(err, "adding the readiness check")
		}
	}
	return nil
}

func synced(name string, informer ctrlcache.Informer) healthz.Checker {
	return func(*http.Request) error {
		if !informer.HasSynced() {
			return errors.Errorf("the %s of the management cluster have not been listed", name)
		}
		return nil
	}
}
