package controlplane

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/pkg/errors"
)

// Ports come in blocks below the range from which the kernel takes the local ports of outgoing
// connections (from 32768 on Linux). Within that range, any connection could take a port between two
// runs of a component, even a client that dials the stopped component: TCP can connect a socket to
// itself.
const (
	firstPort = 20000
	lastPort  = 32000
	blockSize = 8
)

// portBlock is a set of ports that no other control plane on this machine uses.
type portBlock struct {
	first int
	// lock is held until release, so that other test processes skip the block even while no program
	// listens on it. The kernel releases it when this process dies.
	lock *os.File
}

// reservePorts finds a block that no other control plane holds and on which no program listens.
func reservePorts() (*portBlock, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("capnm-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Wrap(err, "creating the directory for port reservations")
	}
	const blocks = (lastPort - firstPort) / blockSize
	start := rand.IntN(blocks)
	for i := range blocks {
		block, err := tryBlock(dir, firstPort+(start+i)%blocks*blockSize)
		if err != nil {
			return nil, err
		}
		if block != nil {
			return block, nil
		}
	}
	return nil, errors.Errorf("no %d free ports between %d and %d", blockSize, firstPort, lastPort)
}

// tryBlock returns nil if the block is taken.
func tryBlock(dir string, first int) (*portBlock, error) {
	lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(first)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "opening the reservation of port %d", first)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, nil
	}
	for port := first; port < first+blockSize; port++ {
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			_ = lock.Close()
			return nil, nil
		}
		_ = listener.Close()
	}
	block := &portBlock{first: first, lock: lock}
	held.Store(block, nil)
	return block, nil
}

// held are the blocks that are not released. The garbage collector closes files that nothing refers to, which would release the lock.
var held sync.Map

func (b *portBlock) release() {
	held.Delete(b)
	_ = b.lock.Close()
}

func (b *portBlock) etcd() int     { return b.first }
func (b *portBlock) etcdPeer() int { return b.first + 1 }

// of returns the port of a component.
func (b *portBlock) of(component Component) int {
	return map[Component]int{
		Etcd:              b.etcd(),
		APIServer:         b.first + 2,
		ControllerManager: b.first + 3,
		Scheduler:         b.first + 4,
		Kwok:              b.first + 5,
	}[component]
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// ReservePort reserves a port on loopback that no control plane on this machine uses, until release is called or this process dies.
func ReservePort() (port int, release func(), err error) {
	block, err := reservePorts()
	if err != nil {
		return 0, nil, err
	}
	return block.first, block.release, nil
}
