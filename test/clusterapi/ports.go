package clusterapi

import (
	"net"
	"strconv"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// ports are the ports that a core manager listens on.
type ports struct {
	webhook, health, diagnostics int
}

// reservePorts reserves ports that no other program of a test uses, in this process or in another one. They stay reserved across
// restarts, since the webhooks are registered with them.
func reservePorts() (ports, error) {
	var reserved ports
	for _, port := range []*int{&reserved.webhook, &reserved.health, &reserved.diagnostics} {
		var err error
		if *port, _, err = controlplane.ReservePort(); err != nil {
			return ports{}, err
		}
	}
	return reserved, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
