// Package main is an evacuator of a third party: a program of its own that knows nothing of this project but an annotation on
// Pods and the status of Evacuations. docs/guide/evacuators.md explains it, and tests run it.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// behavior is what the tests want to see. A real evacuator has one.
type behavior string

const (
	migrates behavior = "migrate" // copies, and deletes the Pod
	forbids  behavior = "forbid"  // likewise, and can't be cancelled once it has begun
	hangs    behavior = "hang"    // reports progress once, and never again
	declines behavior = "decline" // leaves the Pod to others
)

func main() {
	m := &migrator{}
	flag.StringVar(&m.class, "class", "migrator.example.com", "The evacuator class to serve.")
	flag.IntVar(&m.parts, "parts", 3, "The parts that a Pod's data has.")
	flag.DurationVar(&m.pace, "pace", time.Second, "The time that a part takes.")
	flag.StringVar((*string)(&m.behavior), "behavior", string(migrates), "One of migrate, forbid, hang, decline.")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	if err := run(m); err != nil {
		fmt.Fprintf(os.Stderr, "Unable to run the evacuator: %v\n", err)
		os.Exit(1)
	}
}

func run(m *migrator) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return errors.Wrap(err, "finding the cluster")
	}
	config.UserAgent = m.class
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return errors.Wrap(err, "registering types")
		}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		// One Pod at a time is looked at: no reason to cache them all.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Pod{}}}},
	})
	if err != nil {
		return errors.Wrap(err, "creating the manager")
	}
	m.Client = mgr.GetClient()
	if err := ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.Evacuation{}).Complete(m); err != nil {
		return errors.Wrap(err, "setting up the evacuator")
	}
	return errors.Wrap(mgr.Start(ctrl.SetupSignalHandler()), "running the evacuator")
}
