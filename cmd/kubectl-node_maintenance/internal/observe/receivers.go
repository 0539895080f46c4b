package observe

import (
	"context"
	"fmt"
	"slices"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,verbs=list,roleName=capnm-plugin-workload-reader

// receiversFor returns the admission webhooks that receive eviction requests. It reads them only if a PodDisruptionBudget blocks the drain.
// What cannot be read is a gap: the rest of the prediction does not depend on it.
func (w *Workload) receiversFor(ctx context.Context, o forecast.Observation) (signals.Receivers, error) {
	isBlocked := slices.ContainsFunc(forecast.Of(o).Obstacles(o.Now), func(obstacle forecast.Obstacle) bool {
		return obstacle.Severity == forecast.Blocks && obstacle.Budget != ""
	})
	if w.receiversRead || !isBlocked {
		return w.receivers, nil
	}
	validating, mutating := &admissionregistrationv1.ValidatingWebhookConfigurationList{}, &admissionregistrationv1.MutatingWebhookConfigurationList{}
	var allValidating []admissionregistrationv1.ValidatingWebhookConfiguration
	var allMutating []admissionregistrationv1.MutatingWebhookConfiguration
	ofValidating := w.listAll(ctx, validating, func() { allValidating = append(allValidating, validating.Items...) })
	ofMutating := w.listAll(ctx, mutating, func() { allMutating = append(allMutating, mutating.Items...) })
	for _, kind := range []struct {
		resource string
		err      error
	}{
		{"validatingwebhookconfigurations.admissionregistration.k8s.io", ofValidating},
		{"mutatingwebhookconfigurations.admissionregistration.k8s.io", ofMutating},
	} {
		if _, err := w.tolerate(kind.err, "list", kind.resource); errors.Is(err, context.Canceled) {
			return nil, err
		} else if err != nil {
			w.gaps.Add(fmt.Sprintf("%s of %s cannot be read: %v", kind.resource, w.Name, err))
		}
	}
	w.receivers, w.receiversRead = signals.ReceiversOf(allValidating, allMutating), true
	return w.receivers, nil
}
