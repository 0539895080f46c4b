package clusterapi

import (
	"math/rand/v2"
	"net"
	"strconv"

	"github.com/pkg/errors"
)

// ports are those that a core manager listens on.
type ports struct {
	webhook, health, diagnostics int
}

// The ports lie above those of test/controlplane and below 32768, where Linux begins to take
// local ports for outgoing connections: between two runs of a manager, which has to come back
// on the ports that its webhooks are registered with, nobody takes them by chance.
const (
	firstPort = 32000
	lastPort  = 32767
)

// freePorts returns ports on which nobody listens now. They are not reserved, but drawn at
// random; see Install for what happens if somebody else takes one all the same.
func freePorts() (ports, error) {
	const size = 3
	const triples = (lastPort - firstPort + 1) / size
	start := rand.IntN(triples)
	for i := range triples {
		first := firstPort + (start+i)%triples*size
		if isFree(first) && isFree(first+1) && isFree(first+2) {
			return ports{webhook: first, health: first + 1, diagnostics: first + 2}, nil
		}
	}
	return ports{}, errors.Errorf("no %d free ports between %d and %d", size, firstPort, lastPort)
}

func isFree(port int) bool {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	_ = listener.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
