package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/spf13/pflag"

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
	o, fs := newOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addFlags(fs)
	if last := o.retryPeriod + 2*o.renewDeadline; o.leaseDuration <= last { // attempts to renew the lease, and then to release it
		t.Errorf("R74: a manager that cannot renew its lease exits after up to %s, and another one can have the lease after %s", last, o.leaseDuration)
	}
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
