package surge_test

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestOutlook(t *testing.T) {
	unavailable := func(f *fixture) { f.deployment.Status.AvailableReplicas = 0 }
	for name, test := range map[string]struct {
		fixture *fixture
		policy  v1alpha1.SurgePolicy
		change  func(*fixture)
		want    surge.Outlook
	}{
		"a Deployment with one replica": {deployed(1), v1alpha1.SurgeIfSingleReplica, nil,
			surge.Outlook{Message: "Adding replicas before Pods are removed: Deployment shop/web is scaled from 1 to 2 replicas."}},
		"a Deployment with several replicas": {deployed(3), v1alpha1.SurgeIfSingleReplica, nil,
			surge.Outlook{Refusal: surge.TooManyReplicas, Message: "Surge policy IfSingleReplica does not apply: Deployment shop/web declares 3 replicas."}},
		"a Deployment with unavailable replicas": {
			deployed(1), v1alpha1.SurgeAlways, unavailable, surge.Outlook{Message: "Waiting for all replicas of the Deployment to become available."},
		},
		"a Deployment whose last change was not observed": {deployed(1), v1alpha1.SurgeAlways, func(f *fixture) { f.deployment.Generation++ }, surge.Outlook{}},
		"a Deployment that is deleted": {
			deployed(1), v1alpha1.SurgeAlways, func(f *fixture) { f.deployment = nil },
			surge.Outlook{Refusal: surge.NoDeployment, Message: "The Deployment of the Pod does not exist."},
		},
		"an autoscaler": {deployed(1).scaledBy(1, 3), v1alpha1.SurgeAlways, nil,
			surge.Outlook{
				Message: "Adding replicas before Pods are removed: Deployment shop/web is scaled from 1 to 2 replicas by minReplicas of HorizontalPodAutoscaler web.",
			}},
		"an invalid baseline": {deployed(1), v1alpha1.SurgeAlways, func(f *fixture) { f.deployment.Annotations = map[string]string{v1alpha1.SurgeAnnotation: "x"} },
			surge.Outlook{Message: "Adding replicas before Pods are removed: Deployment shop/web is scaled from 1 to 2 replicas."}},
		"a surge whose Deployment another actor has scaled": {surged(1, 1), v1alpha1.SurgeAlways, func(f *fixture) { f.scale(5) }, surge.Outlook{
			Refusal: surge.Edited, Message: "Another actor changed the number of replicas of Deployment shop/web during the surge.",
		}},
		"a surge that an undo has interrupted": {surged(1, 1), v1alpha1.SurgeAlways, func(f *fixture) { f.undo(nil) }, surge.Outlook{
			Refusal: surge.Edited, Message: "Another actor replaced the annotations of Deployment shop/web during the surge.",
		}},
		"no request": {
			deployed(1), v1alpha1.SurgeNever, nil, surge.Outlook{Refusal: surge.NotRequested, Message: "No NodeMaintenance of the Pod's Node requests a surge."},
		},
	} {
		t.Run("K30: what the evacuator does is known before it is active: "+name, func(t *testing.T) {
			g := NewWithT(t)
			if test.change != nil {
				test.change(test.fixture)
			}
			o := test.fixture.evacuated(1, test.policy).observed()
			g.Expect(surge.OutlookOf(o, o.Leaving[0])).To(Equal(test.want))
		})
	}

	t.Run("K30: a surge that is in progress is reported for its Pods, and other Pods wait for the next round", func(t *testing.T) {
		g := NewWithT(t)
		f := deployed(2, func(d *appsv1.Deployment) { maxSurge("1")(d) }).evacuated(2, v1alpha1.SurgeAlways)
		o := f.observed()
		o.Deployment = surge.Decide(o).Deployment
		g.Expect(surge.OutlookOf(o, o.Leaving[0]).Message).To(HavePrefix("Adding replicas before Pods are removed"))
		g.Expect(surge.OutlookOf(o, o.Leaving[1]).Message).To(Equal("Waiting for other Pods of Deployment shop/web to be replaced: at most 1 at a time."))
	})
}
