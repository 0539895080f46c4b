package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/controllers/evictor"
)

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
