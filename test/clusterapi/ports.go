package clusterapi

import (
	"net"
	"strconv"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// ports are those that a core manager listens on.
type ports struct {
	webhook, health, diagnostics int
}

// reservePorts takes ports that no other program of a test has, in this process or in another one. They are kept: a manager that is
// started again has to come back on the ports that its webhooks are registered with.
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
