package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evictor"
)

func TestPodMetadata(t *testing.T) {
	t.Run("the Deployment tells the ClusterCache its Pod, by which it recognizes the cluster in which it runs", func(t *testing.T) {
		manifest, err := os.ReadFile("../../config/manager/manager.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for variable, field := range map[string]string{"POD_NAMESPACE": "namespace", "POD_NAME": "name", "POD_UID": "uid"} {
			if !regexp.MustCompile(`- name: ` + variable + `\n\s+valueFrom:\n\s+fieldRef:\n\s+fieldPath: metadata\.` + field + `\n`).Match(manifest) {
				t.Errorf("%s is not metadata.%s", variable, field)
			}
		}
	})
}

func TestLease(t *testing.T) {
	t.Run("R74: a manager that cannot renew its lease exits before another one can have the lease", func(t *testing.T) {
		o, fs := newOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addFlags(fs)
		if last := o.retryPeriod + 2*o.renewDeadline; o.leaseDuration <= last { // attempts to renew the lease, and then to release it
			t.Errorf("it exits after up to %s, and another one can have the lease after %s", last, o.leaseDuration)
		}
	})
}

type managerOf struct {
	ctrl.Manager
	cache ctrlcache.Cache
}

func (m managerOf) AddHealthzCheck(string, healthz.Checker) error { return nil }
func (m managerOf) GetCache() ctrlcache.Cache                     { return m.cache }

func TestStartWithoutPolicies(t *testing.T) {
	t.Run("M56: a manager that starts while a CRD is missing exits: it would take policies that it cannot read for deleted ones", func(t *testing.T) {
		missing := &meta.NoKindMatchError{GroupKind: v1alpha1.GroupVersion.WithKind("MachineDrainPolicy").GroupKind()}
		err := addChecks(t.Context(), managerOf{cache: &informertest.FakeInformers{Scheme: newScheme(), Error: missing}})
		if !errors.Is(err, missing) {
			t.Errorf("got %v", err)
		}
	})
}

func TestShutdownFitsIntoThePodsGrace(t *testing.T) {
	manifest, err := os.ReadFile("../../config/manager/manager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindSubmatch(manifest)
	if found == nil {
		t.Fatal("the Deployment has no terminationGracePeriodSeconds")
	}
	seconds, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	if grace := time.Duration(seconds) * time.Second; shutdownTimeout >= grace {
		t.Errorf("the manager stops waiting after %s, but is killed after %s: it cannot release its lease", shutdownTimeout, grace)
	}
	if evictor.MaxShutdownWait >= shutdownTimeout {
		t.Errorf("the manager waits %s for evictions, but stops waiting after %s", evictor.MaxShutdownWait, shutdownTimeout)
	}
}
