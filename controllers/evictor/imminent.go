package evictor

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// findImminentCordons determines whether Nodes are about to be cordoned.
func (p *pass) findImminentCordons(ctx context.Context, maintenances []v1alpha1.NodeMaintenance) error {
	for i := range maintenances {
		m := &maintenances[i]
		nodes, until := cordon.Imminent(m, p.now)
		if len(nodes) > 0 && p.suspended(m) {
			continue
		}
		for _, name := range nodes {
			if err := p.findImminentCordon(ctx, name, until, func(node *corev1.Node) bool { return cordon.CanCordon(m, node) }); err != nil {
				return err
			}
		}
	}
	if p.cordoning || len(p.deleted) == 0 {
		return nil
	}
	return p.findNewDeletions(ctx, maintenances)
}

// findNewDeletions determines whether a Machine was deleted a moment ago whose Node is about to be cordoned.
func (p *pass) findNewDeletions(ctx context.Context, maintenances []v1alpha1.NodeMaintenance) error {
	cordoned := machinedrain.Cordoned(maintenances, p.cluster)
	for i := range p.deleted {
		name, until := machinedrain.ImminentCordon(&p.deleted[i], cordoned, p.now)
		if name == "" {
			continue
		}
		if err := p.findImminentCordon(ctx, name, until, cordon.IsCordonable); err != nil || p.cordoning {
			return err
		}
	}
	return nil
}

// findImminentCordon determines whether a Node, which may not exist, is about to be cordoned, at most until a time.
func (p *pass) findImminentCordon(ctx context.Context, name string, until time.Time, canCordon func(*corev1.Node) bool) error {
	node, err := workload.NodeNamed(ctx, p.client, name)
	if err == nil && node != nil && canCordon(node) {
		p.cordoning = true
		p.requeueAt(until)
	}
	return err
}
