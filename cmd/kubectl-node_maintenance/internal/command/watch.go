package command

import (
	"bytes"
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/live"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// follow shows the status live.
func (s *statusOptions) follow(ctx context.Context, c *observe.Connections, kind, name string) error {
	// What client-go logs would overwrite the view. Errors of watches are part of the status.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	s.warnings.silence()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	selected := ctrlcache.ByObject{}
	if c.Current.HasMachines {
		namespace, err := s.machineNamespace()
		if err != nil {
			return err
		}
		selected = machineSelection(namespace, kind, name)
	} else if err := workloadHas(c, kind); err != nil {
		return err
	}
	w, err := observe.NewWatch(ctx, c, selected)
	if err != nil {
		return err
	}
	var changed <-chan struct{} = w.Changed
	var recorder *recorder
	if s.record != "" {
		if recorder, err = newRecorder(s.record, contextOf(c), s.clock); err != nil {
			return err
		}
		w.FollowDetails()
		changed = recorder.follow(ctx, w.Changed, recorded(ctx, c, w, kind, name))
	}
	drained := sets.New[string]()
	err = live.Run(ctx, live.Source{
		Changed: changed,
		Status: func() (*report.Status, bool) {
			status := watchedStatus(ctx, c, w, kind, name, drained)
			if recorder != nil {
				status.Gaps = append(recorder.problem(), status.Gaps...)
			}
			return status, w.IsSynced()
		},
		Explain: s.explain, NoColor: s.noColors(), Clock: s.clock,
	}, s.In, s.Out)
	if recorder != nil {
		if failure := recorder.close(); failure != nil {
			return failure
		}
		fmt.Fprintf(s.ErrOut, "Recorded in %s. To read it: kubectl node-maintenance report %s -o md\n", s.record, s.record)
	}
	if errors.Is(err, live.ErrInterrupted) {
		return exit{report.ExitInterrupted}
	}
	return err
}

// machineSelection lets the API server select the Machines, where it can.
func machineSelection(namespace, kind, name string) ctrlcache.ByObject {
	selected := ctrlcache.ByObject{Namespaces: map[string]ctrlcache.Config{namespace: {}}}
	switch kind {
	case "cluster":
		selected.Label = labels.SelectorFromSet(labels.Set{clusterv1.ClusterNameLabel: name})
	case "machinedeployment":
		selected.Label = labels.SelectorFromSet(labels.Set{clusterv1.MachineDeploymentNameLabel: name})
	case "machine":
		selected.Field = fields.OneTermEqualSelector("metadata.name", name)
	}
	return selected
}

// watchedStatus returns the status of what has been observed. It adds the Machines under maintenance to drained: what became of their Pods
// belongs to the status when they no longer exist.
func watchedStatus(ctx context.Context, c *observe.Connections, w *observe.Watch, kind, name string, drained sets.Set[string]) *report.Status {
	drains := func(clusters []types.NamespacedName) []report.Drains {
		all := make([]report.Drains, len(clusters))
		for i, cluster := range clusters {
			all[i].Maintenances, all[i].Evacuations = w.Drains(ctx, cluster)
		}
		return all
	}
	var status *report.Status
	if c.Current.HasMachines {
		status = managementStatus(c, w.Machines(ctx), kind, name, drains)
		for machine := range status.Machines() {
			drained.Insert(machine)
		}
		status.AddEnded(endedDrains(w.Policies(ctx), kind, name, drained))
	} else {
		status = workloadStatus(c, name, drains(make([]types.NamespacedName, 1))[0])
	}
	status.Gaps = append(c.Gaps.List(), w.Problems()...)
	return status
}

// explain returns what the command why writes about an object at present.
func (s *statusOptions) explain(ctx context.Context, target live.Target) (string, error) {
	connections, err := s.connect(ctx)
	if err != nil {
		return "", err
	}
	y := &whyOptions{options: s.options, cluster: target.Cluster, placement: s.placement}
	why, err := y.explain(ctx, connections, target.Kind, types.NamespacedName{Namespace: target.Namespace, Name: target.Name})
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	report.WriteWhy(&text, why, s.clock.Now(), s.style())
	return text.String(), nil
}
