// Package main is an evacuator of a third party: a program that uses only an annotation on Pods and the status of Evacuations.
// docs/guide/evacuators.md explains it, and integration tests run it.
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

// behavior says what the evacuator does. A real evacuator has only one behavior.
type behavior string

const (
	migrates behavior = "migrate" // copies the data and deletes the Pod
	forbids  behavior = "forbid"  // does the same and forbids cancellation
	hangs    behavior = "hang"    // reports progress once and stops
	declines behavior = "decline" // completes without doing anything
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
		// The evacuator reads one Pod at a time, so it needs no cache of all Pods.
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
