package main

import (
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// node is the state of process 1 of a node.
type node struct {
	spec.Node

	units  map[string]*unit
	reaper *reaper
	logind *logind
	off    chan struct{}
	once   sync.Once
}

// runNode starts the node, and returns when it is powered off. The kernel kills all of its processes with process 1.
func runNode(configFile string) error {
	content, err := os.ReadFile(configFile)
	if err != nil {
		return errors.Wrap(err, "reading the configuration of the node")
	}
	n := &node{off: make(chan struct{}), reaper: newReaper()}
	if err := json.Unmarshal(content, &n.Node); err != nil {
		return errors.Wrap(err, "parsing the configuration of the node")
	}
	if err := n.mount(); err != nil {
		return err
	}
	// containerd that restarts finds the shims of its containers only with the path of their program.
	if err := os.Setenv("PATH", filepath.Join(n.Dir, "bin")+":"+os.Getenv("PATH")); err != nil {
		return errors.Wrap(err, "setting the path of programs")
	}
	if err := n.startRuntime(); err != nil {
		return err
	}
	journal(spec.Booted)
	n.logind = newLogind(n)
	n.listen()
	for _, name := range []string{spec.DBus, n.KubeletUnit} {
		if err := n.units[name].start(); err != nil {
			return err
		}
	}
	go n.logind.serve()
	<-n.off
	log.Print("power off")
	return nil
}

// listen restarts D-Bus on SIGUSR1 and logind on SIGUSR2. It uses signals because the bus may not run.
func (n *node) listen() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			log.Printf("got %s", s)
			if s == syscall.SIGUSR2 {
				n.logind.restart()
				continue
			}
			n.units[spec.DBus].stop()
			if err := n.units[spec.DBus].start(); err != nil {
				log.Print(err)
			}
		}
	}()
}

func (n *node) powerOff() { n.once.Do(func() { close(n.off) }) }

// startRuntime starts CRI-O, which pulls images from files, or starts containerd and imports the images.
func (n *node) startRuntime() error {
	n.units = map[string]*unit{
		spec.DBus:     n.unit(spec.DBus, "dbus-daemon", "--config-file="+filepath.Join(n.Dir, "dbus.conf"), "--nofork", "--nopidfile"),
		n.KubeletUnit: n.unit(n.KubeletUnit, filepath.Join(n.Dir, "bin", "kubelet"), n.KubeletArgs...),
	}
	if n.CRIO {
		n.units[spec.CRIO] = n.unit(spec.CRIO, filepath.Join(n.Dir, "bin", "crio"), "--config="+filepath.Join(n.Dir, "crio.conf"), "--config-dir=")
		return n.units[spec.CRIO].start()
	}
	n.units[spec.Containerd] = n.unit(spec.Containerd, filepath.Join(n.Dir, "bin", "containerd"), "--config", filepath.Join(n.Dir, "containerd.toml"))
	if err := n.units[spec.Containerd].start(); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		return n.reaper.run(filepath.Join(n.Dir, "bin", "ctr"), append([]string{"-n", "k8s.io", "-a", spec.ContainerdSocket}, args...)...)
	}
	for ctr("version") != nil { // the harness has a timeout
		time.Sleep(50 * time.Millisecond)
	}
	for _, image := range n.Images {
		if err := ctr("images", "import", "--local", image); err != nil {
			return errors.Wrapf(err, "importing %s", image)
		}
	}
	return nil
}
